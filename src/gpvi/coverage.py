r"""Whether the draws miss a part of the posterior: two estimates of the evidence, one of which owes nothing to them.

A generator that has lost a mode looks perfect from inside: its draws all lie where q fits p, so importance weights
and k̂ are fine. But log E_q[p/q] is then short of log Z by −log(1 − m), m the mass it misses, and log Z can be
estimated from outside: by importance sampling from a wide Gaussian, in the coordinates where the posterior has
scale one. In few dimensions that estimate is sharp; in many its effective sample size vanishes, and nothing is claimed.
A second one comes from the start: the Gaussians in which its paths ended, wherever they lie. Neither sees what none of
their draws met, a spike among them.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.carriers import standard_normal
from gpvi.density import Density, at_once
from gpvi.diagnostics import Importance, effective_share, importance
from gpvi.errors import StorageError
from gpvi.evidence import log_evidence_se
from gpvi.generators import AbstractGenerator
from gpvi.methods.base import log_standard_normal

SPREAD = 1.5
PROPOSALS, DRAWS = 20_000, 4_000
LEAST_EFFECTIVE = 200
"""Effective proposals below which their evidence is not believed."""
WORST_ERROR = LEAST_EFFECTIVE**-0.5
"""The standard error of log Z by so many."""
MOST_DIMENSIONS = 40
"""Even of a Gaussian posterior fewer proposals would be effective beyond it: each dimension leaves a share of 0.83."""
TOLERATED = 0.02
"""The share of the posterior that may be missed before anything is said of it."""


class Outside(NamedTuple):
    """log Z by importance sampling from something else than q, and its standard error."""

    log_evidence: float
    se: float


class FromStart(NamedTuple):
    """log Z and its standard error as the start found them, and log p at its location, to know the target by."""

    log_evidence: float
    se: float
    log_density: float

    @classmethod
    def of(cls, target: Density, log_evidence: float, se: float) -> "FromStart | None":
        """What can be kept of an estimate for this target."""
        here = float(_at_location(target))
        return cls(log_evidence, se, here) if se <= WORST_ERROR and math.isfinite(here) else None

    @classmethod
    def read(cls, stored: Any) -> "FromStart | None":
        """From what a file holds: three numbers, or null."""
        if stored is None:
            return None
        numbers = isinstance(stored, list) and all(type(each) is float for each in stored)
        if not numbers or len(stored) != 3:
            raise StorageError(f"the evidence of the start is {str(stored)[:80]!r}.")
        return cls(*stored)

    def evidence(self, target: Density) -> Outside | None:
        """The estimate, if it is of this target: a posterior may be given another one, with other data."""
        gap = abs(float(_at_location(target)) - self.log_density)
        same = gap <= 1e-3 + 1e-6 * abs(self.log_density)
        return Outside(self.log_evidence, self.se) if same else None


def outside_evidence(target: Density, *, key: PRNGKeyArray) -> Outside | None:
    """The estimate that owes nothing to a generator, or None where the wide Gaussian is no judge."""
    if target.dim > MOST_DIMENSIONS:
        return None
    total, share = (float(found) for found in _wide_evidence(target, key))
    if not share * PROPOSALS > LEAST_EFFECTIVE:
        return None
    return Outside(total - math.log(PROPOSALS), log_evidence_se(share, PROPOSALS))


def missing(inside: Importance, *outside: Outside | None, dtype: np.dtype) -> float | None:
    """The share of the posterior that is missed, 1 − exp(inside − outside), where that is beyond doubt; else 0.

    The largest by any of the estimates; None where there is none. What `dtype` rounds off log p is in doubt, too.
    """
    rounding = abs(inside.log_evidence) * float(np.finfo(dtype).eps)

    def by(one: Outside) -> float:
        gap = one.log_evidence - inside.log_evidence
        doubt = 3 * math.hypot(one.se, inside.log_evidence_se) + rounding
        return -math.expm1(-gap) if gap > -math.log1p(-TOLERATED) + doubt else 0.0

    return max((by(one) for one in outside if one is not None), default=None)


def inside_evidence(
    target: Density, generator: AbstractGenerator, *, key: PRNGKeyArray
) -> Importance:
    """Importance sampling from the generator."""
    return importance(_log_ratios(target, generator, key))[0]


@eqx.filter_jit
def _at_location(target: Density) -> Scalar:
    return target.log_densities(jnp.zeros((1, target.dim), target.dtype))[0]


@eqx.filter_jit
def _wide_evidence(target: Density, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
    """The logarithm of the sum of the weights, and their effective share."""
    u = jax.random.normal(key, (PROPOSALS, target.dim), target.dtype)
    log_weights = target.log_densities(SPREAD * u) - jax.vmap(log_standard_normal)(u)
    log_weights = log_weights + target.dim * math.log(SPREAD)
    log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
    return jax.nn.logsumexp(log_weights), effective_share(log_weights)


@eqx.filter_jit
def _log_ratios(
    target: Density, generator: AbstractGenerator, key: PRNGKeyArray
) -> Float[Array, " n"]:
    def ratio(z: Float[Array, " d"]) -> Scalar:
        x, _, log_det = generator.transform_and_log_det(z)
        return target.log_density(x) - log_standard_normal(z) + log_det

    z = standard_normal(generator, DRAWS, key=key)
    return jax.lax.map(ratio, z, batch_size=at_once(target.dim))
