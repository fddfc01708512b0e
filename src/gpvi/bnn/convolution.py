r"""Convolutions whose weights differ from particle to particle.

Under `jax.vmap` over weights, `jax.lax.conv` becomes a grouped convolution with one group for each particle, which XLA
runs far below the speed of a matrix product. The same sum

    y[b, i, j, o] = Σ_{u, v, c} x[b, s i + u, s j + v, c] w[u, v, c, o]

is a matrix product of the patches of x (rows b, i, j; columns u, v, c) with w as a (u v c, o) matrix, and stays one,
with a batch axis, for many w. Where x is shared by the particles, as the data are in a first layer, its patches are
formed once. `benchmarks/convolution.py` measures the forms.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpvi.errors import InputError

Padding = Literal["SAME", "VALID"] | tuple[tuple[int, int], tuple[int, int]]


def convolve(
    x: Float[Array, "b h w c"],
    weight: Float[Array, "u v c o"],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
) -> Float[Array, "b i j o"]:
    """The convolution (unflipped) of NHWC images with a (u, v, in, out) weight, as one matrix product."""
    rows, columns, channels, outputs = weight.shape
    patches = patches_of(x, (rows, columns), stride=stride, padding=padding)
    return patches @ weight.reshape(rows * columns * channels, outputs)


def patches_of(
    x: Float[Array, "b h w c"],
    window: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
) -> Float[Array, "b i j p"]:
    """Every window of x as a row of u v c entries: shifted copies of x side by side."""
    padded = jnp.pad(x, ((0, 0), *margins(x.shape[1:3], window, stride, padding), (0, 0)))
    (height, step_down), (width, step_right) = (
        (1 + (padded.shape[1 + axis] - window[axis]) // stride[axis], stride[axis])
        for axis in range(2)
    )
    if height < 1 or width < 1:
        raise InputError(
            f"a window of {window} does not fit in images of {x.shape[1:3]}. Use padding='SAME' or larger images."
        )
    shifted = [
        jax.lax.slice(
            padded,
            (0, u, v, 0),
            (
                len(x),
                u + step_down * (height - 1) + 1,
                v + step_right * (width - 1) + 1,
                x.shape[3],
            ),
            (1, step_down, step_right, 1),
        )
        for u in range(window[0])
        for v in range(window[1])
    ]
    return jnp.concatenate(shifted, -1)


def margins(
    size: tuple[int, ...], window: tuple[int, int], stride: tuple[int, int], padding: Padding
) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many zeros go before and after each of the two axes."""
    if isinstance(padding, str):
        first, second = jax.lax.padtype_to_pads(size, window, stride, padding)
        return tuple(first), tuple(second)
    return padding


def max_pool(
    x: Float[Array, "b h w c"], window: tuple[int, int] = (2, 2)
) -> Float[Array, "b i j c"]:
    """The largest value in each of the windows that tile the image; what is left over at the edge is dropped."""
    height, width = x.shape[1] // window[0], x.shape[2] // window[1]
    tiles = x[:, : height * window[0], : width * window[1]].reshape(
        len(x), height, window[0], width, window[1], x.shape[3]
    )
    return tiles.max((2, 4))
