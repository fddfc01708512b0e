"""Matrix products with all the digits of their type.

By default an NVIDIA GPU multiplies float32 matrices in TF32, with 10 bits after the leading one. A layer of a network
loses nothing by that; the coordinates of a draw do, as log q is then the density of another point, and so do
differences of nearly equal sums, such as the distances and gradients of kernels.
"""

from jax import numpy as jnp
from jaxtyping import Array, Shaped


def product(a: Shaped[Array, "..."], b: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """a @ b in full precision on every device."""
    return jnp.matmul(a, b, precision="highest")
