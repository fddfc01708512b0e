"""Gradient flow with smoothed density (Liu et al. 2019)."""

import jax.numpy as jnp

from gpvi.directions.base import Direction, Points
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import spec


@spec
class GFSDDirection(Direction):
    """φ(x_i) = s_i − ∇ log q̂(x_i), with q̂(x) = Σ_j k(x, x_j) the smoothed density.

    The gradient is in the first argument alone; for a radial kernel ∇₁k(x_i, x_j) = −∇₁k(x_j, x_i). Far from all x_j
    the kernel underflows to 0 and there is no estimate of q̂. There φ is the score, which brings the point back;
    extrapolating log q̂ would push it outwards with a force that grows with the distance.

    Parameters
    ----------
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> x = jax.random.normal(key, (10, 2))
    >>> phi, _ = gpvi.directions.GFSDDirection()(None, x, -x, key=key)
    >>> phi.shape
    (10, 2)
    """

    kernel: Kernel | str = "rbf"

    def __call__(self, state, x, score, *, key, at=None):
        """Return φ at the points `at`, or at x itself."""
        at = Points(x, score) if at is None else at
        gram = as_kernel(self.kernel)(x, at.x)
        density = jnp.maximum(gram.value.sum(0), jnp.finfo(x.dtype).tiny)
        return at.score + gram.gradient_sum() / density[:, None], state
