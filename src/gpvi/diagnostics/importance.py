"""Importance sampling from q: log p − log q at draws of q, and what these ratios say of q.

`draw_weighted` is the one place where log p − log q is computed; the stopping rule, the diagnosis, resampling and the
export to ArviZ all use it. From the ratios follow the ELBO, the evidence log Z = log E_q[p/q], Pareto-smoothed weights
with their tail index k̂, and the moments before and after weighting.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi.diagnostics.sampling import draw_with_density, log_densities
from gpvi.generators import AbstractGenerator
from gpvi.targets.density import Density

DEFAULT_DRAWS = 4_000
"""Draws taken wherever a number of draws is not given: by the stopping rule, a diagnosis, a summary, an export."""


MANY_DRAWS = 1_000
"""So many draws of which none has a large weight leave next to nothing for a tail."""
FINITE_VARIANCE = 0.5
"""k̂ of weights that have a variance."""


class WeightedDraws(NamedTuple):
    """Draws of q with log p, log q and the sign of det J at each."""

    x: Float[Array, "n d"]
    log_p: Float[Array, " n"]
    log_q: Float[Array, " n"]
    sign: Float[Array, " n"]

    @property
    def log_ratios(self) -> Float[Array, " n"]:
        """Log p − log q: the unnormalised log importance weights."""
        return self.log_p - self.log_q


def draw_weighted(
    density: Density, generator: AbstractGenerator, n: int, *, key: PRNGKeyArray
) -> WeightedDraws:
    """Draw n points from the generator and evaluate p and q there; both use the same coordinates."""
    x, log_q, sign = draw_with_density(generator, n, key)
    return WeightedDraws(x, log_densities(density, x), log_q, sign)


def log_evidence(log_ratios: Float[np.ndarray, " m"], n: int) -> float:
    """Return log Z from log p − log q at n draws of q; draws outside the support of p may be left out of the array."""
    largest = log_ratios.max()
    return float(largest + np.log(np.exp(log_ratios - largest).sum() / n))


def log_evidence_se(effective_share: float, n: int) -> float:
    """Return the standard error of log Z from n draws with this effective share, √((1/share − 1)/n)."""
    return math.sqrt(max(1 / effective_share - 1, 0.0) / n)


@brief
def effective_share(log_weights: Float[Array, " n"]) -> Scalar:
    """Return the effective sample size of importance weights as a share of the draws, (Σw)² / (n Σw²)."""
    largest = log_weights.max()
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(largest), largest, 0.0))
    return weights.sum() ** 2 / (weights**2).sum() / log_weights.size


@brief
def smoothed_log_weights(log_ratios: Float[Array, " n"]) -> tuple[Float[Array, " n"], Scalar]:
    """Return Pareto-smoothed, normalised log importance weights and k̂ (Vehtari et al. 2024), by BlackJAX.

    A non-finite ratio (a draw outside the support, or where log p failed) gets no weight. If a quarter of the tail is
    tied, as by rounding when q = p, no Pareto law can be fitted: k̂ is then 0 if no weight exceeds e times the mean,
    and infinite otherwise, also if no draw has a weight. Where of a thousand weights or more none exceeds it, what is
    left for a tail is of the order of a thousandth, and k̂ is at most that of a finite variance.
    """
    from blackjax.diagnostics import psis_weights

    finite = jnp.isfinite(log_ratios)
    floor = jnp.where(finite, log_ratios, jnp.inf).min() - 100.0
    log_weights, k_hat = psis_weights(jnp.where(finite, log_ratios, floor))
    log_weights = jnp.where(finite, log_weights, -jnp.inf)
    even = finite.any() & (log_weights.max() + jnp.log(log_weights.size) < 1)
    if log_weights.size >= MANY_DRAWS:
        k_hat = jnp.where(even, jnp.minimum(k_hat, FINITE_VARIANCE), k_hat)
    return log_weights, jnp.where(jnp.isnan(k_hat), jnp.where(even, 0.0, jnp.inf), k_hat)


class Weighting(NamedTuple):
    """Means and standard deviations before and after importance weighting.

    `sd_error` is the Monte-Carlo error of the change of each log sd. It is large where a few far draws decide, as where
    the posterior has no variance.
    """

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    weighted_mean: Float[np.ndarray, " d"]
    weighted_sd: Float[np.ndarray, " d"]
    sd_error: Float[np.ndarray, " d"]

    @property
    def mean_shift(self) -> float:
        """The largest shift of a mean, in standard deviations."""
        return float(np.abs((self.weighted_mean - self.mean) / self.sd).max())

    @property
    def log_spread_shift(self) -> float:
        """The largest |log| of the ratio of standard deviations."""
        return float(np.abs(np.log(self.weighted_sd / self.sd)).max())

    @property
    def certain_log_spread_shift(self) -> float:
        """The same as far as it exceeds two Monte-Carlo errors."""
        shift = np.abs(np.log(self.weighted_sd / self.sd)) - 2 * self.sd_error
        return float(np.maximum(shift, 0.0).max())


def weighting(x: Float[Array, "n d"], log_weights: Float[Array, " n"]) -> Weighting:
    """Return the moments of the draws x, without and with normalised weights."""
    points, weights = np.asarray(x, np.float64), np.exp(np.asarray(log_weights, np.float64))
    weights = weights / weights.sum()
    mean = weights @ points
    square = (points - mean) ** 2
    variance = weights @ square
    change = (weights - 1 / len(weights))[:, None] * (square - variance)
    error = 0.5 * np.sqrt((change**2).sum(0)) / variance
    return Weighting(points.mean(0), points.std(0), mean, np.sqrt(variance), error)


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
    """Summarise log p − log q, and return Pareto-smoothed, normalised log weights beside the summary.

    log Z = log E_q[p/q] and the effective share use the unsmoothed ratios. The bound is for q restricted to where
    log p is finite, a share a of it: E_q[log p − log q | finite] + log a ≤ log Z.
    """
    ratios = np.asarray(log_ratios, np.float64)
    finite = np.isfinite(ratios)
    n, usable = len(ratios), ratios[finite]
    log_weights, k_hat = smoothed_log_weights(log_ratios)
    if not len(usable):
        nothing = Importance(-math.inf, math.nan, -math.inf, math.nan, 0.0, math.inf, 1.0, n)
        return nothing, log_weights
    weights = np.exp(usable - usable.max())
    share = float(weights.sum() ** 2 / (weights**2).sum() / n)
    summary = Importance(
        elbo=float(usable.mean() + math.log(len(usable) / n)),
        elbo_se=float(usable.std() / math.sqrt(len(usable))),
        log_evidence=log_evidence(usable, n),
        log_evidence_se=log_evidence_se(share, n),
        effective_share=share,
        k_hat=float(k_hat),
        rejected=float(1 - finite.mean()),
        draws=n,
    )
    return summary, log_weights
