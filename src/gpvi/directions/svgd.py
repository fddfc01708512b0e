"""Stein variational gradient descent (Liu & Wang 2016; the paper's Eq. 13).

φ is the functional gradient of −KL(q‖p) with respect to a map of x, at the identity (Eq. 15). Thm 3.1 has the one with
respect to the map of z.
"""

from gpvi.directions.base import Direction
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import spec


@spec
class SVGDDirection(Direction):
    """φ(y) = (1/n) Σ_j [k(x_j, y) s_j + ∇_{x_j} k(x_j, y)], with s_j the score at x_j.

    With h = med²/log n, a particle weighs as much in its own sum as all the others together. For a fixed set of
    particles this is the definition. For a generator Eq. 13 is an expectation over x′, so x′ should be drawn
    independently of the points where φ is pulled back.

    Parameters
    ----------
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> x = jax.random.normal(key, (10, 2))
    >>> phi, _ = gpvi.directions.SVGDDirection("imq")(None, x, -x, key=key)
    >>> phi.shape
    (10, 2)
    """

    kernel: Kernel | str = "rbf"

    def __call__(self, state, x, score, *, key, at=None):
        """Return φ at the points `at`, or at x itself."""
        gram = as_kernel(self.kernel)(x, x if at is None else at.x)
        return (gram.smooth(score) + gram.gradient_sum()) / len(x), state
