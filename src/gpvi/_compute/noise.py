"""Random keys and standard normal noise: the same numbers as `jax.random` gives, by shorter programs on a CPU.

JAX's generator applies Threefry-2x32 [1] to a counter. It is compiled for CPUs as a loop over its rounds, each of which
goes through all counters in memory. With the rounds written out there is one pass, which is three times as fast for 10⁷
numbers (docs/speed.md), and compiles in a third of the time.

[1] Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
COUNTERS = 2**32
LONG = 4_096
"""Rows of at least this length are made one after the other."""


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def normal(key: PRNGKeyArray, shape: tuple[int, int], dtype: DTypeLike) -> Float[Array, "n d"]:
    """The same numbers as `jax.random.normal(key, shape, dtype)`."""

    def by_jax(key: PRNGKeyArray) -> Array:
        """As one row where no mesh may split it: on a CPU that compiles in a sixth of the time."""
        if jax.sharding.get_abstract_mesh().empty:
            return jax.random.normal(key, (shape[0] * shape[1],), dtype).reshape(shape)
        return jax.random.normal(key, shape, dtype)

    if not (_is_threefry(key) and dtype == jnp.float32 and shape[0] * shape[1] < COUNTERS):
        return by_jax(key)
    return jax.lax.platform_dependent(key, cpu=lambda key: _normal(key, shape), default=by_jax)


@functools.partial(jax.jit, inline=True)
def folded(key: PRNGKeyArray, number: Int[Array, ""] | int) -> PRNGKeyArray:
    """The same key as `jax.random.fold_in(key, number)`."""

    def written_out(key: PRNGKeyArray, number: Int[Array, ""]) -> PRNGKeyArray:
        words = threefry(jax.random.key_data(key), number.astype(jnp.uint32))
        return jax.random.wrap_key_data(jnp.stack(words), impl="threefry2x32")

    if not _is_threefry(key):
        return jax.random.fold_in(key, number)
    return jax.lax.platform_dependent(
        key, jnp.asarray(number), cpu=written_out, default=jax.random.fold_in
    )


def divided(key: PRNGKeyArray, count: int) -> tuple[PRNGKeyArray, ...]:
    """The same keys as `jax.random.split(key, count)`, one by one: a single program serves any number."""
    if not _is_threefry(key):
        return tuple(jax.random.split(key, count))
    return tuple(folded(key, number) for number in range(count))


def _is_threefry(key: PRNGKeyArray) -> bool:
    """Whether the numbers of a key are those of Threefry-2x32 applied to a counter."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    return bool(partitionable) and jax.random.key_impl(key) == "threefry2x32"


def _normal(key: PRNGKeyArray, shape: tuple[int, int]) -> Float[Array, "n d"]:
    """Entry i has counter i: its random bits give a uniform number u in (−1, 1), and √2 erf⁻¹(u) is normal."""
    words, (n, d) = jax.random.key_data(key), shape

    def numbers(counter: UInt32[Array, "..."]) -> Float[Array, "..."]:
        first, second = threefry(words, counter)
        fraction = ((first ^ second) >> np.uint32(9)) | np.uint32(0x3F800000)
        least = np.nextafter(np.float32(-1), np.float32(0))
        unit = jax.lax.bitcast_convert_type(fraction, jnp.float32) - np.float32(1)
        uniform = jnp.maximum(least, unit * (np.float32(1) - least) + least)
        return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)

    if d < LONG and jax.sharding.get_abstract_mesh().empty:
        return numbers(jax.lax.iota(jnp.uint32, n * d)).reshape(shape)
    column = jax.lax.iota(jnp.uint32, d)
    first_of_row = jax.lax.iota(jnp.uint32, n) * np.uint32(d)
    if not jax.sharding.get_abstract_mesh().empty:
        return numbers(first_of_row[:, None] + column)
    return jax.lax.map(lambda first: numbers(first + column), first_of_row)


def threefry(
    key: UInt32[Array, " 2"], counter: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Twenty rounds of Threefry-2x32 on the words (0, counter)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY)
    a, b = jnp.full_like(counter, keys[0]), counter + keys[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            a = a + b
            b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b
