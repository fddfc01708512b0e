"""The width of a Gaussian: the best for the ELBO, and none at which log p or its gradient is not usable."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from gpvi.initialization._evaluation import BATCH, HostDensity
from gpvi.initialization._gaussians import FINITE_SHARE, Normal, antithetic_noise

STEEP = 1e10
"""Training should meet no whitened score as large as this; those of a Gaussian posterior are below ten."""


def fit_width(
    density: HostDensity, normal: Normal, rng: Generator, powers: Sequence[int]
) -> Normal | None:
    """Scale the Gaussian by the power of two that has the best ELBO. None if no ELBO is finite.

    For a Gaussian posterior this gives the right width, however far away the posterior lies. Among widths whose ELBOs
    are equal up to rounding, the widest is chosen.
    """
    noise = antithetic_noise(16, len(normal.location), rng)
    candidates = [normal.scaled(2.0**power) for power in powers]
    values = density.values(np.concatenate([one.points(noise) for one in candidates]))
    pairs = zip(candidates, np.split(values, len(candidates)), strict=True)
    elbos = np.array([one.elbo(part, noise) for one, part in pairs])
    if not np.isfinite(elbos).any():
        return None
    rounding = 16 * np.finfo(float).eps * np.abs(elbos.max())
    return candidates[np.flatnonzero(elbos >= elbos.max() - rounding)[-1]]


def narrow_to_support(density: HostDensity, normal: Normal, rng: Generator) -> Normal | None:
    """Narrow the Gaussian by the least power of √2 at which log p is finite at most of its draws. None if none is."""
    noise = antithetic_noise(BATCH, len(normal.location), rng)
    for power in range(80):
        narrowed = normal.scaled(2.0 ** (-power / 2))
        if np.isfinite(density.values(narrowed.points(noise))).mean() >= FINITE_SHARE:
            return narrowed
    return None


def narrow_to_gentle_scores(density: HostDensity, normal: Normal, rng: Generator) -> Normal:
    """Narrow the Gaussian by the least power of √2 at which no draw, stretched by 1.5, has a steep score.

    A log-density that falls like −exp(x) on one side has scores of 10²⁰ at the draws of a Gaussian that fits its other
    side. In float32 the square of such a gradient overflows, and an optimiser's moments never recover from it.
    """
    noise = 1.5 * antithetic_noise(4 * BATCH, len(normal.location), rng)
    for power in range(20):
        narrowed = normal.scaled(2.0 ** (-power / 2))
        values, scores = density.scores(narrowed.points(noise))
        whitened = np.abs(scores[np.isfinite(values)] @ narrowed.scale)
        if whitened.max(initial=0.0) < STEEP:
            return narrowed
    return normal
