"""What an experiment is: problems, rows of recipes, metrics, the paper's figures, and a `run` that makes a record.

A new experiment is a subclass of `Experiment` and one line in `gpvi_paper.experiments`. It sets the attributes, names
its rows in `recipes`, and trains and measures one of them in `measure`.
"""

import copy
import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import optax
from jaxtyping import PRNGKeyArray

import gpvi
from gpvi import specs
from gpvi.errors import InputError, UnknownOptionError, quietly
from gpvi.methods import Method
from gpvi.posterior.history import Training
from gpvi.progress import Meter, as_meter
from gpvi_paper import records
from gpvi_paper.experiments.unfinished import next_place
from gpvi_paper.records import Record

PRESETS: dict[str, str] = {
    "paper": "the published recipe, read so that its claims can hold; each section says where ours is shorter",
    "authors": "what the authors' code does where it differs from the text",
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


lower, higher = partial(Metric, better="lower"), partial(Metric, better="higher")
"""Metrics that are better when lower, or when higher."""


def seconds(meaning: str) -> Metric:
    """The metric `seconds`: how long training took."""
    return lower("seconds", "seconds", meaning, "seconds")


SECONDS = seconds("training time of all seeds together")
FOLD = lower("fold", "folded", "the share of draws where det J has the minority's sign", "share")


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

    def fit(self, target: gpvi.Target, *, key: PRNGKeyArray, **options: Any) -> gpvi.Posterior:
        """`gpvi.fit` by this recipe; `options` replace its arguments."""
        with quietly():
            return gpvi.fit(target, self.method, key=key, **self._arguments(options))

    def fit_seeds(
        self, targets: Sequence[gpvi.Target], *, key: PRNGKeyArray, **options: Any
    ) -> list[gpvi.Posterior]:
        """`gpvi.fit_seeds` by this recipe: a posterior for each target, trained side by side."""
        with quietly():
            return gpvi.fit_seeds(targets, self.method, key=key, **self._arguments(options))

    def _arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        if "checkpoint" not in options:
            options["checkpoint"] = next_place()
        return {
            "steps": self.steps,
            "optimizer": self.optimizer(),
            "batch_size": self.batch_size,
            "init": self.start,
        } | options

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


class Experiment(ABC, Generic[Choice_co]):
    """One table or figure. Subclasses set the attributes and define `recipes` and `measure`."""

    name: str
    """Its name on the command line."""
    title: str
    """What is studied."""
    source: str
    """The table or figure of the paper it repeats."""
    summary: str
    """The setting, and what differs from the paper's, in a few sentences."""
    cases: Mapping[str, str]
    """The problems and their titles; a row of a record is named "case/metric"."""
    metrics: tuple[Metric, ...]
    """What is measured."""
    tables: tuple[Table, ...]
    """How the metrics are shown."""
    headline: tuple[str, ...] = ()
    """The metrics that are drawn."""

    @property
    def published(self) -> Mapping[str, Mapping[str, Published]]:
        """Label → row → the paper's figure."""
        return {}

    @abstractmethod
    def recipes(self, preset: str) -> Mapping[str, Choice_co]:
        """Label → recipe, in the order of the table; empty if the experiment lacks the preset."""

    @abstractmethod
    def measure(self, results: "Results[Choice_co]") -> None:
        """Train the row `results.label` for every seed, and add what is measured."""

    def run(
        self, label: str, preset: str, seeds: Sequence[int], progress: bool | Meter = True
    ) -> Record:
        """Train and measure one row, and return its record."""
        results = Results(self, label, preset, seeds, progress)
        self.measure(results)
        return results.record()


class ReadsData(Experiment[Choice_co]):
    """An experiment that needs files not shipped with the library."""

    directory: Path | None = None

    @abstractmethod
    def find(self, directory: Path | None) -> Path:
        """Where the data are, at or below the directory or downloaded; an error if they are missing."""

    def reading(self, directory: Path | None) -> "ReadsData[Choice_co]":
        """The experiment on the data in this directory."""
        found = copy.copy(self)
        found.directory = self.find(directory)
        return found


class RunsCases(Experiment[Choice_co]):
    """An experiment whose cases may be run apart; `records.latest` joins the records of one recipe again."""

    @abstractmethod
    def problems(self, label: str, preset: str) -> Sequence[str]:
        """The cases of a row."""

    def only(self, cases: Sequence[str]) -> "RunsCases[Choice_co]":
        """The experiment with these cases alone."""
        for case in cases:
            if case not in self.cases:
                raise UnknownOptionError(f"case of {self.name}", case, self.cases)
        found = copy.copy(self)
        found.cases = {case: title for case, title in self.cases.items() if case in cases}
        return found


class KeepsReference(Experiment[Choice_co]):
    """An experiment whose rows are all compared with one long run, made only once."""

    directory: Path | None = None

    def keeping(self, directory: Path) -> "KeepsReference[Choice_co]":
        """The experiment with the directory where the long run is kept for other processes."""
        found = copy.copy(self)
        found.directory = directory
        return found


class Results(Generic[Choice_co]):
    """One run of one row: what was chosen, what was measured, and finally the record."""

    def __init__(
        self,
        experiment: Experiment[Choice_co],
        label: str,
        preset: str,
        seeds: Sequence[int],
        progress: bool | Meter = False,
    ):
        if not seeds:
            raise InputError("no seeds: give at least one.")
        self.recipe = chosen(experiment, label, preset)
        self.label, self.preset = label, preset
        self.seeds = tuple(int(seed) for seed in seeds)
        self.progress = as_meter(progress)
        self.rows: dict[str, list[float]] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._histories: dict[str, list[np.ndarray]] = {}
        self._notes: dict[str, None] = {}
        self._name = experiment.name
        chosen_cases = experiment.cases if experiment.cases != type(experiment).cases else ()
        self._options = "".join(f" --case {case}" for case in chosen_cases)
        self._options += " --data-dir DIR" if isinstance(experiment, ReadsData) else ""
        self._started, self._began = records.now(), time.perf_counter()

    def meter(self, *details: str) -> Meter:
        """The progress bar of one fit, under the name of the experiment, the row and the details."""
        return Labelled(self.progress, " · ".join((self._name, self.label, *details)))

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
        shared = {
            term: [line[: min(map(len, lines))] for line in lines]
            for term, lines in self._histories.items()
            if len(lines) == len(self.seeds)
        }
        command = (
            f"gpvi run {self._name} --method {records.slug(self.label)} --preset {self.preset} "
            f"--seeds {len(self.seeds)}{self._options}"
        )
        return Record(
            experiment=self._name,
            preset=self.preset,
            method=self.label,
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


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A meter that shows its own label instead of the one it is started with."""

    meter: Meter
    label: str

    def start(self, total: int, label: str) -> None:
        """Open under this meter's label."""
        self.meter.start(total, self.label)

    def update(self, done: int, message: str) -> None:
        """Pass it on."""
        self.meter.update(done, message)

    def close(self) -> None:
        """Pass it on."""
        self.meter.close()


def chosen(experiment: Experiment[Choice_co], label: str, preset: str) -> Choice_co:
    """The recipe of this label under this preset."""
    available = _recipes(experiment, preset)
    if label not in available:
        raise UnknownOptionError(f"method of {experiment.name} under {preset!r}", label, available)
    return available[label]


def matching(experiment: Experiment, preset: str, name: str) -> list[str]:
    """The labels that `name` matches: the label itself, its slug, or the first words of its slug."""
    wanted, labels = records.slug(name), list(_recipes(experiment, preset))
    same = [label for label in labels if records.slug(label) == wanted]
    return same or [label for label in labels if records.slug(label).startswith(f"{wanted}-")]


def _recipes(experiment: Experiment[Choice_co], preset: str) -> Mapping[str, Choice_co]:
    if preset not in PRESETS:
        raise UnknownOptionError("preset", preset, PRESETS)
    return experiment.recipes(preset)


def grouped(posteriors: Sequence[gpvi.Posterior], size: int) -> list[list[gpvi.Posterior]]:
    """The posteriors in groups of this size: those of one seed or split, which predict as their mixture."""
    return [list(posteriors[i : i + size]) for i in range(0, len(posteriors), size)]
