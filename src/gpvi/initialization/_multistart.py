"""Paths from several beginnings: how many are followed, and in how many places they end.

A path that runs into the end of an earlier one is dropped, so that places count and not paths. The share of paths that
ended in a place where no other did estimates the chance that the next path finds a new one (Good: The population
frequencies of species and the estimation of population parameters, Biometrika 1953).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.random import Generator

from gpvi._inputs import brief
from gpvi.initialization._arrays import Vector
from gpvi.initialization._candidates import begin, beginnings
from gpvi.initialization._combination import Joined, join
from gpvi.initialization._elbo_ascent import PathEnd, climb
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._normal import Normal
from gpvi.initialization._widths import fit_width, narrow_to_gentle_scores, narrow_to_support
from gpvi.initialization.result import Gaussian, NoPathError, Report

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PATHS = 8
"""Paths by default."""

MORE = 4
"""How many times as many paths and scores there may be by default, while paths find new places."""

SCORES = 2**15
"""The number of scores after which no further path begins."""

NEW_PLACE = 0.25
"""The chance of a new place above which one more path is worth its cost."""

WIDEST = 1e12
"""The width, in units of the first, beyond which a direction counts as flat."""


@dataclass
class Search:
    """The paths followed so far.

    Attributes
    ----------
    elbos: the ELBO of every path; −inf for a path that failed.
    ends: the ends of the paths that ended in a place of their own.
    distinct: the indices of these paths.
    visits: how many paths ended in each of these places.
    """

    elbos: list[float] = field(default_factory=list)
    ends: list[PathEnd] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)

    def add(self, end: PathEnd | None) -> None:
        """Record one more path, which failed if it has no end."""
        self.elbos.append(-np.inf if end is None else end.elbo)
        if end is None:
            return
        if end.known is not None:
            self.visits[end.known] += 1
            return
        self.distinct.append(len(self.elbos) - 1)
        self.ends.append(end)
        self.visits.append(1)

    def is_over(self, paths: int | None, scored: int) -> bool:
        """Whether no further path begins, after `scored` scores and with `paths` asked for (None: by default).

        A score of an expensive log-density counts as several.
        """
        followed = len(self.elbos)
        if paths is not None:
            return followed >= paths or scored > SCORES
        if followed < PATHS:
            return scored > SCORES
        chance = self.visits.count(1) / followed
        return followed >= MORE * PATHS or scored > MORE * SCORES or chance <= NEW_PLACE


def follow_paths(
    density: HostDensity, start: Vector, paths: int | None, rng: Generator
) -> Gaussian:
    """The Gaussian of `gpvi.start.variational`, from a point at which log p and its gradient are finite."""
    dim = len(start)
    first = fit_width(density, Normal(start, np.eye(dim)), rng, range(-40, 41))
    if first is None:
        raise _no_path(start)
    widest = WIDEST * float(first.scale.max())
    further = beginnings(dim, MORE * PATHS if paths is None else paths, rng)
    search = Search()
    search.add(_unless_singular(climb, density, first, widest, [], rng))
    for beginning in further:
        if search.is_over(paths, density.scored * density.thrift):
            break
        normal, known = first, [end.normal for end in search.ends]
        if known:
            normal = _unless_singular(begin, beginning, density, search.ends, first, rng)
        end = None
        if normal is not None:
            end = _unless_singular(climb, density, normal, widest, known, rng)
        search.add(end)
    if not search.ends:
        raise _no_path(start)
    return _result(density, search, widest, rng)


def _result(density: HostDensity, search: Search, widest: float, rng: Generator) -> Gaussian:
    """The ends of the paths, joined; the best of them if their joint covariance is singular in float64."""
    best = int(np.argmax([end.elbo for end in search.ends]))
    joined = _unless_singular(join, density, search.ends, rng) or Joined(search.ends[best].normal)
    normal = narrow_to_support(density, joined.normal, rng) or joined.normal
    report = Report(
        kind="variational",
        elbos=tuple(search.elbos),
        distinct=tuple(search.distinct),
        chosen=search.distinct[best],
        tempering=joined.tempering,
        effective_share=joined.effective_share,
        flat=any(np.diag(end.normal.scale).max() > widest for end in search.ends),
        log_evidence=joined.log_evidence,
        log_evidence_se=joined.log_evidence_se,
    )
    return Gaussian.of(narrow_to_gentle_scores(density, normal, rng), report)


def _no_path(start: Vector) -> NoPathError:
    return NoPathError(
        f"no Gaussian around the start {brief(start)} has a finite ELBO: the log-density is "
        "not finite almost everywhere near it. Pass another start, or guard the log-density."
    )


def _unless_singular(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result | None:
    """The result of a function; None if it meets a matrix that is singular in float64."""
    try:
        return function(*args, **kwargs)
    except np.linalg.LinAlgError:
        return None
