"""The diagnosis of a posterior: which numbers of `gpvi.diagnostics` it takes, and what the verdict is on them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi import convergence, drawing, stein, verdict
from gpvi.carriers import Chains, Particles, standard_normal
from gpvi.coverage import missing, outside_evidence
from gpvi.density import scores
from gpvi.diagnostics import Diagnosis, conditioning, fold_fraction, importance, weighting
from gpvi.generators import Preconditioned
from gpvi.training import Training
from gpvi.whitened import Whitened

FLAT_DIMENSIONS = 200
"""Beyond it the draws are too few to find the direction along which log p falls the least."""


def of_generator(
    generator: Preconditioned,
    density: Whitened,
    training: Training,
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """What new draws and their densities say of a generator of the target's own coordinates."""
    draw_key, wide_key, stein_key, few_key = jax.random.split(key, 4)
    x, log_q, sign = drawing.draw_with_density(generator, draws, draw_key)
    found, log_weights = importance(drawing.log_densities(density.target, x) - log_q)
    moments = weighting(x, log_weights)
    fold = float(fold_fraction(sign))
    few = standard_normal(generator, min(draws, 256), key=few_key)
    kind = "exact" if generator.injective else ("unverified" if fold == 0 else "invalid")
    known = training.evidence
    missed = missing(
        found,
        outside_evidence(density, key=wide_key),
        None if known is None else known.evidence(density),
        dtype=density.dtype,
    )
    some = jax.vmap(density.affine.inverse)(x[: stein.POINTS])
    at = _scores(density, some)
    said = verdict.of_density(
        verdict.Evidence(
            found.draws,
            found.effective_share,
            found.k_hat,
            moments.mean_shift,
            moments.log_spread_shift,
            missed,
            found.rejected,
            kind,
            _fall(density, some, at),
        )
    )
    return Diagnosis(
        verdict=said,
        fold=fold,
        condition=float(_conditioning(generator.generator, few)),
        density=kind,
        missing=missed,
        weighting=moments,
        notes=training.notes,
        **found._asdict(),
        **_stein(some, at, stein_key),
    )


def of_particles(
    held: Particles, density: Whitened, training: Training, draws: int, *, key: PRNGKeyArray
) -> Diagnosis:
    """What particles, or the draws of chains, say of themselves; `draws` of them at most are compared with scores."""
    kept = held.drawn
    choice_key, stein_key = jax.random.split(key)
    some = jax.random.permutation(choice_key, len(kept))[: min(draws, stein.POINTS)]
    checks = _stein(kept[some], _scores(density, kept[some]), stein_key)
    if isinstance(held, Chains):
        mixed = convergence.summary(held.by_chain(kept))
        rhat = float(np.max(mixed.rhat))
        ess = float(np.min([mixed.ess_bulk, mixed.ess_tail]))
        divergences = held.divergences
        return Diagnosis(
            len(kept),
            verdict.of_chains(rhat, ess, divergences),
            rhat=rhat,
            ess=ess,
            divergences=divergences,
            notes=training.notes,
            **checks,
        )
    said = verdict.of_particles(
        checks.get("stein_mean"),
        checks.get("stein_spread"),
        checks.get("discrepancy_p"),
        density.dim,
    )
    return Diagnosis(len(kept), said, notes=training.notes, **checks)


def _stein(u: Float[Array, "n d"], at: Float[Array, "n d"], key: PRNGKeyArray) -> dict[str, Any]:
    """The checks that need no density, in the coordinates of training, by the scores at the draws."""
    finite = jnp.isfinite(at).all(1)
    if finite.sum() < 3:
        return {}
    u, at = u[finite], at[finite]
    mean, spread = stein.identities(u, at)
    found = stein.discrepancy(u, at, key=key)
    return {
        "stein_mean": float(jnp.abs(mean).max()),
        "stein_spread": (float(spread.min()), float(spread.max())),
        "discrepancy": float(found.value),
        "discrepancy_p": float(found.p_value),
    }


def _fall(density: Whitened, u: Float[Array, "n d"], at: Float[Array, "n d"]) -> float | None:
    """By how many nats log p is lower at draws moved outwards along its flattest direction.

    The median, on the side where it is less: 22 for a Gaussian, 3.9 for a Cauchy distribution. What falls by less than
    log `FAR` has no integral along that line.
    """
    finite = np.asarray(jnp.isfinite(at).all(1))
    few = finite.sum() < 2 * u.shape[1]
    if few or u.shape[1] > FLAT_DIMENSIONS or density.stream is not None:
        return None
    u, at = u[finite], at[finite]
    along, line = stein.flattest(u, at)
    moved = u + (verdict.FAR - 1) * along[:, None] * line
    fall = np.asarray(drawing.log_densities(density, u) - drawing.log_densities(density, moved))
    fall = np.where(np.isnan(fall), np.inf, fall)
    out = np.asarray(along) > 0
    return float(min(np.median(fall[side]) for side in (out, ~out) if side.any()))


_conditioning = eqx.filter_jit(conditioning)


@eqx.filter_jit
def _scores(density: Whitened, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return scores(density, u)
