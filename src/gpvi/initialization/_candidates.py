"""Where paths after the first begin.

Every other path begins at the point that the paths so far miss most: the one of the largest p/q among many (incremental
mixture importance sampling: Raftery & Bao: Estimating and projecting trends in HIV/AIDS generalized epidemics using
incremental mixture importance sampling, Biometrics 2010). The others begin, in turn, far from all that is known and
near the very first beginning.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.initialization._arrays import Points, Vector
from gpvi.initialization._elbo_ascent import PathEnd, mixture_of_ends
from gpvi.initialization._evaluation import BATCH, HostDensity
from gpvi.initialization._mixture import Mixture
from gpvi.initialization._normal import Normal
from gpvi.initialization._widths import fit_width

FAR = (16.0, 32.0, 64.0, 128.0)
"""Distances of far beginnings, in standard deviations of all that is known."""

CANDIDATES = 256 * BATCH
"""Points among which the most missed one is found."""


class Missed(NamedTuple):
    """A beginning at the point that the paths so far miss most."""


class Far(NamedTuple):
    """A beginning `distance` standard deviations from the mean of all that is known; backwards if negative."""

    direction: Vector
    distance: float


class Near(NamedTuple):
    """A beginning one to sixteen widths from the first one."""

    direction: Vector


Beginning = Missed | Far | Near


def beginnings(dim: int, count: int, rng: Generator) -> Iterator[Beginning]:
    """The beginnings of at least `count` paths after the first: missed, far, missed, near, and so on.

    Each far direction serves twice, forwards and backwards; every new direction has the next distance of `FAR`. Far and
    near beginnings take their directions from opposite ends of one list of `count` random ones.
    """
    directions = rng.standard_normal((count, dim))
    directions *= np.sqrt(dim) / np.linalg.norm(directions, axis=1, keepdims=True)
    return _in_turn(directions)


def _in_turn(directions: Points) -> Iterator[Beginning]:
    far = (
        Far(direction, sign * distance)
        for direction, distance in zip(directions, cycle(FAR), strict=False)
        for sign in (1.0, -1.0)
    )
    near = (Near(direction) for direction in directions[::-1])
    for one, other in zip(far, near, strict=False):
        yield from (Missed(), one, Missed(), other)


def begin(
    beginning: Beginning,
    density: HostDensity,
    ends: Sequence[PathEnd],
    first: Normal,
    rng: Generator,
) -> Normal | None:
    """The Gaussian with which a path begins, of the width that fits there; None if no width has a finite ELBO."""
    known = mixture_of_ends(ends)
    cover = known.moments()
    match beginning:
        case Missed():
            point, scale = _most_missed(density, known, cover, first, rng), first.scale
        case Far(direction, distance):
            best = max(ends, key=lambda end: end.elbo).normal
            point, scale = _towards(density, cover, distance * direction), best.scale
        case Near(direction):
            distance = 2.0 ** rng.uniform(0, 4)
            point, scale = _towards(density, first, distance * direction), first.scale
    return fit_width(density, Normal(point, scale), rng, range(-40, 1))


def _most_missed(
    density: HostDensity, known: Mixture, cover: Normal, first: Normal, rng: Generator
) -> Vector:
    """The point of the largest p/q among many around all that is known and around the first, at all distances.

    q has Cauchy tails in place of Gaussian ones, so that the tails of p do not count as missed.
    """
    dim = len(first.location)
    count = CANDIDATES // density.thrift
    radii = 2.0 ** rng.uniform(0, 5, (count, 1))
    noise = radii * rng.standard_normal((count, dim))
    points = np.concatenate([cover.points(noise[::2]), first.points(noise[1::2])])
    log_cauchys = [
        np.log(share) - part.log_det - 0.5 * (dim + 1) * np.log1p((part.whiten(points) ** 2).sum(1))
        for part, share in zip(known.parts, known.shares, strict=True)
    ]
    return points[(density.values(points) - logsumexp(log_cauchys, axis=0)).argmax()]


def _towards(density: HostDensity, origin: Normal, noise: Vector) -> Vector:
    """The draw made of `noise`, with its distance halved until log p is finite there."""
    points = origin.points(noise * 2.0 ** -np.arange(20.0)[:, None])
    return points[np.isfinite(density.values(points)).argmax()]
