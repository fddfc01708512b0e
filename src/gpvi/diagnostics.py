"""Whether to believe a posterior: pure functions of draws and densities."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Scalar

from gpvi.errors import InputError
from gpvi.evidence import log_evidence, log_evidence_se
from gpvi.generators import AbstractGenerator
from gpvi.kernels import RBF, median, squared_distances
from gpvi.verdict import EVEN_SHARE, HOPELESS_K_HAT, Verdict


def fold_fraction(signs: Float[Array, " n"]) -> Scalar:
    """The share of draws whose sign of det J differs from the majority's.

    The sign itself is an orientation and means nothing; where it changes, J is singular on the way and f folds. Zero is
    necessary for injectivity, not sufficient: a map can wrap around with det J > 0 everywhere. A singular J (sign 0, or
    NaN) has no orientation, so it differs from either.
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
    """MMD² = E k(x, x′) + E k(y, y′) − 2 E k(x, y) of two sets of draws, without bias (Gretton et al. 2012).

    About 0, of either sign, where both are from one distribution, such as a posterior and reference draws of it. k is
    the RBF kernel with h the median of the squared distances between the two sets, 1 where that is 0.
    """
    if min(len(x), len(y)) < 2:
        raise InputError(f"there are {len(x)} and {len(y)} draws; both sets need two at least.")
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

    A ratio that is not finite is a draw outside the support, or where log p failed: it gets no weight. Where a quarter
    of the tail ties, as by rounding where q = p, no Pareto law can be fitted: k̂ is 0 if no weight is above e times the
    mean, which leaves no room for a tail, and infinite otherwise.
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
    """Moments of the draws x, and of the same with normalised weights."""
    points, weights = np.asarray(x, np.float64), np.exp(np.asarray(log_weights, np.float64))
    weights = weights / weights.sum()
    mean = weights @ points
    variance = weights @ (points - mean) ** 2
    return Weighting(points.mean(0), points.std(0), mean, np.sqrt(variance))


class Importance(NamedTuple):
    """What log p − log q at draws of q says: the bound, the evidence, and how far the weights can be relied on."""

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

    log Z = log E_q[p/q] is from the ratios as they are, and so is the effective share. The bound is of q restricted to
    where log p is finite, a share a of it: E_q[log p − log q | finite] + log a ≤ log Z.
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


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What can be said of a posterior; `str` of it is a table that ends in the verdict.

    What a method cannot know is None: without a density all that rests on log q, without chains R̂. One chain is
    compared half with half.
    """

    draws: int
    verdict: Verdict
    elbo: float | None = None
    elbo_se: float | None = None
    log_evidence: float | None = None
    """By importance sampling from q."""
    log_evidence_se: float | None = None
    effective_share: float | None = None
    """Importance ESS as a share of the draws."""
    k_hat: float | None = None
    fold: float | None = None
    condition: float | None = None
    density: str = "none"
    """"exact" for injective generators, "unverified" for others without a fold seen, "invalid" with one."""
    rejected: float = 0.0
    """The share of draws at which log p was not finite."""
    missing: float | None = None
    """The share of the posterior that the draws are seen to miss; None where nothing else than them was seen."""
    weighting: Weighting | None = None
    stein_mean: float | None = None
    """The largest |E[s_i]|, in standard errors of independent draws: a few at most where the means are right."""
    stein_spread: tuple[float, float] | None = None
    """−E[(x_i − m_i) s_i], least and largest, in the coordinates of training: 1 where the spread is right."""
    discrepancy: float | None = None
    """The kernel Stein discrepancy."""
    discrepancy_p: float | None = None
    rhat: float | None = None
    ess: float | None = None
    """The least effective sample size, bulk or tail, of any coordinate of the chains."""
    divergences: int | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [row for row in self._rows() if row is not None]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([*lines, *self.warnings, str(self.verdict)])

    def _rows(self) -> Iterator[tuple[str, str, str] | None]:
        if self.elbo is not None:
            yield "ELBO", f"{self.elbo:.4f} ± {self.elbo_se:.4f}", "a lower bound on log evidence"
            yield (
                "log evidence",
                f"{self.log_evidence:.4f} ± {self.log_evidence_se:.4f}",
                "by importance sampling",
            )
            yield "importance ESS", f"{self.effective_share:.3f} of {self.draws}", "1 where q = p"
            words = _k_hat_in_words(self.k_hat or 0.0, self.effective_share or 0.0)
            yield "k̂", f"{self.k_hat:.2f}", words
        if self.weighting is not None:
            moved = f"{self.weighting.mean_shift:.3f} sd, {math.expm1(self.weighting.log_spread_shift):.1%}"
            yield "weights move", moved, "the mean and the spread of some coordinate by this much"
        if self.missing is not None:
            yield (
                "seen to be missed",
                f"{self.missing:.1%}",
                "of the posterior; a spike that nothing met would not be seen",
            )
        if self.fold is not None:
            yield "fold fraction", f"{self.fold:.3f}", f"densities are {self.density}"
            yield (
                "conditioning of A",
                f"{self.condition:.3g}",
                "largest singular value over the least",
            )
        if self.stein_spread is not None:
            low, high = self.stein_spread
            yield (
                "Stein mean",
                f"{self.stein_mean:.1f} s.e.",
                "of the score; beyond 4 a mean is off",
            )
            yield (
                "Stein spread",
                f"{low:.2f} to {high:.2f}",
                "of the coordinates; 1 where it is right",
            )
            yield (
                "Stein discrepancy",
                f"{self.discrepancy:.3g} (p = {self.discrepancy_p:.2f})",
                "a small p rules out independent draws of the posterior",
            )
        if self.rhat is not None:
            yield "R̂", f"{self.rhat:.3f}", "1 where the chains agree"
            yield (
                "ESS of the chains",
                f"{self.ess:.0f}",
                "the least over coordinates, bulk and tail",
            )
            yield "divergences", f"{self.divergences}", "none is right"
        if self.rejected > 0:
            yield "rejected draws", f"{self.rejected:.3f}", "log p was not finite there"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Plain sentences on what not to believe."""
        said = list(self.notes)
        if self.density == "invalid":
            said.append(
                f"WARNING: {self.fold:.1%} of the draws lie on a fold of the generator, so its ELBO, k̂ and log q are "
                "invalid (a folded map over-counts its entropy). Use an injective generator such as Triangular."
            )
        elif self.density == "unverified":
            said.append(
                "The generator is not injective by construction: no fold was seen, but its ELBO, k̂ and log q "
                "are unverified."
            )
        return tuple(said)


def _k_hat_in_words(k_hat: float, effective_share: float) -> str:
    if k_hat < 0.5:
        return "importance weights are reliable"
    if k_hat <= 0.7:
        return "importance weights are usable"
    if k_hat <= HOPELESS_K_HAT and effective_share >= EVEN_SHARE:
        return "importance weights are even, with a heavy tail: mind rare events"
    return "importance weights are not reliable: do not trust averages over them"
