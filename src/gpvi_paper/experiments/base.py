"""What an experiment is: recipes by label and preset, metrics, the paper's figures, and a `run` that makes a record."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import optax

from gpvi import specs
from gpvi.errors import InputError, UnknownOptionError
from gpvi.methods import Method
from gpvi.posterior.history import Training
from gpvi.progress import Meter, as_meter
from gpvi_paper import records
from gpvi_paper.records import Record

PRESETS: dict[str, str] = {
    "paper": "the published recipe; each section says where ours is shorter",
    "best": "what this library recommends",
    "demo": "best, shortened to minutes on two cores",
    "smoke": "a few hundred steps: shows only that it runs",
}


class Metric(NamedTuple):
    """One measured quantity."""

    key: str
    label: str
    meaning: str
    style: Literal["number", "share", "seconds", "yes or no"] = "number"
    """"yes or no" is 1 or 0 for each seed."""
    better: Literal["lower", "higher"] | None = None
    """None if it is only descriptive, or best at some specific value."""
    floor: str | None = None
    """The key of the value for exact draws, if that is not zero."""
    void_if: str | None = None
    """The key of a metric that invalidates this one if above zero."""


FOLD = Metric(
    "fold",
    "folded",
    "the share of draws where det J has the minority's sign",
    style="share",
    better="lower",
)
SECONDS = Metric(
    "seconds", "seconds", "training time of all seeds together", style="seconds", better="lower"
)


class Published(NamedTuple):
    """A figure the paper prints."""

    mean: float
    sd: float
    reason: str = ""
    """Why our value under `paper` differs, if known."""


class Table(NamedTuple):
    """Metrics that are shown together."""

    title: str
    metrics: tuple[str, ...]
    caption: str


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method and how it is trained; None leaves the choice to `gpvi.fit`."""

    method: Method
    steps: int | None = None
    schedule: Literal["constant", "decaying"] = "decaying"
    """"constant" is Adam at the method's learning rate, "decaying" the method's own optimiser."""
    batch_size: int | None = None
    start: Literal["auto"] | None = "auto"

    def optimizer(self) -> optax.GradientTransformation | None:
        """The optimiser for `gpvi.fit`, None for the method's own."""
        if self.schedule == "decaying":
            return None
        return optax.adam(getattr(self.method, "learning_rate"))  # noqa: B009

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        return {
            "method": specs.to_json(self.method),
            "steps": self.steps,
            "schedule": self.schedule,
            "batch_size": self.batch_size,
            "start": self.start,
        }


@runtime_checkable
class Choice(Protocol):
    """What a row of a table runs: a `Recipe`, or another library's method."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        ...


Choice_co = TypeVar("Choice_co", bound=Choice, covariant=True)


@runtime_checkable
class Experiment(Protocol[Choice_co]):
    """The contract of every experiment; it joins the others by one line in `gpvi_paper.experiments`."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def title(self) -> str:
        """What is studied."""
        ...

    @property
    def source(self) -> str:
        """The table or figure of the paper it repeats."""
        ...

    @property
    def summary(self) -> str:
        """The setting, and what differs from the paper's, in a few sentences."""
        ...

    @property
    def cases(self) -> Mapping[str, str]:
        """The problems and their titles; a row of a record is named "case/metric"."""
        ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is measured."""
        ...

    @property
    def tables(self) -> tuple[Table, ...]:
        """How the metrics are shown."""
        ...

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that are drawn."""
        ...

    @property
    def published(self) -> Mapping[str, Mapping[str, Published]]:
        """Label → row → the paper's figure."""
        ...

    def recipes(self, preset: str) -> Mapping[str, Choice_co]:
        """Label → recipe, in the order of the table."""
        ...

    def run(
        self, label: str, preset: str, seeds: Sequence[int], progress: bool | Meter = True
    ) -> Record:
        """Train, measure, and return the record."""
        ...


@runtime_checkable
class ReadsData(Protocol):
    """Optional part of the contract: an experiment that needs files not shipped with the library."""

    def reading(self, directory: Path | None) -> Experiment:
        """The experiment with its data directory, after checking its contents."""
        ...


