"""Records: what a run measured, with what settings and on which machine; one JSON file per run.

A record holds measurements, never conclusions: `rows` has one value for each seed, and means and deviations are derived
where they are shown. It names no directory, host or user. A number that is not finite is written as null and read as
NaN. pydantic checks what is read against the types below.
"""

import dataclasses
import datetime
import json
import math
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from pydantic import BeforeValidator, PlainSerializer, PlainValidator, TypeAdapter
from pydantic import StrictFloat as Float
from pydantic import StrictInt as Int
from pydantic import StrictStr as Str

from gpvi.errors import StorageError
from gpvi.persistence import untrusted
from gpvi.persistence.writing import atomic, unwritable
from gpvi.progress import Meter, as_meter

FORMAT = "gpvi-record"
FORMAT_VERSION = 1
CURVE_POINTS = 200
"""A training curve keeps at most this many points."""
SMALL, LARGE = 1e-4, 1e5
"""Numbers below the first, and from the second on, are shown with a power of ten."""
ROUNDING = 1e-9
"""A deviation below this share of the mean is due to rounding and is not shown."""
MOST_DIGITS = 5
"""Significant digits of a mean that is shown."""
_LARGEST = 64 * 2**20


class ForeignFileError(StorageError):
    """A file is valid JSON, but not a record."""


