"""`gpvi run`, `report` and `demo`: experiments, their records, and the page made from these.

An interrupted run resumes when the same command is given again: a row whose record is in the output directory, with
the same seeds and specification, is kept and not rerun, and an unfinished row resumes from its last save.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from gpvi.cli.app import SEEDS, AsJson, Bar, Out, app, complain, console
from gpvi.errors import InputError, OtherRunError, StorageError, UnknownOptionError
from gpvi.persistence.writing import check_writable, make_writable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpvi.progress import Meter
    from gpvi_paper.experiments import Experiment, Metric
    from gpvi_paper.records import Record

MOST_ACROSS = 6
"""Tables with more problems than this have one row per problem."""
WIDEST = 1_000
"""Of a table whose width is measured."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNFINISHED = ".unfinished"
"""Subdirectory of the output directory with the saves of unfinished rows."""
REFERENCES = ".references"
"""Subdirectory of the output directory with the long reference runs that all rows are compared with."""
DEMO_SEEDS = 3
DEMO_METHODS = {"energy": ("GPVI (default)",), "blr": ("GPVI (pathwise)", "Amortized SVGD", "SVGD")}


def _names() -> list[str]:
    from gpvi_paper.experiments import EXPERIMENTS

    return list(EXPERIMENTS)


def _presets() -> list[str]:
    from gpvi_paper.experiments import PRESETS

    return list(PRESETS)


def _labels(ctx: typer.Context) -> list[str]:
    """The rows of the experiments already on the command line, or of all experiments if there are none."""
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS
    from gpvi_paper.records import slug

    words = (*(ctx.params.get("experiments") or ()), *ctx.args)  # parsed, or not yet
    named = [word for word in words if word in EXPERIMENTS]
    labels = (
        slug(label)
        for name in named or EXPERIMENTS
        for preset in PRESETS
        for label in EXPERIMENTS[name].recipes(preset)
    )
    return list(dict.fromkeys(labels))


