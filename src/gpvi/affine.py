"""The affine change of coordinates x = location + scale · u that brings a posterior near the standard normal."""

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, DTypeLike, Float, Scalar

from gpvi.arithmetic import product


class Affine(eqx.Module):
    """x = location + L u, with L diagonal (`scale` of shape (d,)) or lower-triangular (shape (d, d))."""

    location: Float[Array, " d"]
    scale: Float[Array, " d"] | Float[Array, "d d"]

    @classmethod
    def identity(cls, dim: int, dtype: DTypeLike) -> "Affine":
        """The coordinates as they are."""
        return cls(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))

    @property
    def diagonal(self) -> Float[Array, " d"]:
        """diag L, in either form."""
        return self.scale if self.scale.ndim == 1 else jnp.diagonal(self.scale)

    def __call__(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """u ↦ x."""
        return self.location + (self.scale * u if self.scale.ndim == 1 else product(self.scale, u))

    def inverse(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """x ↦ u."""
        centred = x - self.location
        if self.scale.ndim == 1:
            return centred / self.scale
        return solve_triangular(self.scale, centred, lower=True)

    def solve_transposed(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        """The y with Lᵀy = v."""
        return (
            v / self.scale
            if self.scale.ndim == 1
            else solve_triangular(self.scale, v, trans=1, lower=True)
        )

    def log_det(self) -> Scalar:
        """log|det L|."""
        return jnp.log(jnp.abs(self.diagonal)).sum()
