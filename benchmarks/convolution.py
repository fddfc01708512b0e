"""Ways to convolve with weights that differ from particle to particle, at the sizes of LeNet-5.

    python benchmarks/convolution.py [--particles 10] [--batch 100] [--repeats 20]

Times one evaluation of the sum of squared outputs and its gradients, in the weights for the first layer (whose
images all particles share) and in weights and images for the second. Prints times as ratios to the matrix product of
patches, `gpvi.bnn.convolution.convolve`. The least of several times counts: other load only adds.
"""

import argparse
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from gpvi.bnn.convolution import Padding, convolve, margins, patches_of

DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def grouped(x: Array, weight: Array, padding: Padding) -> Array:
    """XLA's convolution; `jax.vmap` makes a grouped one of it."""
    return jax.lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=DIMENSIONS)


def patch_columns(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches as columns, then one matrix product: the library's form."""
    return convolve(x, weight, padding=padding)


def patch_rows(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches as rows, channels last, then one matrix product."""
    patches = patches_of(x, (weight.shape[0], weight.shape[1]), padding=padding).transpose(
        1, 2, 3, 0
    )
    return patches @ weight.reshape(-1, weight.shape[-1])


def library_patches(x: Array, weight: Array, padding: Padding) -> Array:
    """Patches by `jax.lax.conv_general_dilated_patches`, then one matrix product."""
    patches = jax.lax.conv_general_dilated_patches(
        x, weight.shape[:2], (1, 1), padding, dimension_numbers=DIMENSIONS
    )
    return patches @ weight.transpose(2, 0, 1, 3).reshape(-1, weight.shape[-1])


def shifted_sum(x: Array, weight: Array, padding: Padding) -> Array:
    """One small matrix product for each offset of the window, summed; no patches are kept."""
    rows, columns = weight.shape[:2]
    padded = jnp.pad(
        x, ((0, 0), *margins((x.shape[1], x.shape[2]), (rows, columns), (1, 1), padding), (0, 0))
    )
    height, width = padded.shape[1] - rows + 1, padded.shape[2] - columns + 1
    terms = [
        padded[:, u : u + height, v : v + width] @ weight[u, v]
        for u in range(rows)
        for v in range(columns)
    ]
    return functools.reduce(jnp.add, terms)


def scanned(x: Array, weight: Array, padding: Padding) -> Array:
    """Not a form of its own: `grouped` for one particle after another (see `programs`)."""
    return grouped(x, weight, padding)


FORMS = (patch_columns, patch_rows, grouped, library_patches, shifted_sum, scanned)


def programs(form: Callable, particles: int, batch: int) -> dict[str, tuple[Callable, tuple]]:
    """The gradients of both layers, compiled for all particles at once."""
    keys = jax.random.split(jax.random.key(0), 4)
    first = (
        jax.random.normal(keys[0], (particles, 5, 5, 1, 6)),
        jax.random.normal(keys[1], (batch, 28, 28, 1)),
    )
    second = (
        jax.random.normal(keys[2], (particles, 5, 5, 6, 16)),
        jax.random.normal(keys[3], (particles, batch, 14, 14, 6)),
    )

    def loss(weight: Array, x: Array, padding: Padding) -> Array:
        return (form(x, weight, padding) ** 2).sum()

    def over_particles(one: Callable, axes: tuple) -> Callable:
        if form is not scanned:
            return jax.jit(jax.vmap(one, axes))
        if axes[1] is None:
            return jax.jit(lambda w, x: jax.lax.map(lambda wi: one(wi, x), w))
        return jax.jit(lambda w, x: jax.lax.map(lambda pair: one(*pair), (w, x)))

    return {
        "first layer": (
            over_particles(lambda w, x: jax.grad(loss)(w, x, "SAME"), (0, None)),
            first,
        ),
        "second layer": (
            over_particles(lambda w, x: jax.grad(loss, (0, 1))(w, x, "VALID"), (0, 0)),
            second,
        ),
    }


def seconds(program: Callable, arguments: tuple, repeats: int) -> float:
    """The least time of one call."""
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the forms of a convolution.")
    parser.add_argument("--particles", type=int, default=10)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.device_kind}: {options.particles} particles, batch of {options.batch}")
    print(f"{'form':<18}{'first layer':>24}{'second layer':>24}{'together':>12}")
    base: dict[str, float] = {}
    for form in FORMS:
        times = {
            name: seconds(program, arguments, options.repeats)
            for name, (program, arguments) in programs(
                form, options.particles, options.batch
            ).items()
        }
        base = base or times
        cells = [f"{1e3 * t:10.2f} ms {t / base[name]:6.2f}×" for name, t in times.items()]
        together = sum(times.values()) / sum(base.values())
        print(
            f"{form.__name__:<18}"
            + "".join(f"{cell:>24}" for cell in cells)
            + f"{together:>11.2f}×"
        )


if __name__ == "__main__":
    main()