@app.command()
def run(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT",
            help="blr, energy, posteriordb: see gpvi list.",
            autocompletion=_names,
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="LABEL",
            help="A row, such as gpvi-pathwise, or a family, such as gpvi; default all. May be repeated.",
            autocompletion=_labels,
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
            help="Data directory, for experiments that read data; none are shipped.",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", metavar="", help="Rerun rows that already have a record."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run experiments; each method writes one record to the output directory.

    After Ctrl-C the same command resumes where it stopped.
    """
    if not 1 <= seeds <= SEEDS:
        raise InputError(f"--seeds is {seeds}; give 1 to {SEEDS:,}.")
    jobs = [
        (_prepared(e, data_dir, out), label)
        for e, label in _jobs(experiments, methods or [], preset)
    ]
    made = _run(jobs, preset, range(seeds), out, as_json=as_json, again=again)
    if not as_json:
        count = f"{len(made)} record{'s' * (len(made) > 1)}"
        typer.echo(f"{count} in {out}; gpvi report {out} makes a page of the records there")


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Directories or files that gpvi run wrote."),
    ],
    out: Out = Path("report"),
) -> None:
    """Make one self-contained HTML page from records.

    If a row has several records the newest is shown. Damaged records are named and skipped.
    """
    from gpvi_paper import records
    from gpvi_paper.report import write

    found = records.search(runs, progress=Bar())
    for what in found.damaged:
        complain(what)
    if not found.records:
        raise StorageError(f"there is no readable record in {', '.join(map(str, runs))}.")
    check_writable(out)
    typer.echo(write(found.records, out, unread=len(found.damaged), progress=Bar()))


@app.command()
def demo(out: Out = Path("report/demo")) -> None:
    """Train on four potentials and a linear regression, and write the page: a few minutes on two cores."""
    from gpvi_paper.experiments import experiment
    from gpvi_paper.report import write

    console().print(
        "[bold]GPVI with its defaults[/bold] on four two-dimensional potentials, then a Bayesian linear regression.\n"
    )
    potentials = [(experiment("energy"), label) for label in DEMO_METHODS["energy"]]
    regressions = [(experiment("blr"), label) for label in DEMO_METHODS["blr"]]
    made = _run(potentials, "demo", range(1), out / "runs", again=True)
    made += _run(regressions, "demo", range(DEMO_SEEDS), out / "runs", again=True)
    typer.echo(write(made, out))


def _prepared(experiment: "Experiment", data_dir: Path | None, out: Path) -> "Experiment":
    """The experiment with its data, and a place beside the records for what is computed only once."""
    from gpvi_paper.experiments import KeepsReference, ReadsData

    if isinstance(experiment, ReadsData):
        experiment = experiment.reading(data_dir)
    if isinstance(experiment, KeepsReference):
        experiment = experiment.keeping(out / REFERENCES)
    return experiment


def _jobs(
    names: Iterable[str], methods: Sequence[str], preset: str
) -> list[tuple["Experiment", str]]:
    """The requested rows; every name must match in at least one experiment."""
    from gpvi_paper.experiments import PRESETS, experiment, matching
    from gpvi_paper.records import slug

    chosen = [experiment(name) for name in dict.fromkeys(name.lower() for name in names)]
    if preset not in PRESETS:
        raise UnknownOptionError("preset", preset, PRESETS)
    for e in chosen:
        if not e.recipes(preset):
            raise UnknownOptionError(f"preset for {e.name}:", preset, filter(e.recipes, PRESETS))
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
    """Run the jobs that are not yet done, and write each record as soon as it is made."""
    from gpvi_paper import records

    finished: list[tuple[Record, Path, bool]] = []
    explained: set[str] = set()
    make_writable(out)
    try:
        for number, (experiment, label) in enumerate(jobs, 1):
            kept = None if again else _kept(experiment, label, preset, seeds, out)
            if kept is None:
                bar = Bar(f"{number}/{len(jobs)}" if len(jobs) > 1 else "")
                meter = False if as_json else bar
                record = _made(experiment, label, preset, seeds, meter, out, again=again)
                kept = record, records.write(record, out)
                finished.append((*kept, False))
            else:
                finished.append((*kept, True))
            if not as_json:
                _show(experiment, *finished[-1], explain=experiment.name not in explained)
                explained.add(experiment.name)
    except KeyboardInterrupt:
        saved = [f"{len(finished)} of {len(jobs)} records"] if finished else []
        saved += ["the unfinished row"] if (out / UNFINISHED).exists() else []
        done = (
            f"kept {' and '.join(saved)} in {out}; the same command resumes from there"
            if saved
            else "nothing was finished"
        )
        complain(f"interrupted: {done}.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps([_as_json(*one) for one in finished], indent=1))
    return [record for record, _, _ in finished]


def _made(
    experiment: "Experiment",
    label: str,
    preset: str,
    seeds: Sequence[int],
    meter: "bool | Meter",
    out: Path,
    *,
    again: bool,
) -> "Record":
    """Run a row, resuming if it was interrupted; rows that take only seconds are not saved."""
    from gpvi_paper import records
    from gpvi_paper.experiments.unfinished import resumable

    if preset == "smoke":
        return experiment.run(label, preset, tuple(seeds), meter)
    place = out / UNFINISHED / f"{experiment.name}.{preset}.{records.slug(label)}.{len(seeds)}"
    if again:
        shutil.rmtree(place, ignore_errors=True)

    def run() -> "Record":
        with resumable(place):
            return experiment.run(label, preset, tuple(seeds), meter)

    try:
        return run()
    except OtherRunError:
        complain(f"{place} was saved by another recipe or version; the row starts over.")
        shutil.rmtree(place)
        return run()
    finally:
        if place.parent.is_dir() and not any(place.parent.iterdir()):
            place.parent.rmdir()


def _kept(
    experiment: "Experiment", label: str, preset: str, seeds: Sequence[int], out: Path
) -> tuple["Record", Path] | None:
    """The newest record of exactly this run, from any commit."""
    from gpvi import specs
    from gpvi_paper import records

    wanted = json.loads(json.dumps(experiment.recipes(preset)[label].to_json()))
    stem = f"{experiment.name}.{preset}.{records.slug(label)}."
    found: list[tuple[Record, Path]] = []
    for path in sorted(out.glob(f"{stem}*.json")) if out.is_dir() else ():
        try:
            record = records.read(path)
        except StorageError as error:
            complain(f"{error} The row counts as not done.")
            continue
        same = record.method == label and record.seeds == tuple(seeds)
        with suppress(StorageError):  # of a specification that this version does not know
            if same and specs.completed(record.specification) == wanted:
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


def _show(
    experiment: "Experiment", record: "Record", path: Path, kept: bool, *, explain: bool
) -> None:
    """A record as a table, with the meaning of its columns if not already shown, and its file."""
    screen = console()
    seeds = f"{len(record.seeds)} seed{'s' * (len(record.seeds) > 1)}"
    title = f"{experiment.title} · {record.method} · {record.preset} · {seeds}"
    screen.print(f"[bold]{title}[/bold]", highlight=False)
    several = len(experiment.cases) > 1
    cells = _cells(experiment, record)
    screen.print(_fitting(screen, experiment, cells) if several else _explained(cells))
    if several and explain and cells:
        meanings = "; ".join(f"{metric.label}: {metric.meaning}" for metric in cells)
        screen.print(meanings, style="dim", highlight=False, markup=False)
    for note in record.notes:
        screen.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False)
    when = f", kept from {record.started[:16].replace('T', ' ')} UTC; --again reruns it"
    screen.print(
        f"{path}{when if kept else ''}\n",
        style="dim",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _cells(experiment: "Experiment", record: "Record") -> dict["Metric", dict[str, str]]:
    """Metric → problem → text, without empty cells; with many problems only the metrics of the first table."""
    beside = {m.floor for m in experiment.metrics} if len(experiment.cases) == 1 else set()
    found = {
        metric: {
            title: text
            for case, title in experiment.cases.items()
            if (text := _cell(record, case, metric))
        }
        for metric in experiment.metrics
        if metric.key not in beside
    }
    many = len({title for texts in found.values() for title in texts}) > MOST_ACROSS
    first = experiment.tables[0].metrics
    return {m: texts for m, texts in found.items() if texts and not (many and m.key not in first)}


def _explained(cells: Mapping["Metric", Mapping[str, str]]) -> "Table":
    """For a single problem: one row per metric, with its meaning."""
    table = _plain()
    for metric, texts in cells.items():
        table.add_row(metric.label, *texts.values(), metric.meaning)
    table.columns[-1].style = "dim"
    return table


def _fitting(
    screen: "Console", experiment: "Experiment", cells: Mapping["Metric", Mapping[str, str]]
) -> "Table":
    """Problems as columns, problems as rows, or one line per number: the first layout that fits the screen."""
    titles = [
        title
        for title in experiment.cases.values()
        if any(title in texts for texts in cells.values())
    ]
    numbers = [[texts.get(title, "") for title in titles] for texts in cells.values()]
    labels = [metric.label for metric in cells]
    turned = [list(line) for line in zip(*numbers, strict=True)]
    candidates = [_table(titles, labels, numbers)]
    if len(titles) <= MOST_ACROSS:
        candidates.insert(0, _table(labels, titles, turned))
    listed = _plain()
    for title in titles:
        listed.add_row(f"[bold]{escape(title)}[/bold]")
        for metric, texts in cells.items():
            if title in texts:
                listed.add_row(f"  {metric.label}", texts[title])
    return next((t for t in candidates if _broad(screen, t) <= screen.width), listed)


def _broad(screen: "Console", table: "Table") -> int:
    """The smallest width at which no number is wrapped."""
    return screen.measure(table, options=screen.options.update(width=WIDEST)).minimum


def _table(names: Sequence[str], heads: Sequence[str], columns: Sequence[Sequence[str]]) -> "Table":
    """A table whose numbers are not wrapped; its headings may be."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True, min_width=max(map(len, names)))
    for head, texts in zip(heads, columns, strict=True):
        table.add_column(escape(head), justify="right", min_width=max(map(len, texts)))
    for name, *texts in zip(names, *columns, strict=True):
        table.add_row(escape(name), *texts)
    return table


def _plain() -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2))
    for _ in range(3):
        table.add_column()
    return table


def _cell(record: "Record", case: str, metric: "Metric") -> str:
    """Mean ± sd; for a single problem also the value for exact draws, if not zero."""
    summary = record.summary(f"{case}/{metric.key}".strip("/"))
    if summary is None:
        return ""
    if metric.style == "seconds":
        return f"{summary.mean:,.0f}"
    mean, sd, power = summary.rounded()
    text = f"{mean} ± {sd}" if sd else mean
    if power:
        exponent = f"·10{str(power).translate(SUPERSCRIPTS)}"
        text = f"({text}){exponent}" if sd else text + exponent
    floor = record.summary(metric.floor) if metric.floor else None
    if floor:
        text += f" (exact {floor.mean:.2g})"
    return text
