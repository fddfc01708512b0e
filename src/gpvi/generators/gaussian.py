"""Gaussians q = N(b, LLᵀ) as generators x = b + Lz: L diagonal (mean field) or any Cholesky factor (full rank).

Each is a triangular generator whose head is everything (k = d) and affine: log|det J| = Σ log L_ii, constant.
"""

import math

import jax.numpy as jnp
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.bijections import AffineHead, LowerTriangularHead
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_positive, spec


@spec
class Diagonal:
    """q = N(b, diag σ²), from b = 0 and σ = `scale`."""

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """The map for a target of `dim` dimensions."""
        log_scale = jnp.full(dim, math.log(self.scale), dtype)
        return TriangularMap(AffineHead(jnp.zeros(dim, dtype), log_scale), None)


@spec
class FullRank:
    """q = N(b, LLᵀ), L lower-triangular with positive diagonal, from b = 0 and L = `scale` · I."""

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """The map for a target of `dim` dimensions."""
        log_scale = jnp.full(dim, math.log(self.scale), dtype)
        lower = jnp.zeros((dim, dim), dtype)
        return TriangularMap(LowerTriangularHead(jnp.zeros(dim, dtype), log_scale, lower), None)
