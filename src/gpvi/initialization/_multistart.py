"""Several paths up the ELBO from different starting points: how many to follow, and in how many optima they end.

A path that runs into the end of an earlier one is dropped, so that each optimum counts once. The share of paths that
ended in an optimum that no other path reached estimates the chance that the next path finds a new one (Good: The
population frequencies of species and the estimation of population parameters, Biometrika 1953).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.random import Generator

from gpvi._inputs import format_point
from gpvi.initialization._candidates import candidates, first_gaussian
from gpvi.initialization._combination import Combined, combine
from gpvi.initialization._elbo_ascent import PathEnd, climb
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._gaussians import Normal, Vector
from gpvi.initialization._widths import fit_width, narrow_to_gentle_scores, narrow_to_support
from gpvi.initialization.result import Gaussian, NoPathError, Report

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PATHS = 8
"""The number of paths by default."""

MORE = 4
"""By default, as many times the paths and scores are allowed while paths find new optima."""

SCORES = 2**15
"""No further path starts after this number of scores."""

NEW_OPTIMUM = 0.25
"""One more path is worth its cost if its chance of finding a new optimum is above this."""

WIDEST = 1e12
"""A direction wider than this, in units of the first width, counts as flat."""


@dataclass
class Search:
    """The paths followed so far.

    Attributes
    ----------
    elbos
        The ELBO at the end of every path; −inf for a path that failed.
    ends
        The distinct ends, one for each optimum.
    distinct
        The indices of the paths that reached these first.
    visits
        How many paths ended in each of these optima.
    """

    elbos: list[float] = field(default_factory=list)
    ends: list[PathEnd] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)

    def add(self, end: PathEnd | None) -> None:
        """Record one more path; None if it failed."""
        self.elbos.append(-np.inf if end is None else end.elbo)
        if end is None:
            return
        if end.same_as is not None:
            self.visits[end.same_as] += 1
            return
        self.distinct.append(len(self.elbos) - 1)
        self.ends.append(end)
        self.visits.append(1)

    def is_over(self, paths: int | None, scored: int) -> bool:
        """Whether to stop after `scored` scores, if the user asked for `paths` paths, or None for the default.

        A score of an expensive log-density counts as several.
        """
        followed = len(self.elbos)
        if paths is not None:
            return followed >= paths or scored > SCORES
        if followed < PATHS:
            return scored > SCORES
        chance = self.visits.count(1) / followed
        return followed >= MORE * PATHS or scored > MORE * SCORES or chance <= NEW_OPTIMUM


def follow_paths(
    density: HostDensity, start: Vector, paths: int | None, rng: Generator
) -> Gaussian:
    """The Gaussian of `gpvi.initialization.variational`, from a point where log p and its gradient are finite."""
    dim = len(start)
    first = fit_width(density, Normal(start, np.eye(dim)), rng, range(-40, 41))
    if first is None:
        raise _no_path(start)
    widest = WIDEST * float(first.scale.max())
    further = candidates(dim, MORE * PATHS if paths is None else paths, rng)
    search = Search()
    search.add(_unless_singular(climb, density, first, widest, [], rng))
    for candidate in further:
        if search.is_over(paths, density.scored * density.thrift):
            break
        normal, earlier = first, [end.normal for end in search.ends]
        if earlier:
            normal = _unless_singular(first_gaussian, candidate, density, search.ends, first, rng)
        end = None
        if normal is not None:
            end = _unless_singular(climb, density, normal, widest, earlier, rng)
        search.add(end)
    if not search.ends:
        raise _no_path(start)
    return _result(density, search, widest, rng)


def _result(density: HostDensity, search: Search, widest: float, rng: Generator) -> Gaussian:
    """The combined path ends, or the best of them if their joint covariance is singular in float64."""
    best = int(np.argmax([end.elbo for end in search.ends]))
    combined = _unless_singular(combine, density, search.ends, rng)
    combined = combined or Combined(search.ends[best].normal)
    normal = narrow_to_support(density, combined.normal, rng) or combined.normal
    report = Report(
        kind="variational",
        elbos=tuple(search.elbos),
        distinct=tuple(search.distinct),
        chosen=search.distinct[best],
        tempering=combined.tempering,
        effective_share=combined.effective_share,
        flat=any(np.diag(end.normal.scale).max() > widest for end in search.ends),
        log_evidence=combined.log_evidence,
        log_evidence_se=combined.log_evidence_se,
    )
    normal = narrow_to_gentle_scores(density, normal, rng)
    return Gaussian.of(normal, report._replace(scores=density.scored))


def _no_path(start: Vector) -> NoPathError:
    return NoPathError(
        f"no Gaussian around the start {format_point(start)} has a finite ELBO: the log-density is "
        "not finite almost everywhere near it. Pass another start, or guard the log-density."
    )


def _unless_singular(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result | None:
    """Call a function; return None if it meets a matrix that is singular in float64."""
    try:
        return function(*args, **kwargs)
    except np.linalg.LinAlgError:
        return None
