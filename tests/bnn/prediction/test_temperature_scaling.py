"""Temperature scaling: the sharpness that labels were drawn with is found, and predictions keep their order."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from gpvi.bnn import fit_sharpness, temperature_scaled
from gpvi.errors import InputError


def doubtful(n: int, classes: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), n).astype(np.float32)


def drawn(p, seed: int = 1) -> np.ndarray:
    return np.asarray(jax.random.categorical(jax.random.key(seed), jnp.log(p)))


@pytest.mark.parametrize("right", [0.6, 1.0, 1.7])
def test_it_finds_the_sharpness_that_labels_were_drawn_with(right):
    p = doubtful(20_000)
    assert fit_sharpness(p, drawn(temperature_scaled(jnp.asarray(p), right))) == pytest.approx(
        right, rel=0.05
    )


def test_predictions_keep_their_order_and_their_sum():
    p = jnp.asarray(doubtful(50))
    sharper, same = temperature_scaled(p, 2.5), temperature_scaled(p, 1.0)
    np.testing.assert_array_equal(jnp.argsort(sharper), jnp.argsort(p))
    np.testing.assert_allclose(sharper.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(same, p, rtol=1e-5)
    assert (sharper.max(1) > p.max(1)).all()


def test_a_class_without_probability_keeps_none():
    p = np.array([[0.75, 0.25, 0.0]])
    np.testing.assert_allclose(temperature_scaled(p, 2.0), np.array([[0.9, 0.1, 0.0]]), rtol=1e-5)


def test_one_column_is_the_probability_of_the_second_of_two_classes():
    p, labels = doubtful(30, 2), np.arange(30) % 2
    np.testing.assert_allclose(
        temperature_scaled(p[:, 1:], 1.3), temperature_scaled(p, 1.3)[:, 1:], rtol=1e-5
    )
    assert fit_sharpness(p[:, 1:], labels) == fit_sharpness(p, labels)
    assert fit_sharpness(p, labels.astype(float).tolist()) == fit_sharpness(p, labels)


def test_a_few_labels_that_are_all_right_do_not_make_it_certain():
    p = np.tile(np.array([0.9, 0.1], np.float32), (20, 1))
    assert 1 < fit_sharpness(p, np.zeros(20, int)) < 3


@pytest.mark.slow
@given(st.sampled_from([1, 8, 30]), st.sampled_from([2, 6]), st.integers(0, 999))
def test_it_never_does_worse_on_the_labels_that_chose_it(n, classes, seed):
    p = doubtful(n, classes, seed)
    labels = np.random.default_rng(seed).integers(0, classes, n)

    def likelihood(s: float) -> float:
        return float(jnp.log(temperature_scaled(jnp.asarray(p), s))[np.arange(n), labels].sum())

    assert likelihood(fit_sharpness(p, labels)) >= likelihood(1.0) - 1e-3


@pytest.mark.parametrize(
    ("p", "labels", "words"),
    [
        (doubtful(3), [0, 1], "shape"),
        (doubtful(3)[0], [0, 1, 2, 3], "shape"),
        (doubtful(2), [0, 4], "0 to 3"),
        (doubtful(2), [0, -1], "0 to 3"),
        (doubtful(2), [0.0, 1.5], "whole numbers"),
        (doubtful(2), ["cat", "dog"], "labels cannot be read as numbers"),
        (-doubtful(2), [0, 1], "negative"),
        (doubtful(2) * np.nan, [0, 1], "finite"),
    ],
)
def test_bad_input_is_named(p, labels, words):
    with pytest.raises(InputError, match=words):
        fit_sharpness(p, np.asarray(labels))


@pytest.mark.parametrize("s", [0.0, -1.0, float("nan")])
def test_the_sharpness_must_be_positive(s):
    with pytest.raises(InputError, match="sharpness"):
        temperature_scaled(doubtful(2), s)
