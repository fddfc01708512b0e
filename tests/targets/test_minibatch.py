"""Mini-batches: a computed shuffle is a permutation, a new one each epoch, and no datum is favoured."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpvi
from gpvi.targets.minibatch import batch_indices, permuted

seeds = st.integers(0, 2**32 - 1)


@functools.cache
def shuffle(size):
    """All of π for one size, compiled once."""
    return jax.jit(lambda key: permuted(jnp.arange(size), size, key=key))


def assert_permutation(size, seed):
    order = permuted(jnp.arange(300) % size, size, key=jax.random.key(seed))[:size]
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@settings(max_examples=8)
@given(st.integers(1, 300), seeds)
def test_a_permutation_of_any_small_size(size, seed):
    assert_permutation(size, seed)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 64, 65, 256, 257])
def test_a_permutation_of_sizes_around_powers_of_four(size):
    assert_permutation(size, 0)


@pytest.mark.slow
def test_a_permutation_of_every_small_size():
    for size in range(1, 301):
        assert_permutation(size, size)


@settings(max_examples=12)
@given(st.sampled_from([1_000, 4_096, 4_097, 65_537, 300_007]), seeds)
@pytest.mark.slow
def test_a_permutation_of_large_sizes(size, seed):
    counts = np.bincount(np.asarray(shuffle(size)(jax.random.key(seed))), minlength=size)
    np.testing.assert_array_equal(counts, 1)


@pytest.mark.parametrize("size", [2**24 + 43, 2**31 - 1])
def test_huge_sizes_stay_inside_and_apart(size, getkey):
    some = jnp.asarray(np.linspace(0, size - 1, 5_000).astype(np.int32))
    order = np.asarray(permuted(some, size, key=getkey()))
    assert order.min() >= 0
    assert order.max() < size
    assert len(np.unique(order)) == len(some)


@pytest.mark.parametrize(("size", "batch_size"), [(24, 8), (25, 8), (7, 7), (9, 1), (10, 6)])
def test_an_epoch_visits_each_datum_once_up_to_the_remainder(size, batch_size, getkey):
    key, per_epoch = getkey(), size // batch_size
    draw = jax.jit(lambda step: batch_indices(step, size, batch_size, key=key))
    epochs = [
        np.concatenate([draw(jnp.asarray(e * per_epoch + i)) for i in range(per_epoch)])
        for e in range(4)
    ]
    for seen in epochs:
        assert len(seen) == len(np.unique(seen)) == per_epoch * batch_size
        assert seen.min() >= 0
        assert seen.max() < size
    assert len({tuple(seen) for seen in epochs}) == 4


@pytest.mark.parametrize("size", [3, 5, 16, 17, 40])
def test_every_datum_is_as_likely_in_every_position(size):
    """χ² over the size × size table of 4,000 shuffles; the bound is eight standard deviations up."""
    draws = 4_000
    keys = jax.random.split(jax.random.key(size), draws)
    orders = np.asarray(jax.jit(jax.vmap(lambda k: permuted(jnp.arange(size), size, key=k)))(keys))
    table = np.stack([np.bincount(orders[:, i], minlength=size) for i in range(size)])
    expected = draws / size
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert statistic < freedom + 8 * np.sqrt(2 * freedom)


def test_neighbours_are_separated(getkey):
    """The correlation of π(i) with π(i + 1) is that of a random order, −1/N on average."""
    order = np.asarray(shuffle(4_097)(getkey()), float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 4 / np.sqrt(len(order))


def test_scores_of_an_epoch_average_to_the_full_score(getkey):
    """B divides N, so the batches of an epoch partition the data, and N/B times each averages to all."""
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((24, 3)), rng.standard_normal(24))
    target = gpvi.Target(
        log_likelihood=lambda x, batch: -0.5 * (batch[1] - batch[0] @ x) ** 2,
        log_prior=lambda x: -0.5 * x @ x,
        data=data,
        dim=3,
        temperature=0.5,
        dtype="float64",
    )
    key = getkey()
    with target.precision():
        x = jnp.asarray(rng.standard_normal(3))
        scores = [
            target.score(x, target.batch(batch_indices(jnp.asarray(i), 24, 4, key=key)))
            for i in range(6)
        ]
        by_hand = 2 * (data[0].T @ (data[1] - data[0] @ np.asarray(x)) - np.asarray(x))
        np.testing.assert_allclose(np.mean(scores, 0), by_hand, rtol=1e-12)
        np.testing.assert_allclose(target.score(x), by_hand, rtol=1e-12)
        assert np.std(scores, 0).max() > 0.1
