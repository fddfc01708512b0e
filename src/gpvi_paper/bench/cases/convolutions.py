"""Ways to convolve with weights that differ from particle to particle, at the sizes of LeNet-5.

What is timed is the sum of squared outputs with its gradient. For the first layer, whose images all particles share,
that is the gradient with respect to the weights; for the second layer, with respect to weights and images.
"""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array

from gpvi.bnn.networks.convolution import Padding, convolve, margins, patches_of
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
PARTICLES, BATCH = 10, 100


def grouped(x: Array, weight: Array, padding: Padding) -> Array:
    """XLA's convolution, which `jax.vmap` turns into a grouped one."""
    return jax.lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=DIMENSIONS)


def patch_columns(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches as columns, then one matrix product: what the library does."""
    return convolve(x, weight, padding=padding)


def patch_rows(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches as rows, channels last, then one matrix product."""
    patches = patches_of(x, (weight.shape[0], weight.shape[1]), padding=padding)
    return patches.transpose(1, 2, 3, 0) @ weight.reshape(-1, weight.shape[-1])


def library_patches(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches by `jax.lax.conv_general_dilated_patches`, then one matrix product."""
    patches = jax.lax.conv_general_dilated_patches(
        x, weight.shape[:2], (1, 1), padding, dimension_numbers=DIMENSIONS
    )
    return patches @ weight.transpose(2, 0, 1, 3).reshape(-1, weight.shape[-1])


def shifted_sum(x: Array, weight: Array, padding: Padding) -> Array:
    """The sum of one small matrix product for each offset of the window, without patches in memory."""
    rows, columns = weight.shape[:2]
    around = margins((x.shape[1], x.shape[2]), (rows, columns), (1, 1), padding)
    padded = jnp.pad(x, ((0, 0), *around, (0, 0)))
    height, width = padded.shape[1] - rows + 1, padded.shape[2] - columns + 1
    terms = [
        padded[:, u : u + height, v : v + width] @ weight[u, v]
        for u in range(rows)
        for v in range(columns)
    ]
    return functools.reduce(jnp.add, terms)


OURS = "patches as columns"
FORMS: dict[str, Callable[[Array, Array, Padding], Array]] = {
    OURS: patch_columns,
    "patches as rows": patch_rows,
    "grouped convolution": grouped,
    "patches by JAX": library_patches,
    "sum of shifts": shifted_sum,
}


def results(setting: Setting) -> Iterator[Result]:
    """Time every form in turns with the library's, for both layers."""
    particles, batch = (2, 2) if setting.quick else (PARTICLES, BATCH)
    for layer in ("first layer", "second layer"):
        if not setting.wants(layer):
            continue
        programs = {name: _gradients(form, layer, particles, batch) for name, form in FORMS.items()}
        timings = in_turns(programs, setting.seconds)
        row = f"{layer}, {particles} particles, {batch} images"
        for name in timings:
            yield setting.timed(row, name, timings, None if name == OURS else OURS)


def _gradients(form: Callable, layer: str, particles: int, batch: int) -> Compiled:
    """Compile the gradients of all particles at once."""
    weight_key, image_key = jax.random.split(jax.random.key(0))

    def loss(weight: Array, x: Array, padding: Padding) -> Array:
        return (form(x, weight, padding) ** 2).sum()

    if layer == "first layer":
        weight = jax.random.normal(weight_key, (particles, 5, 5, 1, 6))
        x = jax.random.normal(image_key, (batch, 28, 28, 1))
        one = lambda w, x: jax.grad(loss)(w, x, "SAME")  # noqa: E731
        return Compiled(jax.vmap(one, (0, None)), weight, x)
    weight = jax.random.normal(weight_key, (particles, 5, 5, 6, 16))
    x = jax.random.normal(image_key, (particles, batch, 14, 14, 6))
    return Compiled(jax.vmap(lambda w, x: jax.grad(loss, (0, 1))(w, x, "VALID")), weight, x)
