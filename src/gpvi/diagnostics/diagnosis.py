"""The diagnosis of a posterior: which numbers of `gpvi.diagnostics` it takes, and what the verdict is on them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.diagnostics import drawing, stein, verdict
from gpvi.diagnostics import mcmc as convergence
from gpvi.diagnostics.importance import (
    Weighting,
    conditioning,
    fold_fraction,
    importance,
    weighting,
)
from gpvi.diagnostics.missing_mass import FromStart, missing, outside_evidence
from gpvi.diagnostics.verdict import EVEN_SHARE, HOPELESS_K_HAT, Verdict
from gpvi.generators import Preconditioned
from gpvi.generators.noise import standard_normal
from gpvi.methods.carriers import Chains, Particles
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import scores


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a posterior; `str` gives a table that ends in the verdict.

    Quantities that a method does not have are None: those that need log q without a density, R̂ without chains. A
    single chain is split into halves.
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
    """"exact" for injective generators; for others "unverified", or "invalid" if a fold was detected."""
    rejected: float = 0.0
    """The share of draws at which log p was not finite."""
    missing: float | None = None
    """The share of the posterior found to be missing from the draws; None if there was nothing to compare with."""
    weighting: Weighting | None = None
    stein_mean: float | None = None
    """The largest |E[s_i]|, in standard errors of independent draws: at most a few if the means are correct."""
    stein_spread: tuple[float, float] | None = None
    """Smallest and largest −E[(x_i − m_i) s_i], in the coordinates of training: 1 if the spread is correct."""
    discrepancy: float | None = None
    """The kernel Stein discrepancy."""
    discrepancy_p: float | None = None
    rhat: float | None = None
    ess: float | None = None
    """The smallest effective sample size of the chains over all coordinates, bulk and tail."""
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
            yield "importance ESS", f"{self.effective_share:.3f} of {self.draws}", "1 if q = p"
            words = _k_hat_in_words(self.k_hat or 0.0, self.effective_share or 0.0)
            yield "k̂", f"{self.k_hat:.2f}", words
        if self.weighting is not None:
            moved = f"{self.weighting.mean_shift:.3f} sd, {math.expm1(self.weighting.log_spread_shift):.1%}"
            yield "weights move", moved, "largest shift of a mean, largest change of a spread"
        if self.missing is not None:
            yield (
                "found missing",
                f"{self.missing:.1%}",
                "of the posterior; a mode that no draw has visited cannot be detected",
            )
        if self.fold is not None:
            yield "fold fraction", f"{self.fold:.3f}", f"densities are {self.density}"
            yield (
                "conditioning of A",
                f"{self.condition:.3g}",
                "largest singular value over the smallest",
            )
        if self.stein_spread is not None:
            low, high = self.stein_spread
            yield (
                "Stein mean",
                f"{self.stein_mean:.1f} s.e.",
                "mean score in standard errors; above 4 some mean is wrong",
            )
            yield (
                "Stein spread",
                f"{low:.2f} to {high:.2f}",
                "smallest and largest over coordinates; 1 is correct",
            )
            yield (
                "Stein discrepancy",
                f"{self.discrepancy:.3g} (p = {self.discrepancy_p:.2f})",
                "a small p: these are not independent draws of the posterior",
            )
        if self.rhat is not None:
            yield "R̂", f"{self.rhat:.3f}", "1 if the chains agree"
            yield (
                "ESS of the chains",
                f"{self.ess:.0f}",
                "smallest over coordinates, bulk and tail",
            )
            yield "divergences", f"{self.divergences}", "should be 0"
        if self.rejected > 0:
            yield (
                "rejected draws",
                f"{self.rejected:.3f}",
                "share of draws at which log p was not finite",
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that say which numbers are invalid or unverified."""
        said = list(self.notes)
        if self.density == "invalid":
            said.append(
                f"WARNING: {self.fold:.1%} of the draws lie on a fold of the generator, so its ELBO, k̂ and log q are "
                "invalid (a folded map overestimates its entropy). Use an injective generator such as Triangular."
            )
        elif self.density == "unverified":
            said.append(
                "The generator is not injective by construction: no fold was detected, but its ELBO, k̂ and log q "
                "are unverified."
            )
        return tuple(said)


def _k_hat_in_words(k_hat: float, effective_share: float) -> str:
    if k_hat < 0.5:
        return "importance weights are reliable"
    if k_hat <= 0.7:
        return "importance weights are usable"
    if k_hat <= HOPELESS_K_HAT and effective_share >= EVEN_SHARE:
        return "importance weights are even but heavy-tailed: rare events may be wrong"
    return "importance weights are not reliable: do not trust averages over them"


FLAT_DIMENSIONS = 200
"""Beyond it the draws are too few to find the direction along which log p falls the least."""


def of_generator(
    generator: Preconditioned,
    density: Whitened,
    evidence: FromStart | None,
    notes: tuple[str, ...],
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
    missed = missing(
        found,
        outside_evidence(density, key=wide_key),
        None if evidence is None else evidence.evidence(density),
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
        notes=notes,
        **found._asdict(),
        **_stein(some, at, stein_key),
    )


def of_particles(
    held: Particles, density: Whitened, notes: tuple[str, ...], draws: int, *, key: PRNGKeyArray
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
            notes=notes,
            **checks,
        )
    said = verdict.of_particles(
        checks.get("stein_mean"),
        checks.get("stein_spread"),
        checks.get("discrepancy_p"),
        density.dim,
    )
    return Diagnosis(len(kept), said, notes=notes, **checks)


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
