"""`gpvi run`: run experiments, and write a record of each row.

An interrupted run resumes when the same command is given again. A row whose record is already in the output
directory, with the same seeds and specification, is not run again. An unfinished row resumes from its last checkpoint.
"""

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpvi.cli.application import AsJson, Bar, Out, app, complain
from gpvi.errors import InputError, OtherRunError, StorageError, UnknownOptionError
from gpvi.persistence.writing import make_writable
from gpvi.specs import SEEDS
from gpvi_paper.cli._tables import print_comparison, print_record

if TYPE_CHECKING:
    from gpvi.progress import Meter
    from gpvi_paper.experiments import Experiment
    from gpvi_paper.records import Record

UNFINISHED = ".unfinished"
"""Subdirectory of the output directory with the checkpoints of unfinished rows."""
REFERENCES = ".references"
"""Subdirectory of the output directory with the long reference runs that all rows are compared with."""


def _names() -> list[str]:
    from gpvi_paper.experiments import EXPERIMENTS

    return list(EXPERIMENTS)


def _presets() -> list[str]:
    from gpvi_paper.experiments import PRESETS

    return list(PRESETS)


def _labels(ctx: typer.Context) -> list[str]:
    """Return the rows of the experiments that are already on the command line, or of all experiments."""
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
        str, typer.Option(help="smoke, demo, best, paper or authors.", autocompletion=_presets)
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
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="CASE",
            help="Only this case: split of an image set, rings of frontier; default all. May be repeated.",
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
        (_prepared(e, data_dir, out, cases or []), label)
        for e, label in _jobs(experiments, methods or [], preset)
    ]
    made = _run(jobs, preset, range(seeds), out, as_json=as_json, again=again)
    if not as_json:
        count = f"{len(made)} record{'s' * (len(made) > 1)}"
        typer.echo(f"{count} in {out}; gpvi report {out} makes a page of the records there")


def _prepared(
    experiment: "Experiment", data_dir: Path | None, out: Path, cases: Sequence[str]
) -> "Experiment":
    """Return the experiment with its data, its cases, and a directory for the reference that it computes only once."""
    from gpvi_paper.experiments import KeepsReference, ReadsData, RunsCases

    if cases and not isinstance(experiment, RunsCases):
        raise InputError(f"{experiment.name} runs all of its cases together: omit --case.")
    if cases and isinstance(experiment, RunsCases):
        experiment = experiment.only(cases)
    if isinstance(experiment, ReadsData):
        experiment = experiment.reading(data_dir)
    if isinstance(experiment, KeepsReference):
        experiment = experiment.keeping(out / REFERENCES)
    return experiment


def _jobs(
    names: Iterable[str], methods: Sequence[str], preset: str
) -> list[tuple["Experiment", str]]:
    """Return the requested rows. Every method named must be in at least one of the experiments."""
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
    """Run the rows that have no record yet, write each record as soon as it is made, and return all records."""
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
                explain = experiment.name not in explained
                print_record(experiment, *kept, kept=finished[-1][2], explain=explain)
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
    else:
        for experiment in dict.fromkeys(experiment for experiment, _ in jobs):
            of_it = [one for one, _, _ in finished if one.experiment == experiment.name]
            if len(of_it) > 1:
                print_comparison(experiment, of_it)
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
    """Run a row, from its checkpoint if it was interrupted. Rows of the preset smoke have no checkpoints."""
    from gpvi_paper import records
    from gpvi_paper.experiments.unfinished import resumable

    if preset == "smoke":
        return experiment.run(label, preset, tuple(seeds), meter)
    row = (experiment.name, preset, records.slug(label), str(len(seeds)))
    apart = () if experiment.cases == type(experiment).cases else experiment.cases
    place = out / UNFINISHED / ".".join((*row, *apart))
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
    """Return the newest record with this label, preset, seeds and specification, and its file, if there is one."""
    from gpvi import specs
    from gpvi_paper import records
    from gpvi_paper.experiments import RunsCases

    cases = experiment.problems(label, preset) if isinstance(experiment, RunsCases) else ()
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
        same &= set(cases) <= set(map(records.case_of, record.rows))
        with suppress(StorageError):  # this version does not know the specification
            if same and specs.completed(record.specification) == wanted:
                found.append((record, path))
    return max(found, key=lambda one: one[0].started, default=None)


def _as_json(record: "Record", path: Path, kept: bool) -> dict[str, Any]:
    """Return a record for JSON, without its curves and arrays, which are in its file."""
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
