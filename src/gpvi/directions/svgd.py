"""Stein variational gradient descent (Liu & Wang 2016; the paper's Eq. 13)."""

from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import spec


@spec
class SVGDDirection:
    """φ(x_i) = (1/n) Σ_j [k(x_j, x_i) s_j + ∇_{x_j} k(x_j, x_i)]."""

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
    ) -> tuple[Float[Array, "n d"], PyTree]:
        gram = as_kernel(self.kernel)(x, x)
        return (gram.smooth(score) + gram.gradient_sum()) / len(x), state
