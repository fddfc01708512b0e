"""Starting points of the paths after the first.

Every other path starts at the point that the paths so far miss most, which has the largest p/q among many candidates
(incremental mixture importance sampling: Raftery & Bao: Estimating and projecting trends in HIV/AIDS generalized
epidemics using incremental mixture importance sampling, Biometrics 2010). The others start, in turn, far from the ends
of all paths and near the first starting point.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.initialization._elbo_ascent import PathEnd, mixture_of_ends
from gpvi.initialization._evaluation import BATCH, HostDensity
from gpvi.initialization._gaussians import Mixture, Normal, Points, Vector
from gpvi.initialization._widths import fit_width

FAR = (16.0, 32.0, 64.0, 128.0)
"""Distances of far starting points, in standard deviations of the mixture of all path ends."""

CANDIDATES = 256 * BATCH
"""The number of points among which the most missed one is chosen."""


class Missed(NamedTuple):
    """Start at the point that the paths so far miss most."""


class Far(NamedTuple):
    """Start `distance` standard deviations from the mean of all path ends; in the opposite direction if negative."""

    direction: Vector
    distance: float


class Near(NamedTuple):
    """Start one to sixteen widths from the first starting point."""

    direction: Vector


Candidate = Missed | Far | Near


def candidates(dim: int, count: int, rng: Generator) -> Iterator[Candidate]:
    """The starting points of at least `count` paths after the first: missed, far, missed, near, and so on.

    Each far direction is used twice, forwards and backwards, and each new direction has the next distance of `FAR`. Far
    and near points take their directions from opposite ends of one list of `count` random directions.
    """
    directions = rng.standard_normal((count, dim))
    directions *= np.sqrt(dim) / np.linalg.norm(directions, axis=1, keepdims=True)
    return _in_turn(directions)


def _in_turn(directions: Points) -> Iterator[Candidate]:
    far = (
        Far(direction, sign * distance)
        for direction, distance in zip(directions, cycle(FAR), strict=False)
        for sign in (1.0, -1.0)
    )
    near = (Near(direction) for direction in directions[::-1])
    for one, other in zip(far, near, strict=False):
        yield from (Missed(), one, Missed(), other)


def first_gaussian(
    candidate: Candidate,
    density: HostDensity,
    ends: Sequence[PathEnd],
    first: Normal,
    rng: Generator,
) -> Normal | None:
    """The Gaussian at a candidate, with the width of the best ELBO; None if no width has a finite one."""
    mixture = mixture_of_ends(ends)
    cover = mixture.moments()
    match candidate:
        case Missed():
            point, scale = _most_missed(density, mixture, cover, first, rng), first.scale
        case Far(direction, distance):
            best = max(ends, key=lambda end: end.elbo).normal
            point, scale = _towards(density, cover, distance * direction), best.scale
        case Near(direction):
            distance = 2.0 ** rng.uniform(0, 4)
            point, scale = _towards(density, first, distance * direction), first.scale
    return fit_width(density, Normal(point, scale), rng, range(-40, 1))


def _most_missed(
    density: HostDensity, mixture: Mixture, cover: Normal, first: Normal, rng: Generator
) -> Vector:
    """The point with the largest p/q among draws around all path ends and around the first Gaussian, near and far.

    The parts of q have Cauchy tails instead of Gaussian ones, so that the tails of p do not count as missed.
    """
    dim = len(first.location)
    count = CANDIDATES // density.thrift
    radii = 2.0 ** rng.uniform(0, 5, (count, 1))
    noise = radii * rng.standard_normal((count, dim))
    points = np.concatenate([cover.points(noise[::2]), first.points(noise[1::2])])
    log_cauchys = [
        np.log(share) - part.log_det - 0.5 * (dim + 1) * np.log1p((part.whiten(points) ** 2).sum(1))
        for part, share in zip(mixture.parts, mixture.shares, strict=True)
    ]
    return points[(density.values(points) - logsumexp(log_cauchys, axis=0)).argmax()]


def _towards(density: HostDensity, origin: Normal, noise: Vector) -> Vector:
    """The point at this noise, moved towards the origin by halves until log p is finite there."""
    points = origin.points(noise * 2.0 ** -np.arange(20.0)[:, None])
    return points[np.isfinite(density.values(points)).argmax()]
