"""The command line: `gpvi list`, `run`, `report` and `demo`."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpvi.errors import GPVIError, InputError, UnknownOptionError

if TYPE_CHECKING:
    from rich.console import Console

    from gpvi.experiments import Experiment, Metric
    from gpvi.records import Record

KINDS = ("methods", "experiments")
MOST_ACROSS = 6
"""A table with more problems than this has them as rows."""
DEMO_SEEDS = 3
DEMO_METHODS = {"energy": ("GPVI (default)",), "blr": ("GPVI (pathwise)", "Amortized SVGD", "SVGD")}


class Commands(TyperGroup):
    """Turns what goes wrong into one line on standard error and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command; 2 for errors, 130 for Ctrl-C."""
        words = sys.argv[1:] if args is None else list(args)
        options["standalone_mode"] = False
        try:
            code = super().main([w for w in words if w != "--debug"], *rest, **options)
        except Exception as error:
            if "--debug" in words:
                raise
            _complain(_in_words(error))
            code = 2
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="gpvi",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train neural samplers of a posterior, repeat the paper's experiments, and report them.",
    epilog="[dim]--debug anywhere shows the full trace of an error.[/dim]",
)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.")]


def main() -> None:
    """The entry point."""
    app(prog_name="gpvi")


def _version(wanted: bool) -> bool:
    if wanted:
        import gpvi

        typer.echo(f"gpvi {gpvi.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[methods|experiments]", help="What to list; both by default."),
    ] = None,
) -> None:
    """Show the methods and the experiments there are."""
    if kind is not None and kind not in KINDS:
        raise UnknownOptionError("kind", kind, KINDS)
    console = _console()
    if kind != "methods":
        _list_experiments(console)
    if kind != "experiments":
        _list_methods(console)


@app.command()
def run(
    experiments: Annotated[
        list[str],
        typer.Argument(metavar="EXPERIMENT...", help="blr, energy, posteriordb: see gpvi list."),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="LABEL",
            help="A row, such as gpvi-pathwise, or a family, such as gpvi; all of them by default. May be repeated.",
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="smoke, demo, best or paper.")] = "best",
    seeds: Annotated[int, typer.Option(metavar="N", help="Run seeds 0 to N − 1.")] = 3,
    out: Out = Path("runs"),
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where the data lie, for the experiments that read some; none are shipped.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Run experiments; each method leaves one record in the output directory."""
    from gpvi.experiments import ReadsData

    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; give 1 or more.")
    jobs = [
        (e.reading(data_dir) if isinstance(e, ReadsData) else e, label)
        for e, label in _jobs(experiments, methods or [], preset)
    ]
    _run(jobs, preset, range(seeds), out, as_json=as_json)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS...", help="Directories or files that gpvi run wrote."),
    ],
    out: Out = Path("report"),
) -> None:
    """Make one self-contained HTML page from records."""
    from gpvi import records
    from gpvi.report import write

    typer.echo(write(records.find(runs), out))


@app.command()
def demo(out: Out = Path("report/demo")) -> None:
    """Train on four potentials and a linear regression, and write the page: a few minutes on two cores."""
    from gpvi.experiments import experiment
    from gpvi.report import write

    console = _console()
    console.print(
        "[bold]GPVI with its defaults[/bold] on four two-dimensional potentials, then a Bayesian linear regression.\n"
    )
    potentials = [(experiment("energy"), label) for label in DEMO_METHODS["energy"]]
    regressions = [(experiment("blr"), label) for label in DEMO_METHODS["blr"]]
    made = _run(potentials, "demo", range(1), out / "runs")
    made += _run(regressions, "demo", range(DEMO_SEEDS), out / "runs")
    typer.echo(write(made, out))


def _jobs(
    names: Iterable[str], methods: Sequence[str], preset: str
) -> list[tuple["Experiment", str]]:
    """The rows a user asked for; every name must mean something in one of the experiments."""
    from gpvi.experiments import PRESETS, experiment, matching
    from gpvi.records import slug

    chosen = [experiment(name) for name in dict.fromkeys(names)]
    if preset not in PRESETS:
        raise UnknownOptionError("preset", preset, PRESETS)
    for e in chosen:
        if not e.recipes(preset):
            raise UnknownOptionError(f"preset of {e.name}", preset, filter(e.recipes, PRESETS))
    if not methods:
        return [(e, label) for e in chosen for label in e.recipes(preset)]
    for method in methods:
        if not any(matching(e, preset, method) for e in chosen):
            valid = {slug(label) for e in chosen for label in e.recipes(preset)}
            raise UnknownOptionError(f"method for preset {preset!r}:", method, valid)
    return [
        (e, label)
        for e in chosen
        for label in dict.fromkeys(
            label for method in methods for label in matching(e, preset, method)
        )
    ]


