"""`gpvi fit`: train on a log-density in a Python file, and write the posterior, its diagnosis and its draws."""

import csv
import dataclasses
import json
import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from gpvi.cli.application import AsJson, Bar, Out, app, complain, wrapped
from gpvi.errors import InputError, StorageError, quietly
from gpvi.persistence.writing import atomic, check_writable
from gpvi.specs import SEEDS

if TYPE_CHECKING:
    from gpvi.diagnostics.diagnosis import Diagnosis
    from gpvi.methods import Method
    from gpvi.posterior.posterior import Posterior
    from gpvi.posterior.summary import Summary
    from gpvi.targets.target import Target

DRAWS = 1_000
NOT_TRUSTED = 3
"""The exit code if the verdict is "do not trust"; everything is written all the same."""
POSTERIOR, ARRAYS, TABLE = "posterior.gpvi", "draws.npz", "draws.csv"
"""Files written to the output directory."""


def _method_names() -> list[str]:
    from gpvi.methods import METHODS
    from gpvi.specs import hyphenated

    return [hyphenated(method.__name__) for method in METHODS]


@app.command()
def fit(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]",
            help="A log-density of one point (log_density by default), a NumPyro model without arguments, a PyMC "
            "model, or a gpvi.Target.",
        ),
    ],
    dim: Annotated[
        int | None, typer.Option(metavar="D", help="Dimension of the point, for a log-density.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="gpvi, svgd, nuts, mean-field-vi (or MeanFieldVI), …: see gpvi list methods.",
            autocompletion=_method_names,
        ),
    ] = "gpvi",
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Training steps; by default until it fits.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Random seed: the same seed gives the same posterior, another seed another attempt.",
        ),
    ] = 0,
    draws: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Draws to write; {DRAWS:,} by default, or all particles."),
    ] = None,
    out: Out = Path("posterior"),
    as_json: AsJson = False,
) -> None:
    """Train on the log-density in a Python file (which is run), diagnose the result, and save it with its draws.

    The log-density is checked first. The exit code is 3 if the verdict is "do not trust".
    """
    import jax

    from gpvi.cli import userfile
    from gpvi.training.fit import fit as train

    chosen = _method(method)
    if not 0 <= seed < SEEDS:
        raise InputError(f"--seed is {seed}; give a whole number from 0 to {SEEDS - 1:,}.")
    check_key = jax.random.fold_in(jax.random.key(seed), 1)
    _check_draws(chosen, draws)
    path, _ = userfile.split(file)
    target = userfile.target(file, dim)
    check_writable(out)
    _check_replaceable(out)
    with userfile.blaming(path):
        _check_density(target, check_key)
    fit_key, look_key, draw_key, read_key = jax.random.split(jax.random.key(seed), 4)
    with quietly(), userfile.blaming(path):
        posterior = train(
            target, chosen, key=fit_key, steps=steps, progress=False if as_json else Bar()
        )
        diagnosis = posterior.diagnose(key=look_key)
    if not as_json:
        typer.echo(wrapped(f"{posterior.training.chosen}\n\n{diagnosis}\n"))
        typer.echo()
    posterior.save(out / POSTERIOR)
    with userfile.blaming(path):
        summary = posterior.summary(key=read_key)
        named = _named(posterior, _count(posterior, draws), draw_key)
    files = [out / POSTERIOR, *_write(named, out)]
    if as_json:
        typer.echo(json.dumps(_as_json(posterior, diagnosis, summary, files), indent=1))
    else:
        typer.echo(f"{summary}\n")
        for written in files:
            typer.echo(written)
    if posterior.training.interrupted:
        complain(f"interrupted: the posterior after {posterior.training.steps} steps is in {out}.")
        raise typer.Exit(130)
    if diagnosis.verdict.level == "do not trust":
        raise typer.Exit(NOT_TRUSTED)


def _check_density(target: "Target", key: Any) -> None:
    """Raise the first error that the checks of `gpvi.Target.debug` find; print what else they find."""
    found = target.debug(key=key).findings
    for finding in found:
        if finding.level == "error":
            raise InputError(f"{finding.what}. {finding.remedy}")
    for finding in found:
        complain(f"{finding.level}: {finding.what}. {finding.remedy}")


def _method(name: str) -> "Method":
    from gpvi.methods import as_method

    return as_method(name)


def _check_draws(method: "Method", asked: int | None) -> None:
    """Raise an error if more draws are requested than the method ends with."""
    if asked is None:
        return
    if asked < 1:
        raise InputError(f"--draws is {asked}; give 1 or more.")
    fixed = method.fixed_draws
    if fixed is not None and asked > fixed:
        raise InputError(
            f"--draws is {asked}, but {type(method).__name__} ends with {fixed:,} and cannot make more. Ask for at "
            "most that many, or use a --method that draws without limit, such as gpvi."
        )


def _check_replaceable(out: Path) -> None:
    """Raise an error if something that may not be replaced has the name of a file to be written."""
    from gpvi.persistence import format as storage

    storage.check_replaceable(out / POSTERIOR)
    for name in (ARRAYS, TABLE):
        if (out / name).is_dir():
            raise StorageError(
                f"{out / name} is a directory, but the draws would be written there. Move it, or choose another --out "
                "directory."
            )


def _count(posterior: "Posterior", asked: int | None) -> int:
    """Return how many draws to write: as requested, but no more than there are particles."""
    wanted = asked or DRAWS
    return wanted if posterior.method.generative else min(wanted, len(posterior.particles))


def _named(posterior: "Posterior", n: int, key: Any) -> dict[str, np.ndarray]:
    """Return n draws of each named part of the posterior, along the first axis."""
    from gpvi.posterior import arviz as export

    return export.flat(posterior.draws(n, key=key))


def _write(named: dict[str, np.ndarray], out: Path) -> tuple[Path, Path]:
    """Write the draws as arrays, and as a table with one column per number. Each file is written atomically."""
    from gpvi.targets.coordinate_names import entry_names

    arrays, table = out / ARRAYS, out / TABLE
    columns = {
        column: numbers
        for name, values in named.items()
        for column, numbers in zip(
            entry_names(name, values.shape[1:]), values.reshape(len(values), -1).T, strict=True
        )
    }
    try:
        with atomic(arrays) as part, zipfile.ZipFile(part, "w") as archive:
            for name, values in named.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
        with atomic(table) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(v.tolist() for v in columns.values()), strict=True))
    except OSError as error:
        raise StorageError(
            f"the draws cannot be written to {out}: {error.strerror}. Choose another --out directory."
        ) from error
    return arrays, table


def _as_json(
    posterior: "Posterior", diagnosis: "Diagnosis", summary: "Summary", files: list[Path]
) -> dict[str, Any]:
    """Return the results for JSON, without the draws."""
    numbers = {
        field.name: _number(value)
        for field in dataclasses.fields(diagnosis)
        if isinstance(value := getattr(diagnosis, field.name), int | float)
    }
    return {
        "verdict": diagnosis.verdict.level,
        "because": str(diagnosis.verdict),
        "diagnosis": numbers,
        "summary": {
            name: {column: _number(values[row]) for column, values in summary.columns.items()}
            for row, name in enumerate(summary.names)
        },
        "steps": posterior.training.steps,
        "seconds": posterior.training.seconds,
        "notes": list(posterior.training.notes),
        "files": [str(path) for path in files],
    }


def _number(value: float | int) -> float | int | None:
    """Return None for infinities and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
