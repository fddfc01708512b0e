"""Whether to believe a posterior: pure functions of draws and densities."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Scalar

from gpvi.generators import AbstractGenerator


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


def effective_share(log_weights: Float[Array, " n"]) -> Scalar:
    """Importance effective sample size as a share of the draws: (Σw)² / (n Σw²)."""
    total = jax.nn.logsumexp(log_weights)
    squares = jax.nn.logsumexp(2 * log_weights)
    return jnp.exp(2 * total - squares) / log_weights.size


def smoothed_log_weights(log_ratios: Float[Array, " n"]) -> tuple[Float[Array, " n"], Scalar]:
    """Pareto-smoothed, normalised log importance weights and k̂ (Vehtari et al. 2024), by BlackJAX.

    A ratio that is not finite is a draw outside the support, or where log p failed: it gets no weight.
    """
    from blackjax.diagnostics import psis_weights

    finite = jnp.isfinite(log_ratios)
    floor = jnp.where(finite, log_ratios, jnp.inf).min() - 100.0
    log_weights, k_hat = psis_weights(jnp.where(finite, log_ratios, floor))
    return jnp.where(finite, log_weights, -jnp.inf), k_hat


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What can be said of q against p from draws of q; `str` of it is a table."""

    elbo: float
    elbo_se: float
    effective_share: float
    """Importance ESS as a share of the draws."""
    k_hat: float
    fold: float
    condition: float
    density: str
    """"exact" for injective generators, "unverified" for others without a fold seen, "invalid" with one."""
    rejected: float
    """The share of draws at which log p was not finite."""
    draws: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [
            ("ELBO", f"{self.elbo:.4f} ± {self.elbo_se:.4f}", "a lower bound on log evidence"),
            ("importance ESS", f"{self.effective_share:.3f} of {self.draws}", "1 where q = p"),
            ("k̂", f"{self.k_hat:.2f}", _k_hat_in_words(self.k_hat)),
            ("fold fraction", f"{self.fold:.3f}", f"densities are {self.density}"),
            (
                "conditioning of A",
                f"{self.condition:.3g}",
                "largest singular value over the smallest",
            ),
        ]
        if self.rejected > 0:
            rows.append(("rejected draws", f"{self.rejected:.3f}", "log p was not finite there"))
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([*lines, *self.warnings])

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


def diagnose(
    *,
    log_p: Float[Array, " n"],
    log_q: Float[Array, " n"],
    fold: float,
    condition: float,
    injective: bool,
    notes: tuple[str, ...] = (),
) -> Diagnosis:
    """A diagnosis from log p and log q at draws of q."""
    ratios = log_p - log_q
    finite = np.isfinite(np.asarray(ratios))
    kept = np.asarray(ratios)[finite]
    _, k_hat = smoothed_log_weights(ratios)
    share = effective_share(jnp.where(jnp.asarray(finite), ratios, -jnp.inf)) if len(kept) else 0.0
    return Diagnosis(
        elbo=float(kept.mean()) if len(kept) else -math.inf,
        elbo_se=float(kept.std() / math.sqrt(len(kept))) if len(kept) else math.nan,
        effective_share=float(share),
        k_hat=float(k_hat),
        fold=fold,
        condition=condition,
        density="exact" if injective else ("unverified" if fold == 0 else "invalid"),
        rejected=float(1 - finite.mean()),
        draws=len(finite),
        notes=notes,
    )


def _k_hat_in_words(k_hat: float) -> str:
    if k_hat < 0.5:
        return "importance weights are reliable"
    if k_hat <= 0.7:
        return "importance weights are usable"
    return "importance weights are not reliable: do not trust averages over them"
