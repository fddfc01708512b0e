"""Noise is `jax.random.normal`, number by number, however it is made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi._compute import noise


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, noise.LONG), (3, noise.LONG + 5)])
def test_the_numbers_are_those_of_jax(shape):
    key = jax.random.key(sum(shape))
    made = jax.jit(lambda key: noise.normal(key, shape, jnp.float32))(key)
    np.testing.assert_array_equal(made, jax.random.normal(key, shape, jnp.float32))


def test_lanes_have_the_numbers_of_their_keys():
    keys, shape = jax.random.split(jax.random.key(1), 3), (2, noise.LONG)
    together = jax.jit(jax.vmap(lambda key: noise.normal(key, shape, jnp.float32)))(keys)
    for key, own in zip(keys, together, strict=True):
        np.testing.assert_array_equal(own, jax.random.normal(key, shape))


def test_what_is_not_written_out_is_left_to_jax():
    other = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(
        noise.normal(other, (2, 3), jnp.float32), jax.random.normal(other, (2, 3))
    )
    with jax.enable_x64(True):
        made = noise.normal(jax.random.key(0), (2, 3), jnp.float64)
        np.testing.assert_array_equal(made, jax.random.normal(jax.random.key(0), (2, 3), "float64"))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_the_keys_are_those_of_jax(kind):
    key = jax.random.key(3, impl=kind)
    folded = jax.jit(noise.folded)(key, 2**31 - 1)
    assert_same_keys(folded, jax.random.fold_in(key, 2**31 - 1))
    assert_same_keys(noise.folded(key, jnp.asarray(7)), jax.random.fold_in(key, 7))
    for own, other in zip(noise.divided(key, 3), jax.random.split(key, 3), strict=True):
        assert_same_keys(own, other)


def assert_same_keys(one, other):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(other))


def test_a_known_hash():
    """Random123's known answer for Threefry-2x32 with 20 rounds, key (0, 0) and counter (0, 0)."""
    first, second = noise.threefry(jnp.zeros(2, jnp.uint32), jnp.zeros((), jnp.uint32))
    assert (int(first), int(second)) == (0x6B200159, 0x99BA4EFE)


def test_the_numbers_are_normal():
    made = np.asarray(noise.normal(jax.random.key(2), (3, 50_000), jnp.float32)).ravel()
    assert stats.kstest(made, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(made[1:], made[:-1])[0, 1]) < 4 / np.sqrt(made.size)
    assert abs((made**4).mean() - 3) < 4 * np.sqrt(96 / made.size)
