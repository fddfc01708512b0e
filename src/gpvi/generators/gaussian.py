"""Gaussians q = N(b, LLᵀ) as generators x = b + Lz, by the form of L: diagonal, triangular, or any matrix.

The first two are triangular generators with an affine head of all coordinates (k = d): log|det J| = Σ log L_ii. The
last is the generator of the paper's density and linear-regression tasks (with λ = 0).
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.precision import product
from gpvi.generators.base import AbstractGenerator, Generator
from gpvi.generators.bijections import AffineHead, LowerTriangularHead, TailedHead
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_instance, require_positive, spec


@dataclass(frozen=True)
class _Scaled(Generator):
    """A Gaussian that starts at N(0, scale² I)."""

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")

    def _log_scale(self, dim: int, dtype: DTypeLike) -> Float[Array, " d"]:
        return jnp.full(dim, math.log(self.scale), dtype)


@spec
class Diagonal(_Scaled):
    """q = N(b, diag σ²).

    Parameters
    ----------
    scale
        The initial σ; b starts at 0.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Diagonal(scale=0.5))
    """

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        return TriangularMap(AffineHead(jnp.zeros(dim, dtype), self._log_scale(dim, dtype)), None)


@spec
class FullRank(_Scaled):
    """q = N(b, LLᵀ) with a lower-triangular L of positive diagonal.

    Parameters
    ----------
    scale
        L starts at `scale` · I; b starts at 0.
    tails
        Whether x = b + L h(z), where h gives each coordinate tails of a learned weight, from nearly Gaussian ones to
        those of a Cauchy distribution.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.FullRank(), gradient="l2")
    """

    tails: bool = False

    def __post_init__(self):
        super().__post_init__()
        require_instance("tails", self.tails, bool)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        shift, lower = jnp.zeros(dim, dtype), jnp.zeros((dim, dim), dtype)
        head = LowerTriangularHead(shift, self._log_scale(dim, dtype), lower)
        return TriangularMap(TailedHead.light(head, dtype) if self.tails else head, None)


class LinearMap(AbstractGenerator):
    """x = b + W z, so q = N(b, WWᵀ)."""

    weight: Float[Array, "d d"]
    bias: Float[Array, " d"]

    @property
    def injective(self) -> bool:
        """True: W is invertible almost everywhere, and stays so while log|det W| is finite."""
        return True

    @property
    def dim(self) -> int:
        """d."""
        return self.bias.shape[0]

    @property
    def constant_head(self) -> bool:
        """True: A = W."""
        return True

    def head(self, z_head):
        """Return b + W z."""
        return product(self.weight, z_head) + self.bias

    def head_jacobian(self, z_head):
        """Return W."""
        return lx.MatrixLinearOperator(self.weight)

    def inverse(self, x):
        """Return W^{-1}(x − b)."""
        return jnp.linalg.solve(self.weight, x - self.bias)


@spec
class Linear(Generator):
    """q = N(b, WWᵀ) with any matrix W, from W = I and b = 0.

    It is injective wherever W is invertible, which is almost everywhere.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Linear(), gradient="functional")
    """

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> LinearMap:
        """Build the map for a target of `dim` dimensions."""
        return LinearMap(jnp.eye(dim, dtype=dtype), jnp.zeros(dim, dtype))
