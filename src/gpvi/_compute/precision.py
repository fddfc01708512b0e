"""Matrix products in the full precision of their dtype.

By default an NVIDIA GPU multiplies float32 matrices in TF32, whose significand has 10 bits after the leading one. That
is enough for the layers of a network. It is not enough for the coordinates of a draw, because log q would then be the
density of another point, nor for differences of nearly equal sums, such as the distances and gradients of kernels.
"""

from jax import numpy as jnp
from jaxtyping import Array, Shaped


def product(a: Shaped[Array, "..."], b: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """a @ b in full precision on every device."""
    return jnp.matmul(a, b, precision="highest")
