r"""Whether the draws miss a part of the posterior: two estimates of the evidence, one independent of the draws.

A generator that has lost a mode looks perfect from inside. Its draws all lie where q fits p, so importance weights and
k̂ are fine. But log E_q[p/q] then falls short of log Z by −log(1 − m), where m is the mass it misses, and log Z can be
estimated without q: by importance sampling from a wide Gaussian, in coordinates where the posterior has scale one. In
few dimensions this estimate is sharp; in many its effective sample size vanishes, and nothing is claimed. A second
estimate comes from the search for a start, which samples from the Gaussians at the ends of its paths. Neither detects
a mode that none of its own draws has visited, such as a spike.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi.diagnostics.importance import (
    Importance,
    effective_share,
    log_evidence_se,
)
from gpvi.diagnostics.verdict import TOLERATED_MISSING
from gpvi.errors import StorageError
from gpvi.generators.noise import log_standard_normal
from gpvi.targets.density import Density, expensive

SPREAD = 1.5
"""Standard deviation of the wide Gaussian, in units of the posterior's."""
PROPOSALS, FEW_PROPOSALS = 20_000, 4_000
"""Draws of the wide Gaussian; the smaller number if log p is expensive."""
LEAST_EFFECTIVE = 200
"""An estimate from fewer effective draws is not used."""
LARGEST_ERROR = LEAST_EFFECTIVE**-0.5
"""The standard error of log Z with that many effective draws."""
MOST_DIMENSIONS = 40
"""Beyond this too few draws are effective even for a Gaussian posterior: each dimension keeps 83 % of them."""


class ReferenceEvidence(NamedTuple):
    """An estimate of log Z that does not use the draws of q, and its standard error."""

    log_evidence: float
    se: float


class InitialEvidence(NamedTuple):
    """log Z from the search for a start, its standard error, and log p at the start's location.

    The last number identifies the target: a saved posterior may later be given a target with other data.
    """

    log_evidence: float
    se: float
    log_density: float

    @classmethod
    def measured(cls, density: Density, log_evidence: float, se: float) -> "InitialEvidence | None":
        """Return the estimate with the target's log p, or None if it is too uncertain to be used."""
        here = float(_log_density_at_origin(density))
        usable = se <= LARGEST_ERROR and math.isfinite(here)
        return cls(log_evidence, se, here) if usable else None

    @classmethod
    def from_json(cls, stored: Any) -> "InitialEvidence | None":
        """Read the stored form: three numbers, or null."""
        if stored is None:
            return None
        numbers = isinstance(stored, list) and all(type(each) is float for each in stored)
        if not numbers or len(stored) != 3:
            raise StorageError(f"the evidence of the start is {str(stored)[:80]!r}.")
        return cls(*stored)

    def reference(self, density: Density) -> ReferenceEvidence | None:
        """Return the estimate if it belongs to this density, else None."""
        gap = abs(float(_log_density_at_origin(density)) - self.log_density)
        same = gap <= 1e-3 + 1e-6 * abs(self.log_density)
        return ReferenceEvidence(self.log_evidence, self.se) if same else None


def wide_gaussian_evidence(density: Density, *, key: PRNGKeyArray) -> ReferenceEvidence | None:
    """Estimate log Z by importance sampling from N(0, SPREAD² I); None if too few draws are effective."""
    if density.dim > MOST_DIMENSIONS:
        return None
    proposals = FEW_PROPOSALS if expensive(density) else PROPOSALS
    total, share = (float(each) for each in _wide_gaussian_weights(density, proposals, key))
    if not share * proposals > LEAST_EFFECTIVE:
        return None
    return ReferenceEvidence(total - math.log(proposals), log_evidence_se(share, proposals))


def missing_mass(
    own: Importance, *references: ReferenceEvidence | None, dtype: np.dtype
) -> float | None:
    """Return the share of the posterior that q misses, 1 − Ẑ_q/Ẑ, by the reference that finds the most.

    It is 0 where no difference is significant, and None without any reference. The rounding error of log p in `dtype`
    counts as uncertainty.
    """
    rounding = abs(own.log_evidence) * float(np.finfo(dtype).eps)

    def compared_with(reference: ReferenceEvidence) -> float:
        gap = reference.log_evidence - own.log_evidence
        uncertainty = 3 * math.hypot(reference.se, own.log_evidence_se) + rounding
        significant = gap > -math.log1p(-TOLERATED_MISSING) + uncertainty
        return -math.expm1(-gap) if significant else 0.0

    return max((compared_with(each) for each in references if each is not None), default=None)


@brief
def _log_density_at_origin(density: Density) -> Scalar:
    return density.log_densities(jnp.zeros((1, density.dim), density.dtype))[0]


@brief
def _wide_gaussian_weights(
    density: Density, proposals: int, key: PRNGKeyArray
) -> tuple[Scalar, Scalar]:
    """Return the logarithm of the sum of the importance weights, and their effective share."""
    u = jax.random.normal(key, (proposals, density.dim), density.dtype)
    log_weights = density.log_densities(SPREAD * u) - jax.vmap(log_standard_normal)(u)
    log_weights = log_weights + density.dim * math.log(SPREAD)
    log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
    return jax.nn.logsumexp(log_weights), effective_share(log_weights)
