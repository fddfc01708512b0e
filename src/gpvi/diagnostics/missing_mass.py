r"""Whether the draws miss a part of the posterior: two estimates of the evidence, one independent of the draws.

A generator that has lost a mode looks perfect from inside: its draws all lie where q fits p, so importance weights
and k̂ are fine. But log E_q[p/q] is then short of log Z by −log(1 − m), m the mass it misses, and log Z can be
estimated from outside: by importance sampling from a wide Gaussian, in the coordinates where the posterior has
scale one. In few dimensions that estimate is sharp; in many its effective sample size vanishes, and nothing is claimed.
A second one comes from the starting search: the Gaussians in which its paths ended, wherever they lie. Neither can
detect a mode that none of their draws has visited, such as a spike.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.diagnostics.importance import Importance, effective_share, importance, log_evidence_se
from gpvi.errors import StorageError
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.targets.density import Density, at_once, expensive

SPREAD = 1.5
PROPOSALS, FEW_PROPOSALS, DRAWS = 20_000, 4_000, 4_000
"""Draws of the wide Gaussian, as many if log p is expensive, and draws of a generator."""
LEAST_EFFECTIVE = 200
"""Effective proposals below which their evidence estimate is not used."""
WORST_ERROR = LEAST_EFFECTIVE**-0.5
"""The standard error of log Z with that many effective proposals."""
MOST_DIMENSIONS = 40
"""Beyond it too few proposals would be effective even for a Gaussian posterior: each dimension keeps 0.83 of them."""
TOLERATED = 0.02
"""Missing share of the posterior below which nothing is reported."""


class Outside(NamedTuple):
    """log Z by importance sampling from a proposal other than q, and its standard error."""

    log_evidence: float
    se: float


class FromStart(NamedTuple):
    """log Z and its standard error from the starting search, and log p at its location, which identifies the target."""

    log_evidence: float
    se: float
    log_density: float

    @classmethod
    def of(cls, target: Density, log_evidence: float, se: float) -> "FromStart | None":
        """The storable part of an estimate for this target."""
        here = float(_at_location(target))
        return cls(log_evidence, se, here) if se <= WORST_ERROR and math.isfinite(here) else None

    @classmethod
    def read(cls, stored: Any) -> "FromStart | None":
        """From the stored value: three numbers, or null."""
        if stored is None:
            return None
        numbers = isinstance(stored, list) and all(type(each) is float for each in stored)
        if not numbers or len(stored) != 3:
            raise StorageError(f"the evidence of the start is {str(stored)[:80]!r}.")
        return cls(*stored)

    def evidence(self, target: Density) -> Outside | None:
        """The estimate, if it belongs to this target: a posterior may be given another one, with other data."""
        gap = abs(float(_at_location(target)) - self.log_density)
        same = gap <= 1e-3 + 1e-6 * abs(self.log_density)
        return Outside(self.log_evidence, self.se) if same else None


def outside_evidence(target: Density, *, key: PRNGKeyArray) -> Outside | None:
    """The estimate independent of any generator, or None if the wide Gaussian is not reliable."""
    if target.dim > MOST_DIMENSIONS:
        return None
    proposals = FEW_PROPOSALS if expensive(target) else PROPOSALS
    total, share = (float(found) for found in _wide_evidence(target, proposals, key))
    if not share * proposals > LEAST_EFFECTIVE:
        return None
    return Outside(total - math.log(proposals), log_evidence_se(share, proposals))


def missing(inside: Importance, *outside: Outside | None, dtype: np.dtype) -> float | None:
    """The missing share of the posterior, 1 − exp(inside − outside), if significant; else 0.

    The largest over the estimates; None without any. The rounding error of log p in `dtype` counts as uncertainty.
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
def _wide_evidence(target: Density, proposals: int, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
    """The logarithm of the sum of the weights, and their effective share."""
    u = jax.random.normal(key, (proposals, target.dim), target.dtype)
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
