"""Draws at which log p or its score is not finite are masked; the operations of a density are counted once."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import Evaluation, evaluate, expensive
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target


def half_line(x):
    """log p is NaN left of zero, and its score is infinite at zero."""
    return jnp.log(x[0]) - x @ x / 2


def test_bad_draws_are_masked():
    x = jnp.asarray([[1.0, 2.0], [-1.0, 0.0], [2.0, 0.5], [0.0, 1.0], [0.5, 0.5]])
    at = evaluate(Target(half_line, dim=2, initial=[1.0, 1.0]), x)
    np.testing.assert_array_equal(at.finite, [True, False, True, False, True])
    good = np.asarray(at.finite)
    np.testing.assert_allclose(at.score[good, 0], 1 / x[good, 0] - x[good, 0], rtol=1e-6)
    np.testing.assert_array_equal(at.score[~good], 0)
    np.testing.assert_array_equal(at.log_density[~good], 0)
    np.testing.assert_allclose(at.weight, good / 3, rtol=1e-6)
    assert at.rejected == pytest.approx(0.4)
    values = jnp.asarray([1.0, jnp.nan, 2.0, jnp.inf, 6.0])
    assert at.mean(values) == pytest.approx(3.0)


def test_a_finite_value_with_a_bad_score_is_masked():
    at = evaluate(Target(lambda x: -jnp.sqrt(x @ x), dim=2), jnp.asarray([[0.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_array_equal(at.finite, [False, True])
    assert np.isfinite(at.score).all()


@pytest.mark.parametrize("n", [3, 409, 1_000])
def test_where_all_is_finite_nothing_is_rejected(n):
    at = Evaluation(jnp.zeros(n), jnp.zeros((n, 2)), jnp.ones(n, bool))
    assert at.rejected == 0.0


@pytest.mark.parametrize(("bad", "stops"), [(2, False), (3, True), (4, True)])
def test_the_mean_stops_the_run_when_most_draws_are_bad(bad, stops):
    finite = jnp.arange(4) >= bad
    at = Evaluation(jnp.zeros(4), jnp.zeros((4, 2)), finite)
    assert np.isnan(at.mean(jnp.ones(4))) == stops
    assert np.isfinite(at.weight).all()


def large_product(x):
    """A Gaussian, and a product of matrices of 2 · 100³ operations that adds next to nothing."""
    product = jnp.cos(x[0] + jnp.arange(10_000.0).reshape(100, 100)) @ jnp.eye(100)
    return -0.5 * x @ x + 1e-9 * jnp.sin(product).sum()


def test_the_operations_of_a_density_are_counted_once():
    traces = []

    def log_density(x):
        traces.append(x)
        return large_product(x)

    target = Target(log_density, dim=2)
    whitened = Whitened(target, Affine.identity(2, np.float32))
    assert [expensive(each) for each in (target, target, whitened, whitened)] == [True] * 4
    assert len(traces) == 2


def test_what_counts_as_cheap():
    """A regression on 5,000 data with 25 coefficients, streamed data, and what cannot be traced."""
    data = jnp.ones((5_000, 25))
    regression = Target(lambda x: -0.5 * ((data @ x) ** 2).sum(), dim=25)
    streamed = Target(
        log_likelihood=lambda x, rows: large_product(x) * rows, data=Stream(np.ones(9)), dim=2
    )
    untraceable = Target(lambda x: float(x[0]), dim=2)
    assert not any(map(expensive, (regression, streamed, untraceable)))
