"""Gradient flow with smoothed test functions (Liu et al. 2019)."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from gpvi.directions.base import Direction
from gpvi.kernels import Kernel, as_kernel
from gpvi.specs import require_positive, spec


@spec
class GFSFDirection(Direction):
    """Φ = S + (K + εI)^{-1} K′, K′_i = Σ_j ∇_{x_j} k(x_j, x_i), by Cholesky.

    (K + εI)^{-1}K′ estimates −∇ log q by Stein's identity. It is sensitive to the bandwidth and to the ridge ε. The
    estimate exists only at the points it is made from: where φ is wanted at other points, it is made from those.

    Parameters
    ----------
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.
    ridge
        ε.

    Examples
    --------
    >>> x = jax.random.normal(key, (10, 2))
    >>> phi, _ = gpvi.directions.GFSFDirection(ridge=0.1)(None, x, -x, key=key)
    >>> phi.shape
    (10, 2)
    """

    kernel: Kernel | str = "rbf"
    ridge: float = 1e-2

    def __post_init__(self):
        require_positive("ridge (ε)", self.ridge, "Try 1e-2; smaller is sharper and less stable.")

    def __call__(self, state, x, score, *, key, at=None):
        """Return φ at the points `at`, or at x itself."""
        x, score = (x, score) if at is None else at
        gram = as_kernel(self.kernel)(x, x)
        factor = cho_factor(gram.value + self.ridge * jnp.eye(len(x), dtype=x.dtype), lower=True)
        return score + cho_solve(factor, gram.gradient_sum()), state
