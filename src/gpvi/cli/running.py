"""`gpvi run`, `report` and `demo`: experiments, their records, and the page made from these.

A run that was interrupted goes on when the same command is given again: a row whose record is in the output directory,
with the same seeds and the same specification, is kept and not run anew.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpvi.cli.app import AsJson, Bar, Out, app, complain, console
from gpvi.errors import InputError, StorageError, UnknownOptionError

if TYPE_CHECKING:
    from gpvi.experiments import Experiment, Metric
    from gpvi.records import Record

MOST_ACROSS = 6
"""A table with more problems than this has them as rows."""
REFERENCES = ".references"
"""Where long runs that all rows are compared with are kept, in the output directory."""
DEMO_SEEDS = 3
DEMO_METHODS = {"energy": ("GPVI (default)",), "blr": ("GPVI (pathwise)", "Amortized SVGD", "SVGD")}


def _names() -> list[str]:
    from gpvi.experiments import EXPERIMENTS

    return list(EXPERIMENTS)


def _presets() -> list[str]:
    from gpvi.experiments import PRESETS

    return list(PRESETS)


@app.command()
def run(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT...",
            help="blr, energy, posteriordb: see gpvi list.",
            autocompletion=_names,
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="LABEL",
            help="A row, such as gpvi-pathwise, or a family, such as gpvi; all of them by default. May be repeated.",
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="smoke, demo, best or paper.", autocompletion=_presets)
    ] = "best",
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
    again: Annotated[
        bool, typer.Option("--again", help="Run also what the output directory has a record of.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run experiments; each method leaves one record in the output directory.

    After Ctrl-C the same command goes on where it stopped: rows with a record there are kept.
    """
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; give 1 or more.")
    jobs = [
        (_prepared(e, data_dir, out), label)
        for e, label in _jobs(experiments, methods or [], preset)
    ]
    _run(jobs, preset, range(seeds), out, as_json=as_json, again=again)


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

    console().print(
        "[bold]GPVI with its defaults[/bold] on four two-dimensional potentials, then a Bayesian linear regression.\n"
    )
    potentials = [(experiment("energy"), label) for label in DEMO_METHODS["energy"]]
    regressions = [(experiment("blr"), label) for label in DEMO_METHODS["blr"]]
    made = _run(potentials, "demo", range(1), out / "runs", again=True)
    made += _run(regressions, "demo", range(DEMO_SEEDS), out / "runs", again=True)
    typer.echo(write(made, out))


def _prepared(experiment: "Experiment", data_dir: Path | None, out: Path) -> "Experiment":
    """With its data, and a place beside the records for what it computes once."""
    from gpvi.experiments import KeepsReference, ReadsData

    if isinstance(experiment, ReadsData):
        experiment = experiment.reading(data_dir)
    if isinstance(experiment, KeepsReference):
        experiment = experiment.keeping(out / REFERENCES)
    return experiment


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
    again: bool = False,
) -> list["Record"]:
    """Run the jobs in turn, less those already done, and write each record as soon as it is made."""
    from gpvi import records

    finished: list[tuple[Record, Path, bool]] = []
    records.prepare(out)
    try:
        for number, (experiment, label) in enumerate(jobs, 1):
            kept = None if again else _kept(experiment, label, preset, seeds, out)
            if kept is None:
                bar = Bar(f"{number}/{len(jobs)}" if len(jobs) > 1 else "")
                record = experiment.run(label, preset, tuple(seeds), False if as_json else bar)
                kept = record, records.write(record, out)
                finished.append((*kept, False))
            else:
                finished.append((*kept, True))
            if not as_json:
                _show(experiment, *finished[-1])
    except KeyboardInterrupt:
        done = (
            f"{len(finished)} of {len(jobs)} records kept in {out}; the same command goes on from there"
            if finished
            else "nothing was finished"
        )
        complain(f"interrupted: {done}.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps([_as_json(*one) for one in finished], indent=1))
    return [record for record, _, _ in finished]


def _kept(
    experiment: "Experiment", label: str, preset: str, seeds: Sequence[int], out: Path
) -> tuple["Record", Path] | None:
    """The newest record of just this run, whatever commit made it."""
    from gpvi import records

    wanted = json.loads(json.dumps(experiment.recipes(preset)[label].to_json()))
    stem = f"{experiment.name}.{preset}.{records.slug(label)}."
    found: list[tuple[Record, Path]] = []
    for path in sorted(out.glob(f"{stem}*.json")) if out.is_dir() else ():
        try:
            record = records.read(path)
        except StorageError as error:
            complain(f"{error} It is not counted as done.")
            continue
        same = record.method == label and record.seeds == tuple(seeds)
        if same and record.specification == wanted:
            found.append((record, path))
    return max(found, key=lambda one: one[0].started, default=None)


def _as_json(record: "Record", path: Path, kept: bool) -> dict[str, Any]:
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
        "kept": kept,
    }


def _show(experiment: "Experiment", record: "Record", path: Path, kept: bool) -> None:
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
            table.add_column(title, justify="right", overflow="fold")
        if len(experiment.cases) == 1:
            table.add_column("", style="dim")
        for metric, cells in rows.items():
            table.add_row(metric.label, *cells, *([metric.meaning] if len(cells) == 1 else []))
    screen = console()
    screen.print(table)
    if kept:
        screen.print(
            f"[dim]kept from {record.started[:16].replace('T', ' ')} UTC; --again runs it anew[/dim]",
            highlight=False,
        )
    for note in record.notes:
        screen.print(f"[yellow]note:[/yellow] {note}", highlight=False)


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
