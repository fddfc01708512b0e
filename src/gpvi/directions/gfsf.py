"""Gradient flow with smoothed test functions (Liu et al. 2019)."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.directions.points import Points
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import require_positive, spec


@spec
class GFSFDirection:
    """Φ = S + (K + εI)^{-1} K′, K′_i = Σ_j ∇_{x_j} k(x_j, x_i), by Cholesky.

    (K + εI)^{-1}K′ estimates −∇ log q by Stein's identity; it is sensitive to the bandwidth and to the ridge ε.
    The estimate lives on its own points: asked elsewhere, it is made there.
    """

    kernel: Kernel | str = "rbf"
    ridge: float = 1e-2

    def __post_init__(self):
        require_positive("ridge (ε)", self.ridge, "Try 1e-2; smaller is sharper and less stable.")

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
        x, score = (x, score) if at is None else at
        gram = as_kernel(self.kernel)(x, x)
        factor = cho_factor(gram.value + self.ridge * jnp.eye(len(x), dtype=x.dtype), lower=True)
        return score + cho_solve(factor, gram.gradient_sum()), state
