"""The ends of several paths, joined into one Gaussian by importance sampling.

Half of the draws come from the path ends, in shares proportional to exp ELBO; half come from the Gaussian found so far.
Together they are a mixture q. The weights are (p/q)^β, where β ≤ 1 is the largest exponent that leaves 20 effective
draws per dimension, since the relative error of a covariance is √(d/ESS). If the draws cannot provide as many in any
case, the moments are those of the path ends, which is the limit β → 0.

The moments of q are known exactly, so the weighted draws estimate only the difference between the moments of p and q;
nothing is lost if p is Gaussian.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.diagnostics.importance import (
    log_evidence,
    log_evidence_se,
)
from gpvi.initialization._arrays import Points, Values
from gpvi.initialization._elbo_ascent import PathEnd, mixture_of_ends
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._mixture import Mixture
from gpvi.initialization._normal import Normal

DRAWS = 4096
"""Draws of each round."""

ROUNDS = 5
"""Rounds of importance sampling, at most."""

ENOUGH = 0.9
"""The effective share of the draws at which the rounds end."""

LEAST_VARIANCE = 1e-2
"""The least variance of the Gaussian of one round in units of that of the round before."""


class Sample(NamedTuple):
    """Draws x from a mixture q, and log p − log q of them."""

    q: Mixture
    x: Points
    log_ratios: Values


class Joined(NamedTuple):
    """The Gaussian of all path ends, and the properties of the importance weights that made it.

    The fields other than `normal` are those of `Report`; their defaults mean that nothing was weighted.
    """

    normal: Normal
    tempering: float = 0.0
    effective_share: float = 1.0
    log_evidence: float = np.nan
    log_evidence_se: float = np.inf


def join(density: HostDensity, ends: Sequence[PathEnd], rng: Generator) -> Joined:
    """The moments of the posterior by rounds of importance sampling from the path ends and the result so far."""
    known = mixture_of_ends(ends)
    found = Joined(known.moments())
    needed = 100 + 20 * len(found.normal.location)
    if 2 * needed > DRAWS:
        return found
    for _ in range(ROUNDS):
        sample = importance_sample(density, known.and_half(found.normal), DRAWS, rng)
        if not np.isfinite(sample.log_ratios).any():
            break
        tempering, weights = temper(sample.log_ratios, needed)
        found = Joined(
            _corrected_moments(sample, weights, found.normal),
            tempering,
            float(1 / (weights**2).sum() / DRAWS),
            *_evidence(sample.log_ratios),
        )
        if found.effective_share > ENOUGH:
            break
    if len(ends) > 1 and found.tempering == 1:
        sample = importance_sample(density, known.and_half(found.normal), 4 * DRAWS, rng)
        log_z, error = _evidence(sample.log_ratios)
        found = found._replace(log_evidence=log_z, log_evidence_se=error)
    return found


def importance_sample(
    density: HostDensity, proposal: Mixture, count: int, rng: Generator
) -> Sample:
    """Draws from the proposal, part by part."""
    x, q = proposal.draw(count, rng)
    return Sample(q, x, density.values(x) - q.log_density(x))


def temper(log_ratios: Values, needed: int) -> tuple[float, Values]:
    """The largest β ≤ 1, by bisection, at which the weights r^β have the effective sample size needed; and the weights.

    The weights are normalised, and 0 where p = 0.
    """
    finite = np.isfinite(log_ratios)

    def weights(exponent: float) -> Values:
        powers = np.where(finite, exponent * np.where(finite, log_ratios, 0.0), -np.inf)
        return np.exp(powers - logsumexp(powers))

    low, high, exponent = 0.0, 1.0, 1.0
    for _ in range(30):
        if 1 / (weights(exponent) ** 2).sum() >= needed:
            low = exponent
        else:
            high = exponent
        exponent = 0.5 * (low + high)
    return low, weights(low)


def _corrected_moments(sample: Sample, weights: Values, centre: Normal) -> Normal:
    """The moments of p: those of q, plus the difference that the weighted draws of q estimate.

    They are computed in the coordinates that whiten `centre`, where no variance falls below `LEAST_VARIANCE`.
    """
    excess, u = weights - 1 / len(weights), centre.whiten(sample.x)
    base = sample.q.whitened_by(centre).moments()
    mean = base.location + excess @ u
    second = base.scale @ base.scale.T + np.outer(base.location, base.location)
    second += (u * excess[:, None]).T @ u
    eigenvalues, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    covariance = (vectors * np.maximum(eigenvalues, LEAST_VARIANCE)) @ vectors.T
    return centre.moved(mean, np.linalg.cholesky(covariance))


def _evidence(log_ratios: Values) -> tuple[float, float]:
    """log Z and its standard error."""
    n = len(log_ratios)
    weights = np.exp(log_ratios - log_ratios.max())
    share = float(weights.sum() ** 2 / (weights**2).sum() / n)
    return log_evidence(log_ratios, n), log_evidence_se(share, n)