def _nan_for_null(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return [math.nan if value is None else value for value in values]


Floats = Annotated[tuple[Float, ...], BeforeValidator(_nan_for_null)]


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where a run took place."""

    library: Str
    commit: Str | None
    """Of the checkout the library was run from; None for an installed one."""
    python: Str
    jax: Str
    system: Str
    cpus: Int
    device: Str


@dataclasses.dataclass(frozen=True)
class Curve:
    """A reported term along the training: `values[seed][i]` is its mean over the steps up to `steps[i]`."""

    steps: tuple[Int, ...]
    values: tuple[Floats, ...]


@dataclasses.dataclass(frozen=True)
class _StoredArray:
    """An array as a file has it."""

    shape: tuple[Annotated[Int, pydantic.Field(ge=0)], ...]
    values: Floats

    @classmethod
    def of(cls, array: np.ndarray) -> "_StoredArray":
        return cls(array.shape, tuple(array.ravel().tolist()))

    def array(self) -> np.ndarray:
        if len(self.values) != math.prod(self.shape):
            raise ValueError(f"{len(self.values)} values for the shape {list(self.shape)}")
        return np.array(self.values).reshape(self.shape)


def _as_array(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else _ARRAY.validate_python(value).array()


_ARRAY = TypeAdapter(_StoredArray)
Stored = Annotated[np.ndarray, PlainValidator(_as_array), PlainSerializer(_StoredArray.of)]


@dataclasses.dataclass(frozen=True)
class Record:
    """One method on one experiment under one preset, for several seeds."""

    __pydantic_config__ = pydantic.ConfigDict(ser_json_inf_nan="null")
    experiment: Str
    preset: Str
    method: Str
    """The method's label in this experiment."""
    specification: dict[str, Any]
    """All that was chosen: the method (`gpvi.specs.to_json`), steps, schedule, batch size and start."""
    seeds: tuple[Int, ...]
    command: Str
    started: Str
    """UTC, ISO 8601."""
    seconds: Float
    """Wall time of the whole run: compiling, training and measuring."""
    environment: Environment
    rows: dict[str, Floats]
    """Metric → one value for each seed."""
    curves: dict[str, Curve] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Stored] = dataclasses.field(default_factory=dict)
    """What the figures need, rounded."""
    notes: tuple[Str, ...] = ()

    def __post_init__(self):
        """Check what types cannot say."""
        datetime.datetime.fromisoformat(self.started)
        if not self.seeds:
            raise ValueError("seeds is empty")
        for name, values in self.rows.items():
            if len(values) != len(self.seeds):
                raise ValueError(
                    f"rows.{name} has {len(values)} values for {len(self.seeds)} seeds"
                )
        for name, curve in self.curves.items():
            if [len(line) for line in curve.values] != [len(curve.steps)] * len(self.seeds):
                raise ValueError(
                    f"curves.{name} does not have {len(curve.steps)} values for each of {len(self.seeds)} seeds"
                )

    def joined(self, earlier: "Record") -> "Record":
        """The record, with the cases that only an earlier run of the same recipe and seeds has."""
        if (earlier.specification, earlier.seeds) != (self.specification, self.seeds):
            return self
        missing = set(map(case_of, earlier.rows)) - set(map(case_of, self.rows))

        def filled(own: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
            return own | {name: other for name, other in others.items() if case_of(name) in missing}

        return dataclasses.replace(
            self,
            rows=filled(self.rows, earlier.rows),
            curves=filled(self.curves, earlier.curves),
            arrays=filled(self.arrays, earlier.arrays),
        )

    def summary(self, row: str) -> "Summary | None":
        """Mean, deviation and count of a row over its seeds."""
        return Summary.of(self.rows[row]) if row in self.rows else None


def case_of(row: str) -> str:
    """The case of a row, "split" of "split/ece"; "" if it has none."""
    return row.rpartition("/")[0]


class Summary(NamedTuple):
    """Mean, sample standard deviation (NaN for one seed) and count over the seeds with a finite value."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary | None":
        """None where no value is finite."""
        finite = np.array([value for value in values if math.isfinite(value)])
        if not len(finite):
            return None
        sd = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
        return cls(float(finite.mean()), sd, len(finite))

    def rounded(self, scale: float = 1.0) -> "Rounded":
        """As it is shown: the deviation has one digit, or two where the first is a 1, and the mean as many decimals."""
        mean, sd = scale * self.mean, scale * self.sd
        spread = sd if sd > ROUNDING * abs(mean) else 0.0
        size = max(abs(mean), spread)
        if 0 < size < SMALL or LARGE <= size < math.inf:
            power = math.floor(math.log10(size))
            return Rounded(
                decimal(mean / 10.0**power, 1),
                decimal(spread / 10.0**power, 1) if spread else "",
                power,
            )
        if not spread:
            return Rounded(decimal(mean, decimals(mean, 3)), "")
        places = min(
            decimals(spread, 2 if f"{spread:e}"[0] == "1" else 1), decimals(mean, MOST_DIGITS)
        )
        return Rounded(decimal(mean, places), decimal(spread, places))


class Rounded(NamedTuple):
    """A mean and its deviation, empty where there is none, both times ten to the power."""

    mean: str
    sd: str
    power: int = 0


def decimals(value: float, digits: int) -> int:
    """The number of decimals that show `digits` significant digits of the value, at most six."""
    if value == 0 or not math.isfinite(value):
        return 0
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), 6)


def decimal(value: float, places: int) -> str:
    """The value to so many decimals, with commas from 10,000 on and a minus sign."""
    comma = "," if abs(value) >= 10_000 else ""
    return f"{value:{comma}.{places}f}".replace("-", "−")


def thinned(histories: Sequence[np.ndarray], points: int = CURVE_POINTS) -> Curve:
    """A curve from one value for each step and seed: the means of at most `points` stretches of steps."""
    values = np.stack(histories)
    edges = np.unique(np.linspace(0, values.shape[1], min(points, values.shape[1]) + 1).astype(int))
    means = np.add.reduceat(values, edges[:-1], axis=1) / np.diff(edges)
    return Curve(
        tuple(edges[1:].tolist()),
        tuple(tuple(significant(v) for v in row) for row in means.tolist()),
    )


def significant(value: float, digits: int = 6) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def now() -> str:
    """The current time as it is written in records."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def environment() -> Environment:
    """The environment of this process."""
    import jax

    import gpvi

    affinity = getattr(os, "sched_getaffinity", None)
    return Environment(
        library=gpvi.__version__,
        commit=_commit(),
        python=platform.python_version(),
        jax=jax.__version__,
        system=f"{platform.system()} {platform.machine()}",
        cpus=len(affinity(0)) if affinity else (os.cpu_count() or 1),
        device=jax.devices()[0].device_kind,
    )


def slug(label: str) -> str:
    """A label as a file name or a word of the command line: "GPVI (functional, helper)" → gpvi-functional-helper."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def write(record: Record, directory: str | os.PathLike[str]) -> Path:
    """Write the record to a new file in `directory`; a write that fails leaves no file."""
    folder = Path(directory)
    fields = json.loads(_RECORD.dump_json(record))
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    content = json.dumps(header | fields, ensure_ascii=False, indent=1)
    content = re.sub(r"\n\s+(?=-?\d|null|\])", " ", content)  # numbers of a list on one line
    moment = re.sub(r"[^0-9T]", "", record.started.partition("+")[0])
    path = folder / f"{record.experiment}.{record.preset}.{slug(record.method)}.{moment}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while path.exists():
            path = path.with_name(f"{path.name.removesuffix('.json')}-{secrets.token_hex(2)}.json")
        with atomic(path) as part:
            part.write_text(content + "\n", "utf-8")
    except OSError as error:
        raise unwritable(folder, error) from error
    return path


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record and check every field."""
    file = Path(path)
    try:
        document = untrusted.json_value(untrusted.content(file, _LARGEST))
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise StorageError(
            f"{file} is not JSON, so it is damaged or no record: {str(error)[:200]}. Remove it, or run it again."
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ForeignFileError(f"{file} is not a record of gpvi: its format is not {FORMAT!r}.")
    if document.get("format_version") != FORMAT_VERSION:
        raise StorageError(
            f"{file} has format version {repr(document.get('format_version'))[:40]}; this gpvi reads "
            f"{FORMAT_VERSION}. Upgrade gpvi, or run the experiment again."
        )
    try:
        return _RECORD.validate_python(document)
    except pydantic.ValidationError as error:
        why = _reasons(error)[:500]
        raise StorageError(f"{file} is damaged: {why}. Remove it, or run it again.") from error


def _reasons(error: pydantic.ValidationError) -> str:
    """Where the content is wrong, and why."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults[:3])


class Search(NamedTuple):
    """The records found, and the files that could not be read."""

    records: list[Record]
    """Oldest first."""
    damaged: list[str]
    """For each damaged file of a directory, what is wrong with it."""


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Record]:
    """The records in these files and, at any depth, in these directories, oldest first; a damaged one is an error."""
    records, damaged = search(paths)
    if damaged:
        raise StorageError(damaged[0])
    return records


def search(paths: Iterable[str | os.PathLike[str]], progress: bool | Meter = False) -> Search:
    """The records in these files and directories, and the damaged ones of the directories.

    Other JSON files in a directory are skipped; a file that is named must be a record.
    """
    places = list(map(Path, paths))
    files = [file for place in places for file in _files(place)]
    named = {place for place in places if not place.is_dir()}
    records: list[Record] = []
    damaged: list[str] = []
    meter = as_meter(progress)
    meter.start(len(files), "records")
    try:
        for done, file in enumerate(files):
            meter.update(done, file.name)
            try:
                records.append(read(file))
            except StorageError as error:
                if file in named:
                    raise
                if not isinstance(error, ForeignFileError):
                    damaged.append(str(error))
    finally:
        meter.close()
    if not records and not damaged:
        raise StorageError(
            f"no records in {', '.join(map(str, places))}. Make some first: gpvi run blr --out DIR"
        )
    return Search(sorted(records, key=lambda record: record.started), damaged)


def _files(place: Path) -> list[Path]:
    """The file itself, or the JSON files of a directory."""
    if not place.exists():
        raise StorageError(
            f"{place} does not exist. Make records first: gpvi run blr --out {place}"
        )
    if not place.is_dir():
        return [place]
    return sorted(p for p in place.rglob("*.json") if not _hidden(p.relative_to(place)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest record of each experiment, preset and method, joined with cases that were run apart."""
    newest: dict[tuple[str, str, str], Record] = {}
    for record in sorted(records, key=lambda r: r.started):
        row = (record.experiment, record.preset, record.method)
        newest[row] = record.joined(newest[row]) if row in newest else record
    return list(newest.values())


_RECORD = TypeAdapter(Record)


def _commit() -> str | None:
    """The commit of the checkout this file is tracked in, with "+changes" if the source was edited since."""
    source = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=source, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__).relative_to(source)))
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
