"""Draws of a generator and their densities, as compiled programs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi._compute.brief import brief
from gpvi.generators import AbstractGenerator
from gpvi.targets.density import Density

BLOCK, LARGE_BLOCK = 1_024, 16_384
"""Draws that one program makes, so that it need not be compiled anew for every number of draws."""
BLOCK_NUMBERS = 2**22
"""Most numbers (draws × dimension) in a block."""


def sample(generator: AbstractGenerator, n: int, key: PRNGKeyArray) -> Float[Array, "n d"]:
    """Return n draws x = f(z), made in blocks."""
    return _in_blocks(_transform, generator, n, key)


def sample_with_density(
    generator: AbstractGenerator, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Return the draws of `sample`, and log q of each (Eq. 1)."""
    return _in_blocks(_transform_with_density, generator, n, key)[:2]


def _in_blocks(
    function: Callable[..., Any], generator: AbstractGenerator, n: int, key: PRNGKeyArray
) -> Any:
    """Apply a function of the generator and its noise to n rows of noise, block by block.

    Only the last block is filled up, with noise that is dropped again, so that two programs serve any number of draws.
    """
    size = _block(n, generator.dim)
    z = noise(generator, -(-n // size) * size, key)
    parts = [function(generator, _rows(z, first, size)) for first in range(0, n, size)]
    joined = (
        parts[0] if len(parts) == 1 else jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
    )
    return jax.tree.map(lambda rows: rows[:n], joined)


def _rows(z: PyTree[Array], first: int, count: int) -> PyTree[Array]:
    return jax.tree.map(lambda each: each[first : first + count], z)


def _block(n: int, dim: int) -> int:
    """Return the rows of a block: of two sizes only, unless memory demands fewer than `BLOCK`."""
    most = max(1, BLOCK_NUMBERS // dim)
    if most < BLOCK:
        return 2 ** min(most.bit_length() - 1, (n - 1).bit_length())
    return LARGE_BLOCK if n >= LARGE_BLOCK <= most else BLOCK


@brief
def noise(generator: AbstractGenerator, n: int, key: PRNGKeyArray) -> PyTree[Array]:
    """Return n rows of the generator's noise."""
    return generator.noise(n, key=key)


@brief(calls=16)
def _transform(generator: AbstractGenerator, z: PyTree[Array]) -> Float[Array, "n d"]:
    return jax.vmap(generator)(z)


@brief(calls=16)
def _transform_with_density(
    generator: AbstractGenerator, z: PyTree[Array]
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"]]:
    """Return x = f(z), log q there, and the sign of det J."""
    return jax.vmap(generator.transform_and_log_prob)(z)


@brief
def draw_with_density(
    generator: AbstractGenerator, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"]]:
    """Return n draws, log q of each, and the sign of det J there."""
    return _transform_with_density(generator, generator.noise(n, key=key))


@brief
def log_prob(generator: AbstractGenerator, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return log q at the rows of x, for a generator with an exact inverse."""
    return jax.vmap(generator.log_prob)(x)


@brief
def log_densities(density: Density, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return log p at the rows of x."""
    return density.log_densities(x)
