"""The ends of several paths, combined into one Gaussian by importance sampling.

Half of the draws come from the path ends, in shares proportional to exp ELBO, and half from the current Gaussian.
Together they are a mixture q. The weights are (p/q)^β, where β ≤ 1 is the largest exponent that leaves 20 effective
draws per dimension, since the relative error of a covariance is √(d/ESS). If d is so large that the draws cannot be
that many, the moments are those of the path ends, which is the limit β → 0.

The moments of q are known exactly. So the weighted draws only have to estimate the difference between the moments of p
and q, which vanishes for a Gaussian p.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.diagnostics.importance import log_evidence, log_evidence_se
from gpvi.initialization._elbo_ascent import PathEnd, mixture_of_ends
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._gaussians import Mixture, Normal, Points, Values

DRAWS = 4096
"""The number of draws in each round."""

ROUNDS = 5
"""The most rounds of importance sampling."""

ENOUGH = 0.9
"""Rounds end when this share of the draws is effective."""

LEAST_VARIANCE = 1e-2
"""The least variance of the Gaussian of one round, in units of that of the previous round."""


class Sample(NamedTuple):
    """Draws x from a mixture q, and log p − log q at the draws."""

    q: Mixture
    x: Points
    log_ratios: Values


class Combined(NamedTuple):
    """The Gaussian of all path ends, and the properties of the importance weights behind it.

    The fields other than `normal` are those of `Report`; by default no weights were used.
    """

    normal: Normal
    tempering: float = 0.0
    effective_share: float = 1.0
    log_evidence: float = np.nan
    log_evidence_se: float = np.inf


def combine(density: HostDensity, ends: Sequence[PathEnd], rng: Generator) -> Combined:
    """Estimate the moments of the posterior by rounds of importance sampling from the path ends and the last result."""
    mixture = mixture_of_ends(ends)
    result = Combined(mixture.moments())
    needed = 100 + 20 * len(result.normal.location)
    if 2 * needed > DRAWS:
        return result
    for _ in range(ROUNDS):
        sample = importance_sample(density, mixture.and_half(result.normal), DRAWS, rng)
        if not np.isfinite(sample.log_ratios).any():
            break
        tempering, weights = temper(sample.log_ratios, needed)
        result = Combined(
            _corrected_moments(sample, weights, result.normal),
            tempering,
            float(1 / (weights**2).sum() / DRAWS),
            *_evidence(sample.log_ratios),
        )
        if result.effective_share > ENOUGH:
            break
    if len(ends) > 1 and result.tempering == 1:
        sample = importance_sample(density, mixture.and_half(result.normal), 4 * DRAWS, rng)
        log_z, error = _evidence(sample.log_ratios)
        result = result._replace(log_evidence=log_z, log_evidence_se=error)
    return result


def importance_sample(
    density: HostDensity, proposal: Mixture, count: int, rng: Generator
) -> Sample:
    """Stratified draws from the proposal, with their log-ratios."""
    x, q = proposal.draw(count, rng)
    return Sample(q, x, density.values(x) - q.log_density(x))


def temper(log_ratios: Values, needed: int) -> tuple[float, Values]:
    """The largest β ≤ 1 at which the weights r^β have the effective sample size needed, and the weights.

    β is found by bisection. The weights are normalised, and 0 where p = 0.
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
    """The moments of p: those of q plus their difference to p, estimated from the weighted draws.

    They are computed in the coordinates that whiten `centre`. No variance there may fall below `LEAST_VARIANCE`.
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
