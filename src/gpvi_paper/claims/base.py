"""What a claim is, and how records decide it."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from gpvi_paper.experiments import EXPERIMENTS, Published
from gpvi_paper.placing import EARLIER, placed
from gpvi_paper.records import Record, Summary, latest

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be decided"
Verdict = Literal["holds", "does not hold", "cannot be decided"]
DECIDING = ("paper", "authors")
"""The presets that decide a claim, the first that has all of its figures."""
COLUMNS = (*DECIDING, EARLIER, "best")
"""The presets whose figures are shown."""


class Figure(NamedTuple):
    """One measured quantity: a row of the record of a method."""

    experiment: str
    method: str
    row: str

    @property
    def better(self) -> str | None:
        """Whether lower or higher is better."""
        name = self.row.rpartition("/")[2]
        return next(m.better for m in EXPERIMENTS[self.experiment].metrics if m.key == name)


class Archive:
    """The newest record of each recipe, to look figures up in."""

    def __init__(self, records: Iterable[Record]):
        self._records = {(r.experiment, r.method, r.preset): r for r in latest(placed(records))}

    def summary(self, figure: Figure, preset: str) -> Summary | None:
        """Return the mean, deviation and count of a figure under a preset, if it was measured."""
        record = self._records.get((figure.experiment, figure.method, preset))
        return record.summary(figure.row) if record else None

    def void(self, figure: Figure, preset: str) -> bool:
        """Return whether another metric, such as a fold, makes this figure invalid."""
        case, _, name = figure.row.rpartition("/")
        metric = next(m for m in EXPERIMENTS[figure.experiment].metrics if m.key == name)
        if metric.void_if is None:
            return False
        other = self.summary(figure._replace(row=f"{case}/{metric.void_if}".strip("/")), preset)
        return other is not None and other.mean > 0


class Test(ABC):
    """A statement about figures."""

    @property
    @abstractmethod
    def figures(self) -> tuple[Figure, ...]:
        """The figures that it is about."""

    @abstractmethod
    def __call__(self, *found: Summary) -> tuple[Verdict, str]:
        """Decide it by the figures, in their order, and say why."""


@dataclasses.dataclass(frozen=True)
class Equals(Test):
    """A printed figure: ours is better, or does not differ from it."""

    figure: Figure
    published: Published

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figure."""
        return (self.figure,)

    def __call__(self, *found: Summary) -> tuple[Verdict, str]:
        """Compare."""
        (ours,) = found
        if not differs(ours, self.published):
            return HOLDS, "within the spread"
        if (ours.mean < self.published.mean) == (self.figure.better == "lower"):
            return HOLDS, "ours is better"
        return FAILS, self.published.reason.rstrip(".") or "ours is worse, and why is not known"


@dataclasses.dataclass(frozen=True)
class Below(Test):
    """The first figure is below the second by more than the standard error of the difference."""

    low: Figure
    high: Figure

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Both."""
        return (self.low, self.high)

    def __call__(self, *found: Summary) -> tuple[Verdict, str]:
        """Compare."""
        low, high = found
        error = math.hypot(*(_or_zero(each.sd) / each.n**0.5 for each in found))
        if low.mean < high.mean - error:
            return HOLDS, ""
        if low.mean > high.mean + error:
            return FAILS, "the order is the other way round"
        return OPEN, "the difference is within its standard error"


@dataclasses.dataclass(frozen=True)
class Alike(Test):
    """Two figures differ by no more than the sum of their standard deviations."""

    one: Figure
    other: Figure

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Both."""
        return (self.one, self.other)

    def __call__(self, *found: Summary) -> tuple[Verdict, str]:
        """Compare."""
        one, other = found
        if abs(one.mean - other.mean) <= _or_zero(one.sd) + _or_zero(other.sd):
            return HOLDS, "within both spreads"
        return FAILS, "they differ by more than both spreads"


@dataclasses.dataclass(frozen=True)
class Bounded(Test):
    """The mean of a figure lies between two bounds."""

    figure: Figure
    least: float = -math.inf
    most: float = math.inf

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figure."""
        return (self.figure,)

    def __call__(self, *found: Summary) -> tuple[Verdict, str]:
        """Compare."""
        held = self.least <= found[0].mean <= self.most
        bounds = [f"at least {self.least:g}"] * (self.least > -math.inf)
        bounds += [f"at most {self.most:g}"] * (self.most < math.inf)
        return (HOLDS if held else FAILS), f"asked for {' and '.join(bounds)}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper; without a test nothing that can be measured decides it."""

    text: str
    where: str
    test: Test | None = None
    reason: str = ""
    """Why it holds or not, or why it cannot be decided."""


class Judged(NamedTuple):
    """A claim, our figures under each preset that has any, and the verdict."""

    claim: Claim
    figures: Mapping[str, tuple[Summary | None, ...]]
    verdict: Verdict
    decided_by: str | None
    """The preset whose figures decided it."""
    reason: str


def differs(ours: Summary, published: Published) -> bool:
    """Return whether two figures differ by more than the sum of their standard deviations.

    If the reason for a difference is known, it is compared with the published standard deviation alone. A published
    figure without a standard deviation counts as rounded to three digits.
    """
    rounding = 0.5 * 10.0 ** (math.floor(math.log10(abs(published.mean) or 1.0)) - 2)
    spread = published.sd if math.isfinite(published.sd) else rounding
    if not published.reason:
        spread += _or_zero(ours.sd)
    return abs(ours.mean - published.mean) > spread


def judge(claims: Iterable[Claim], records: Iterable[Record]) -> list[Judged]:
    """Decide each claim by the newest records of the recipes of today.

    Parameters
    ----------
    claims
        The claims.
    records
        All records.

    Returns
    -------
    list of Judged
        One for each claim.
    """
    archive = Archive(records)
    return [_judged(claim, archive) for claim in claims]


def _judged(claim: Claim, archive: Archive) -> Judged:
    if claim.test is None:
        return Judged(claim, {}, OPEN, None, claim.reason)
    wanted = claim.test.figures
    found = {p: tuple(archive.summary(figure, p) for figure in wanted) for p in COLUMNS}
    shown = {preset: values for preset, values in found.items() if any(values)}
    for preset in DECIDING:
        values = tuple(value for value in found[preset] if value is not None)
        if len(values) < len(wanted):
            continue
        if any(archive.void(figure, preset) for figure in wanted):
            return Judged(claim, shown, OPEN, preset, "the figure is invalid, as the map folds")
        verdict, why = claim.test(*values)
        reason = "; ".join(filter(None, (why, claim.reason)))
        return Judged(claim, shown, verdict, preset, reason)
    return Judged(claim, shown, OPEN, None, "no run of the published recipes has all its figures")


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
