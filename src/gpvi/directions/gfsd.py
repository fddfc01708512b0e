"""Gradient flow with smoothed density (Liu et al. 2019)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.directions.points import Points
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import spec


@spec
class GFSDDirection:
    """φ(x_i) = s_i − ∇ log q̂(x_i), with q̂(x) = Σ_j k(x, x_j) the smoothed density.

    The gradient is in the first argument alone; for a radial kernel ∇₁k(x_i, x_j) = −∇₁k(x_j, x_i). Where no kernel
    reaches (with x_j drawn apart, q̂ of a far draw underflows to 0) there is no estimate, and φ is the score, which
    brings the point back; log q̂ carried further would push it out with a force that grows with the distance.
    """

    kernel: Kernel | str = "rbf"

    def init(self, dim: int, *, key: PRNGKeyArray, dtype) -> None:
        """Nothing to learn."""

    def __call__(
        self,
        state: PyTree,
        x: Float[Array, "n d"],
        score: Float[Array, "n d"],
        *,
        key: PRNGKeyArray,
        at: Points | None = None,
    ) -> tuple[Float[Array, "m d"], PyTree]:
        at = Points(x, score) if at is None else at
        gram = as_kernel(self.kernel)(x, at.x)
        density = jnp.maximum(gram.value.sum(0), jnp.finfo(x.dtype).tiny)
        return at.score + gram.gradient_sum() / density[:, None], state
