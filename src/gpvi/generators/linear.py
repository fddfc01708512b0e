"""x = b + W z: the generator of the paper's density and linear-regression tasks (λ off)."""

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.precision import product
from gpvi.generators.base import AbstractGenerator
from gpvi.specs import spec


class LinearMap(AbstractGenerator):
    """q = N(b, WWᵀ)."""

    weight: Float[Array, "d d"]
    bias: Float[Array, " d"]

    @property
    def injective(self) -> bool:
        """W is invertible almost everywhere, and a gradient that keeps log|det W| finite keeps it so."""
        return True

    @property
    def dim(self) -> int:
        """d."""
        return self.bias.shape[0]

    @property
    def latent(self) -> int:
        """d: the head is everything."""
        return self.bias.shape[0]

    @property
    def constant_head(self) -> bool:
        """A = W."""
        return True

    def head(self, z_head):
        """b + W z."""
        return product(self.weight, z_head) + self.bias

    def tail(self, z_head, z_tail):
        """Empty."""
        return z_tail

    def tail_scale(self, z_head):
        """Empty."""
        return z_head[:0]

    def head_jacobian(self, z_head):
        """W."""
        return lx.MatrixLinearOperator(self.weight)

    def inverse(self, x):
        """W^{-1}(x − b)."""
        return jnp.linalg.solve(self.weight, x - self.bias)


@spec
class Linear:
    """q = N(b, WWᵀ), from W = I; injective wherever W is invertible, which is almost everywhere."""

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> LinearMap:
        """The map for a target of `dim` dimensions."""
        return LinearMap(jnp.eye(dim, dtype=dtype), jnp.zeros(dim, dtype))
