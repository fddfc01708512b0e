"""Stein variational gradient descent (Liu & Wang 2016; the paper's Eq. 13).

φ is the functional gradient of −KL(q‖p) for the map of x, at the identity (Eq. 15); Thm 3.1 has it for that of z.
"""

from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.directions.points import Points
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import spec


@spec
class SVGDDirection:
    """φ(y) = (1/n) Σ_j [k(x_j, y) s_j + ∇_{x_j} k(x_j, y)], at the particles y = x_i or at other points.

    With h = med²/log n a particle weighs as much in its own sum as all the others together. A fixed set is defined
    by that; a generator, whose Eq. 13 is an expectation over x′, wants x′ drawn apart from the points where φ is
    pulled back.
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
        gram = as_kernel(self.kernel)(x, x if at is None else at.x)
        return (gram.smooth(score) + gram.gradient_sum()) / len(x), state
