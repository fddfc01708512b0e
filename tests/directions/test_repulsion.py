"""Regions where log p has no value repel the draws, and cost nothing where there are none."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gpvi
from gpvi.directions.repulsion import SLOPE, repelling
from gpvi.generators import Linear
from gpvi.targets.density import Evaluation, evaluate
from selection import some_slow

KEY = jax.random.key(0)


def evaluated(x, finite):
    score = jnp.where(finite[:, None], -x, 0.0)
    return Evaluation(jnp.zeros(len(x)), score, finite)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 40]), st.sampled_from([1, 3]))
def test_a_draw_without_a_value_is_pulled_to_the_nearest_with_one(seed, n, d):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 10, size=d)
    finite = rng.random(n) < 0.7
    finite[0], finite[-1] = True, False
    score, weight = repelling(evaluated(jnp.asarray(x), jnp.asarray(finite)), jnp.asarray(x))
    score = np.asarray(score, np.float64)
    np.testing.assert_allclose(score[finite], -x[finite], rtol=1e-6)
    np.testing.assert_allclose(weight, np.full(n, 1 / n), rtol=1e-6)
    sd = x[finite].std(0)
    sd = np.where(sd > 1e-6, sd, 1.0)
    for i in np.flatnonzero(~finite):
        to_each = (x[finite] - x[i]) / sd
        distances = np.linalg.norm(to_each, axis=1)
        cosines = to_each @ (score[i] * sd) / distances / SLOPE
        assert np.linalg.norm(score[i] * sd) == pytest.approx(SLOPE, rel=1e-3)
        near = distances < distances.min() * 1.01 + 1e-3
        assert cosines[near].max() > 0.99


def test_finite_draws_keep_their_scores_and_weights_bit_for_bit():
    target = gpvi.Target(lambda x: -0.25 * (x**4).sum(), dim=3)
    x = jax.random.normal(KEY, (37, 3))
    at = evaluate(target, x)
    for function in (repelling, jax.jit(repelling)):
        score, weight = function(at, x)
        np.testing.assert_array_equal(score, at.score)
        np.testing.assert_array_equal(weight, at.weight)


def test_draws_that_are_nowhere_are_not_pulled():
    """Those that are infinite themselves, or when no draw has a value."""
    x = jnp.asarray([[0.0, 0.0], [jnp.inf, 0.0], [1.0, 1.0], [3.0, 3.0]])
    score, _ = repelling(evaluated(x, jnp.asarray([True, False, True, False])), x)
    assert np.isfinite(score).all() and not score[1].any() and (score[3] < 0).all()
    score, _ = repelling(evaluated(x, jnp.zeros(4, bool)), x)
    assert np.isfinite(score).all()


def beyond_three(x):
    """N(0, I), NaN at 0.13 % of it."""
    return jnp.where(x[0] > 3, jnp.nan, -0.5 * x @ x)


METHODS = {
    "l2": gpvi.GPVI(generator=Linear(), gradient="l2", particles=128),
    "pathwise": gpvi.GPVI(generator=Linear(), particles=128),
    "mean field": gpvi.MeanFieldVI(particles=128),
    "full rank": gpvi.FullRankVI(particles=128),
    "flow": gpvi.NormalizingFlow(particles=128),
}


@pytest.mark.parametrize("name", some_slow(tuple(METHODS), fast=("pathwise", "mean field")))
def test_draws_that_start_in_a_region_without_a_value_leave_it(name):
    """A third of the draws begin beyond a wall; without the pull they would stay, or be pushed further out."""
    target = gpvi.Target(lambda x: jnp.where(x[0] > 0.5, jnp.nan, -0.5 * x @ x), dim=2)
    posterior = gpvi.fit(target, METHODS[name], key=KEY, steps=600, init=None, progress=False)
    x = np.asarray(posterior.sample(64, key=KEY))
    assert (x[:, 0] > 0.5).mean() < 0.1
    assert posterior.training.history["rejected"][:5].mean() > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_log_density_that_fails_far_out(seed):
    """Where it does, the posterior has next to no mass, and so have the draws."""
    target = gpvi.Target(beyond_three, dim=2)
    posterior = gpvi.fit(target, key=jax.random.key(seed), progress=False)
    x = np.asarray(posterior.sample(20_000, key=KEY))
    truth = stats.truncnorm(-np.inf, 3)
    assert (x[:, 0] > 3).mean() < 0.002
    np.testing.assert_allclose(x.mean(0), [truth.mean(), 0], atol=0.06)
    np.testing.assert_allclose(x.std(0), [truth.std(), 1], rtol=0.05)
    assert posterior.diagnose(key=KEY).verdict.level in ("good", "no fault seen")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_hard_wall_has_an_honest_verdict_and_an_exact_resample(seed):
    """Uniform in a cube: a smooth map of a Gaussian has no such edges, and the verdict says what is outside."""
    target = gpvi.Target(lambda x: jnp.where((abs(x) > 1).any(), -jnp.inf, 0.0 * x.sum()), dim=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the share outside, which the verdict gives
        posterior = gpvi.fit(target, key=jax.random.key(seed), progress=False)
        found = posterior.diagnose(key=KEY)
        x = np.asarray(posterior.resample(4_000, key=KEY))
    assert 0.01 < found.rejected < 0.1
    assert found.verdict.level != "good"
    assert (abs(x) <= 1).all()
    np.testing.assert_allclose(x.mean(0), 0, atol=0.08 * 3**-0.5)
    np.testing.assert_allclose(x.std(0), 3**-0.5, rtol=0.05)
