"""Importance sampling from q: log p − log q, the evidence, Pareto-smoothed weights and what they say of q."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Scalar

from gpvi.errors import InputError
from gpvi.generators import AbstractGenerator
from gpvi.kernels import RBF, median, squared_distances


def log_evidence(log_ratios: Float[np.ndarray, " m"], n: int) -> float:
    """log Z by log p − log q at n draws of q, of which those outside the support of p may be left out."""
    top = log_ratios.max()
    return float(top + np.log(np.exp(log_ratios - top).sum() / n))


def log_evidence_se(effective_share: float, n: int) -> float:
    """The standard error of log Z by n draws whose weights have this effective share, √((1/share − 1)/n)."""
    return math.sqrt(max(1 / effective_share - 1, 0.0) / n)


def fold_fraction(signs: Float[Array, " n"]) -> Scalar:
    """The share of draws whose sign of det J differs from the majority's.

    The sign itself is only an orientation; where it changes, J is singular in between and f folds. Zero is necessary
    for injectivity, not sufficient: a map can wrap around with det J > 0 everywhere. A singular J (sign 0 or NaN) has
    no orientation and always counts as different.
    """
    return 1 - jnp.maximum((signs > 0).mean(), (signs < 0).mean())


def conditioning(generator: AbstractGenerator, z: Float[Array, "n d"]) -> Scalar:
    """The largest condition number of the head block A over the rows of z."""

    def at(point: Float[Array, " d"]) -> Scalar:
        block = generator.head_jacobian(generator.split(point)[0])
        if isinstance(block, lx.DiagonalLinearOperator):
            values = jnp.abs(lx.diagonal(block))
        else:
            values = jnp.linalg.svd(block.as_matrix(), compute_uv=False)
        return values.max() / values.min()

    return jax.vmap(at)(z).max()


@jax.jit
def maximum_mean_discrepancy(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Scalar:
    """Unbiased MMD² = E k(x, x′) + E k(y, y′) − 2 E k(x, y) between two sets of draws (Gretton et al. 2012).

    About 0, with either sign, if both come from one distribution, such as a posterior and its reference draws. k is
    the RBF kernel with h the median squared distance between the two sets, or 1 if that is 0.
    """
    if min(len(x), len(y)) < 2:
        raise InputError(f"there are {len(x)} and {len(y)} draws; both sets need at least two.")
    kernel, typical = RBF(1.0), median(squared_distances(x, y))
    unit = jax.lax.rsqrt(jnp.where(typical > 0, typical, 1.0))

    def mean_of_pairs(draws: Float[Array, "n d"]) -> Scalar:
        value = kernel(unit * draws, unit * draws).value
        return (value.sum() - jnp.trace(value)) / (len(draws) * (len(draws) - 1))

    across = kernel(unit * x, unit * y).value.mean()
    return mean_of_pairs(x) + mean_of_pairs(y) - 2 * across


@jax.jit
def effective_share(log_weights: Float[Array, " n"]) -> Scalar:
    """Importance effective sample size as a share of the draws: (Σw)² / (n Σw²), of weights over the largest."""
    top = log_weights.max()
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    return weights.sum() ** 2 / (weights**2).sum() / log_weights.size


@jax.jit
def smoothed_log_weights(log_ratios: Float[Array, " n"]) -> tuple[Float[Array, " n"], Scalar]:
    """Pareto-smoothed, normalised log importance weights and k̂ (Vehtari et al. 2024), by BlackJAX.

    A non-finite ratio (a draw outside the support, or where log p failed) gets no weight. If a quarter of the tail is
    tied, as by rounding when q = p, no Pareto law can be fitted: k̂ is then 0 if no weight exceeds e times the mean,
    which rules out a tail, and infinite otherwise.
    """
    from blackjax.diagnostics import psis_weights

    finite = jnp.isfinite(log_ratios)
    floor = jnp.where(finite, log_ratios, jnp.inf).min() - 100.0
    log_weights, k_hat = psis_weights(jnp.where(finite, log_ratios, floor))
    log_weights = jnp.where(finite, log_weights, -jnp.inf)
    even = log_weights.max() + jnp.log(log_weights.size) < 1
    untold = jnp.where(even, 0.0, jnp.inf)
    return log_weights, jnp.where(jnp.isnan(k_hat), untold, k_hat)


class Weighting(NamedTuple):
    """Means and standard deviations before and after importance weighting."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    weighted_mean: Float[np.ndarray, " d"]
    weighted_sd: Float[np.ndarray, " d"]

    @property
    def mean_shift(self) -> float:
        """The largest move of a mean, in standard deviations."""
        return float(np.abs((self.weighted_mean - self.mean) / self.sd).max())

    @property
    def log_spread_shift(self) -> float:
        """The largest |log| of the ratio of standard deviations."""
        return float(np.abs(np.log(self.weighted_sd / self.sd)).max())


def weighting(x: Float[Array, "n d"], log_weights: Float[Array, " n"]) -> Weighting:
    """Moments of the draws x, without and with normalised weights."""
    points, weights = np.asarray(x, np.float64), np.exp(np.asarray(log_weights, np.float64))
    weights = weights / weights.sum()
    mean = weights @ points
    variance = weights @ (points - mean) ** 2
    return Weighting(points.mean(0), points.std(0), mean, np.sqrt(variance))


class Importance(NamedTuple):
    """Summary of log p − log q at draws of q: the bound, the evidence, and the reliability of the weights."""

    elbo: float
    elbo_se: float
    log_evidence: float
    log_evidence_se: float
    effective_share: float
    """Importance ESS as a share of the draws."""
    k_hat: float
    rejected: float
    """The share of draws at which log p was not finite."""
    draws: int


def importance(
    log_ratios: Float[Array, " n"],
) -> tuple[Importance, Float[Array, " n"]]:
    """The summary of log p − log q, and Pareto-smoothed, normalised log weights.

    log Z = log E_q[p/q] and the effective share use the unsmoothed ratios. The bound is for q restricted to where
    log p is finite, a share a of it: E_q[log p − log q | finite] + log a ≤ log Z.
    """
    ratios = np.asarray(log_ratios, np.float64)
    finite = np.isfinite(ratios)
    n, kept = len(ratios), ratios[finite]
    log_weights, k_hat = smoothed_log_weights(log_ratios)
    if not len(kept):
        nothing = Importance(-math.inf, math.nan, -math.inf, math.nan, 0.0, math.inf, 1.0, n)
        return nothing, log_weights
    share = float(effective_share(jnp.where(jnp.asarray(finite), log_ratios, -jnp.inf)))
    found = Importance(
        elbo=float(kept.mean() + math.log(len(kept) / n)),
        elbo_se=float(kept.std() / math.sqrt(len(kept))),
        log_evidence=log_evidence(kept, n),
        log_evidence_se=log_evidence_se(share, n),
        effective_share=share,
        k_hat=float(k_hat),
        rejected=float(1 - finite.mean()),
        draws=n,
    )
    return found, log_weights
