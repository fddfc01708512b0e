r"""Convolutions whose weights differ from particle to particle.

Under `jax.vmap` over weights, `jax.lax.conv` becomes a grouped convolution with one group for each particle, which XLA
runs far below the speed of a matrix product. The same sum

    y[o; b, i, j] = Σ_{u, v, c} w[u, v, c, o] x[b, s i + u, s j + v, c]

is the product of w, as an (o, u v c) matrix, with the patches of x (rows u, v, c; columns b, i, j), and stays one,
with a batch axis, for many w. Where x is shared by the particles, as the data are in a first layer, its patches are
formed once. The long axis b, i, j comes last: with patches as rows instead, the products are thin and the copies
strided. `gpvi bench --case convolution` measures the forms.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpvi.errors import InputError

Padding = Literal["SAME", "VALID"] | tuple[tuple[int, int], tuple[int, int]]

ROUND, MANY = 1_024, 4_096
"""On a GPU, MANY patches or more are padded to a multiple of ROUND. For the gradient in the weights XLA cuts the sum
over patches into parts; if these are uneven, it copies all patches once more to pad them. Our padding is fused into the
pass that makes the patches."""


def convolve(
    x: Float[Array, "b h w c"],
    weight: Float[Array, "u v c o"],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
) -> Float[Array, "b i j o"]:
    """Convolve NHWC images with an unflipped (u, v, in, out) weight, as one matrix product."""
    rows, columns, channels, outputs = weight.shape
    patches = patches_of(x, (rows, columns), stride=stride, padding=padding)
    matrix = weight.reshape(rows * columns * channels, outputs)
    across = patches.reshape(len(matrix), -1)
    number = across.shape[1]
    products = (matrix.T @ jnp.pad(across, ((0, 0), (0, _padding_patches(number)))))[:, :number]
    return products.reshape(outputs, *patches.shape[1:]).transpose(1, 2, 3, 0)


def _padding_patches(number: int) -> int:
    """Return how many patches of zeros to append."""
    return -number % ROUND if number >= MANY and jax.default_backend() == "gpu" else 0


def patches_of(
    x: Float[Array, "b h w c"],
    window: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
) -> Float[Array, "p b i j"]:
    """Return every window of x as a column of u v c entries, made from copies of x shifted across and then down."""
    around = margins((x.shape[1], x.shape[2]), window, stride, padding)
    padded = jnp.pad(x.transpose(3, 0, 1, 2), ((0, 0), (0, 0), *around))
    height, width = (
        1 + (padded.shape[2 + axis] - window[axis]) // stride[axis] for axis in range(2)
    )
    if height < 1 or width < 1:
        raise InputError(
            f"a window of {window} does not fit in images of {x.shape[1:3]}. Use padding='SAME' or larger images."
        )
    last = (stride[0] * (height - 1) + 1, stride[1] * (width - 1) + 1)
    across = [padded[:, :, :, v : v + last[1] : stride[1]] for v in range(window[1])]
    beside = jnp.concatenate(across)
    down = [beside[:, :, u : u + last[0] : stride[0]] for u in range(window[0])]
    return jnp.concatenate(down)


def margins(
    size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], padding: Padding
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return how many zeros go before and after each of the two axes."""
    if not isinstance(padding, str):
        return padding
    first, second = jax.lax.padtype_to_pads(size, window, stride, padding)
    return first, second


def max_pool(
    x: Float[Array, "b h w c"], window: tuple[int, int] = (2, 2)
) -> Float[Array, "b i j c"]:
    """Return the largest value in each window of a tiling; what is left over at the edges is dropped."""
    height, width = x.shape[1] // window[0], x.shape[2] // window[1]
    tiles = x[:, : height * window[0], : width * window[1]].reshape(
        len(x), height, window[0], width, window[1], x.shape[3]
    )
    return tiles.max((2, 4))