def _run(
    jobs: Sequence[tuple["Experiment", str]],
    preset: str,
    seeds: Sequence[int],
    out: Path,
    *,
    as_json: bool = False,
) -> list["Record"]:
    """Run the jobs in turn and write each record as soon as it is made."""
    from gpvi import records

    made: list[tuple[Record, Path]] = []
    try:
        for experiment, label in jobs:
            record = experiment.run(label, preset, tuple(seeds), False if as_json else _Bar())
            made.append((record, records.write(record, out)))
            if not as_json:
                _show(experiment, record)
    except KeyboardInterrupt:
        kept = (
            f"{len(made)} of {len(jobs)} records kept in {out}" if made else "nothing was finished"
        )
        _complain(f"interrupted: {kept}.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps([_as_json(record, path) for record, path in made], indent=1))
    return [record for record, _ in made]


def _as_json(record: "Record", path: Path) -> dict[str, Any]:
    """A record without its curves and arrays, which are in its file."""
    rows = {
        name: [value if math.isfinite(value) else None for value in values]
        for name, values in record.rows.items()
    }
    return {
        "experiment": record.experiment,
        "method": record.method,
        "preset": record.preset,
        "seeds": list(record.seeds),
        "seconds": record.seconds,
        "rows": rows,
        "notes": list(record.notes),
        "record": str(path),
    }


def _show(experiment: "Experiment", record: "Record") -> None:
    """A record as a table: metrics down and problems across, or the other way where problems are many."""
    from rich import box
    from rich.table import Table

    n = f"{len(record.seeds)} seed{'s' * (len(record.seeds) > 1)}"
    table = Table(
        title=f"{experiment.title} · {record.method} · {record.preset} · {n}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=len(experiment.cases) > 1,
    )
    table.add_column("", no_wrap=True)
    beside = {m.floor for m in experiment.metrics} if len(experiment.cases) == 1 else set()
    rows = {
        metric: [_cell(record, case, metric) for case in experiment.cases]
        for metric in experiment.metrics
        if metric.key not in beside
    }
    rows = {metric: cells for metric, cells in rows.items() if any(cells)}
    if len(experiment.cases) > MOST_ACROSS:
        shown = experiment.tables[0].metrics
        rows = {metric: cells for metric, cells in rows.items() if metric.key in shown}
        for metric in rows:
            table.add_column(metric.label, justify="right", overflow="fold")
        for number, title in enumerate(experiment.cases.values()):
            across = [cells[number] for cells in rows.values()]
            if any(across):
                table.add_row(title, *across)
    else:
        for title in experiment.cases.values():
            table.add_column(title, justify="right", no_wrap=True)
        if len(experiment.cases) == 1:
            table.add_column("", style="dim")
        for metric, cells in rows.items():
            table.add_row(metric.label, *cells, *([metric.meaning] if len(cells) == 1 else []))
    console = _console()
    console.print(table)
    for note in record.notes:
        console.print(f"[yellow]note:[/yellow] {note}", highlight=False)


def _cell(record: "Record", case: str, metric: "Metric") -> str:
    """Mean ± deviation; for a single problem also what exact draws have, where that is not zero."""
    summary = record.summary(f"{case}/{metric.key}".strip("/"))
    if summary is None:
        return ""
    if metric.style == "seconds":
        return f"{summary.mean:,.0f}"
    text = f"{summary.mean:.3g}" + (f" ± {summary.sd:.1g}" if summary.n > 1 else "")
    floor = record.summary(metric.floor) if metric.floor else None
    return f"{text} (exact {floor.mean:.2g})" if floor else text


def _list_experiments(console: "Console") -> None:
    from rich import box
    from rich.table import Table

    from gpvi.experiments import EXPERIMENTS, PRESETS
    from gpvi.records import slug

    for experiment in EXPERIMENTS.values():
        table = Table(
            title=f"{experiment.name}: {experiment.title} ({experiment.source})",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
        )
        table.add_column("--method", no_wrap=True)
        for preset in PRESETS:
            table.add_column(preset, justify="center")
        available = {preset: experiment.recipes(preset) for preset in PRESETS}
        for label in dict.fromkeys(label for recipes in available.values() for label in recipes):
            table.add_row(slug(label), *("●" if label in available[p] else "" for p in PRESETS))
        console.print(table)
    for preset, meaning in PRESETS.items():
        console.print(f"  [bold]{preset:<6}[/bold] {meaning}", highlight=False)
    console.print()


def _list_methods(console: "Console") -> None:
    from rich import box
    from rich.table import Table

    from gpvi.methods import METHODS

    table = Table(title="methods", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("gpvi.", no_wrap=True)
    table.add_column("what it is for")
    table.add_column("new draws", justify="center")
    table.add_column("density", justify="center")
    table.add_column("cost of a step")
    table.add_column("reference")
    for method in METHODS:
        table.add_row(
            method.__name__,
            method.about.purpose,
            "●" if method.generative else "",
            "●" if method.density else "",
            method.about.cost,
            method.about.citation,
        )
    table.caption = "n draws in dimension d, k coordinates in the head; G is a gradient of log p"
    table.caption_justify = "left"
    console.print(table)


class _Bar:
    """A bar on standard error that vanishes when the work is done."""

    def start(self, total: int, label: str) -> None:
        """Open the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} % {task.fields[message]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(label, total=total, message="compiling")

    def update(self, done: int, message: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, message=message)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _in_words(error: Exception) -> str:
    """What went wrong and what to do, in a sentence or two."""
    if isinstance(error, GPVIError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Check the paths given."
    misuse = getattr(error, "format_message", None)
    if misuse is not None:
        return f"{misuse().rstrip('.') or 'no command given'} (see gpvi --help)."
    return f"unexpected {type(error).__name__}: {error}. Run it again with --debug for the trace."


def _complain(message: str) -> None:
    typer.echo(f"gpvi: {' '.join(message.split())}", err=True)
