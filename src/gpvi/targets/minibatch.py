r"""Mini-batches from a shuffle that is computed, not stored.

Epoch e visits the data in the order π_e, a pseudo-random permutation of 0…N−1 that is evaluated one index at a time. A
balanced Feistel network permutes 0…4^b − 1, where 4^b is the smallest power of four that is at least N. An index that
lands at N or beyond is sent through the network again until it lands below N ("cycle walking", which keeps a
permutation a permutation).

The step number alone determines the batch. So there is no order to carry, save or shard, and no sort of N keys in each
epoch, as `jax.random.permutation` needs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

ROUNDS = 6


def permuted(indices: Int[Array, " b"], size: int, *, key: PRNGKeyArray) -> Int[Array, " b"]:
    """π(i) for each index i, where π is the permutation of 0…size−1 that `key` selects."""
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    mask = jnp.uint32((1 << half_bits) - 1)
    round_keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)

    def feistel(value: UInt32[Array, " b"]) -> UInt32[Array, " b"]:
        left, right = value >> half_bits, value & mask
        for i in range(ROUNDS):
            left, right = right, left ^ (_hash(right, round_keys[i]) & mask)
        return (left << half_bits) | right

    def walk(value: UInt32[Array, " b"]) -> UInt32[Array, " b"]:
        return jnp.where(value >= size, feistel(value), value)

    start = feistel(indices.astype(jnp.uint32))
    return jax.lax.while_loop(lambda v: (v >= size).any(), walk, start).astype(jnp.int32)


def batch_indices(
    step: Int[Array, ""], size: int, batch_size: int, *, key: PRNGKeyArray
) -> Int[Array, " b"]:
    """The indices of mini-batch number `step`. Each epoch has ⌊N/B⌋ batches, in a new order."""
    per_epoch = size // batch_size
    epoch, position = step // per_epoch, step % per_epoch
    indices = position * batch_size + jnp.arange(batch_size)
    return permuted(indices, size, key=jax.random.fold_in(key, epoch))


def chunk_indices(
    first: Int[Array, ""], length: int, size: int, batch_size: int, *, key: PRNGKeyArray
) -> Int[Array, "steps b"]:
    """The indices of the `length` mini-batches from number `first` on."""
    steps = first + jnp.arange(length)
    return jax.vmap(lambda step: batch_indices(step, size, batch_size, key=key))(steps)


def _hash(value: UInt32[Array, " b"], salt: UInt32[Array, ""]) -> UInt32[Array, " b"]:
    """A 32-bit hash: multiplications, xors and shifts by which every input bit affects every output bit."""
    value = (value ^ salt) * jnp.uint32(0x9E3779B1)
    value = (value ^ (value >> 15)) * jnp.uint32(0x85EBCA77)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE3D)
    return value ^ (value >> 16)