@runtime_checkable
class KeepsReference(Protocol):
    """Optional part of the contract: all rows are compared with one long run, made only once."""

    def keeping(self, directory: Path) -> Experiment:
        """The experiment with the directory where the long run is kept for other processes."""
        ...


class Measurements(Generic[Choice_co]):
    """Collects the values of one run and makes its record."""

    def __init__(
        self, experiment: Experiment[Choice_co], label: str, preset: str, seeds: Sequence[int]
    ):
        if not seeds:
            raise InputError("no seeds: give at least one.")
        self.recipe = chosen(experiment, label, preset)
        self.seeds = tuple(int(seed) for seed in seeds)
        self.rows: dict[str, list[float]] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._histories: dict[str, list[np.ndarray]] = {}
        self._notes: dict[str, None] = {}
        self._names = (experiment.name, preset, label)
        self._options = " --data-dir DIR" if isinstance(experiment, ReadsData) else ""
        self._started, self._began = records.now(), time.perf_counter()

    def add(self, values: Mapping[str, float], case: str = "") -> None:
        """One seed's values."""
        for name, value in values.items():
            self.rows.setdefault(f"{case}/{name}".strip("/"), []).append(records.significant(value))

    def follow(self, training: Training, case: str = "") -> None:
        """One seed's training: its curves and notes. An interrupted run measures nothing."""
        if training.interrupted:
            raise KeyboardInterrupt
        for name, values in training.history.items():
            self._histories.setdefault(f"{case}/{name}".strip("/"), []).append(values)
        self.note(*(f"{case}: {note}".removeprefix(": ") for note in training.notes))

    def note(self, *notes: str) -> None:
        """Add notes for the reader, each only once."""
        self._notes.update(dict.fromkeys(notes))

    def record(self) -> Record:
        """The finished record."""
        name, preset, label = self._names
        shared = {
            term: [line[: min(map(len, lines))] for line in lines]
            for term, lines in self._histories.items()
            if len(lines) == len(self.seeds)
        }
        command = (
            f"gpvi run {name} --method {records.slug(label)} --preset {preset} "
            f"--seeds {len(self.seeds)}{self._options}"
        )
        return Record(
            experiment=name,
            preset=preset,
            method=label,
            specification=self.recipe.to_json(),
            seeds=self.seeds,
            command=command,
            started=self._started,
            seconds=round(time.perf_counter() - self._began, 2),
            environment=records.environment(),
            rows={row: tuple(values) for row, values in self.rows.items()},
            curves={term: records.thinned(lines) for term, lines in shared.items()},
            arrays=self.arrays,
            notes=tuple(self._notes),
        )


class Labelled:
    """A meter that says what is being trained."""

    def __init__(self, progress: bool | Meter, label: str):
        self._meter = as_meter(progress)
        self._label = label

    def start(self, total: int, label: str) -> None:
        """Open under this label."""
        self._meter.start(total, self._label)

    def update(self, done: int, message: str) -> None:
        """Pass it on."""
        self._meter.update(done, message)

    def close(self) -> None:
        """Pass it on."""
        self._meter.close()


def chosen(experiment: Experiment[Choice_co], label: str, preset: str) -> Choice_co:
    """The recipe of this label under this preset."""
    if preset not in PRESETS:
        raise UnknownOptionError("preset", preset, PRESETS)
    available = experiment.recipes(preset)
    if label not in available:
        raise UnknownOptionError(f"method of {experiment.name} under {preset!r}", label, available)
    return available[label]


def matching(experiment: Experiment, preset: str, name: str) -> list[str]:
    """The labels that `name` matches: the label itself, its slug, or the first words of its slug."""
    if preset not in PRESETS:
        raise UnknownOptionError("preset", preset, PRESETS)
    wanted = records.slug(name)
    labels = list(experiment.recipes(preset))
    same = [label for label in labels if records.slug(label) == wanted]
    return same or [label for label in labels if records.slug(label).startswith(f"{wanted}-")]
