"""Draws in blocks: the same draws whatever their number, and few programs."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpvi.diagnostics import sampling
from gpvi.generators import Linear, Triangular
from gpvi.generators.noise import standard_normal

KEY = jax.random.key(3)
MANY = functools.cache(lambda: np.asarray(sampling.sample(GENERATOR, 2_048, KEY)))
GENERATOR = Triangular(hidden=(4,)).build(3, key=jax.random.key(0), dtype="float32")


@settings(max_examples=20)
@given(st.integers(1, 2_048))
def test_fewer_draws_are_the_first_of_more(n):
    few = sampling.sample(GENERATOR, n, KEY)
    assert few.shape == (n, 3)
    np.testing.assert_array_equal(few, MANY()[:n])


@pytest.mark.parametrize("n", [1, 1_025])
def test_draws_are_those_of_one_program(n):
    z = standard_normal(GENERATOR, n, key=KEY)
    expected = jax.vmap(GENERATOR)(z)
    np.testing.assert_allclose(sampling.sample(GENERATOR, n, KEY), expected, rtol=1e-4, atol=1e-5)
    x, log_q = sampling.sample_with_density(GENERATOR, n, KEY)
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)
    _, whole, _ = sampling.draw_with_density(GENERATOR, n, KEY)
    np.testing.assert_allclose(log_q, whole, rtol=1e-4, atol=1e-4)


def test_numbers_of_draws_share_one_program():
    generator = Linear().build(5, key=jax.random.key(0), dtype="float32")
    traces = []

    def function(generator, z):
        traces.append(z.shape)
        return jax.vmap(generator)(z)

    compiled = eqx.filter_jit(function)
    for n in (1, 3, 1_000, 1_024, 1_025, 5_000):
        assert sampling._in_blocks(compiled, generator, n, KEY).shape == (n, 5)
    assert traces == [(1_024, 5)]


@given(st.integers(1, 10**6), st.integers(1, 10**8))
def test_a_block_is_bounded_and_not_much_larger_than_what_is_asked(n, dim):
    size = sampling._block(n, dim)
    assert size * dim <= max(dim, sampling.BLOCK_NUMBERS)
    assert size <= sampling.BLOCK or n >= size
    if size < sampling.BLOCK:
        assert size < 2 * n


def test_draws_in_double_precision():
    with jax.enable_x64(True):
        generator = Linear().build(2, key=jax.random.key(0), dtype=jnp.float64)
        assert sampling.sample(generator, 3, KEY).dtype == np.float64
