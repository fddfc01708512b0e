r"""Whether the draws miss a part of the posterior: the ELBO against an evidence that owes nothing to the generator.

A generator that has lost a mode looks perfect from inside: its draws all lie where q fits p, so importance weights
and k̂ are fine. Its ELBO is short of log Z by −log(1 − m), m the mass it misses, and log Z can be estimated from
outside: by importance sampling from a wide Gaussian, in the coordinates where the posterior has scale one. In few
dimensions that estimate is sharp; in many its effective sample size vanishes, and nothing is claimed.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.carriers import standard_normal
from gpvi.diagnostics import effective_share
from gpvi.generators import AbstractGenerator
from gpvi.methods.base import log_standard_normal
from gpvi.target import Density

SPREAD = 1.5
PROPOSALS, DRAWS = 20_000, 4_000
LEAST_EFFECTIVE = 200
"""Effective proposals below which their evidence is not believed."""
TOLERATED = 0.1
"""Nats: a generator short by more than this misses 10 % of the posterior, or fits it badly."""


class Coverage(NamedTuple):
    """log Z from outside, the ELBO, and the standard error of their difference."""

    log_evidence: float
    elbo: float
    se: float

    @property
    def gap(self) -> float:
        """What the ELBO is short of, in nats."""
        return self.log_evidence - self.elbo

    @property
    def misses(self) -> bool:
        """Whether the draws miss a part of the posterior beyond doubt."""
        return self.gap > TOLERATED + 3 * self.se


def coverage(
    target: Density, generator: AbstractGenerator, *, key: PRNGKeyArray
) -> Coverage | None:
    """The comparison, or None where the wide proposal is no judge."""
    log_weights, ratios = _compare(target, generator, key)
    share = float(effective_share(log_weights))
    if not share * PROPOSALS > LEAST_EFFECTIVE:
        return None
    ratios = ratios[jnp.isfinite(ratios)]
    outside, inside = math.sqrt((1 / share - 1) / PROPOSALS), float(ratios.std()) / math.sqrt(DRAWS)
    log_evidence = float(jax.nn.logsumexp(log_weights)) - math.log(PROPOSALS)
    return Coverage(log_evidence, float(ratios.mean()), math.hypot(outside, inside))


@eqx.filter_jit
def _compare(
    target: Density, generator: AbstractGenerator, key: PRNGKeyArray
) -> tuple[Float[Array, " p"], Float[Array, " n"]]:
    """log p − log proposal at wide draws, and log p − log q at the generator's."""
    wide_key, noise_key = jax.random.split(key)
    u = standard_normal(generator, PROPOSALS, key=wide_key)
    stretch = generator.dim * math.log(SPREAD)

    def weight(point: Float[Array, " d"]) -> Scalar:
        return target.log_density(SPREAD * point) - log_standard_normal(point) + stretch

    def ratio(z: Float[Array, " d"]) -> Scalar:
        x, _, log_det = generator.transform_and_log_det(z)
        return target.log_density(x) - log_standard_normal(z) + log_det

    log_weights = jax.lax.map(weight, u, batch_size=1_000)
    z = standard_normal(generator, DRAWS, key=noise_key)
    ratios = jax.lax.map(ratio, z, batch_size=1_000)
    return jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf), ratios
