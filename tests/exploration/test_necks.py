"""Necks beyond the draws: the moments that a tail adds, against exact draws that are cut off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics import verdict
from gpvi.diagnostics.verdict import Verdict
from gpvi.exploration import necks
from gpvi.exploration.necks import Neck

DRAWS = 20_000


def looked_at(log_density, x, weights=None, **options) -> Neck | None:
    target = gpvi.Target(log_density, dim=x.shape[1])
    score = jax.vmap(jax.grad(log_density))(jnp.asarray(x, jnp.float32))
    weights = np.full(len(x), 1 / len(x)) if weights is None else weights
    return necks.beyond(
        target, x, np.asarray(score, float), weights, key=jax.random.key(0), **options
    )


def funnel(x):
    """v ~ N(0, 1), and the others N(0, e^{3v}) given v."""
    v, rest = x[0], x[1:]
    return -0.5 * v**2 - 0.5 * jnp.exp(-3 * v) * rest @ rest - 1.5 * rest.size * v


def from_funnel(dim: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    v = rng.standard_normal((n, 1))
    return np.concatenate([v, np.exp(1.5 * v) * rng.standard_normal((n, dim - 1))], 1)


def test_a_neck_that_draws_do_not_enter_is_measured():
    """Draws of a funnel that end at v = −1.4 have an sd of .80; those of the whole of it gain nothing."""
    x = from_funnel(4, DRAWS)
    cut = x[x[:, 0] > -1.4]
    found = looked_at(funnel, cut)
    assert found is not None
    assert found.coordinate == 0
    assert found.errors > 5
    assert abs(cut[:, 0].std() * (1 + found.growth) - 1) < 0.02
    whole = looked_at(funnel, x)
    assert whole is not None
    assert abs(whole.errors) < 3
    assert abs(whole.growth) < 0.03


def test_weights_count():
    """Exact draws of N(0, 1.3²) for v, weighted to N(0, 1): nothing is missing."""
    rng = np.random.default_rng(1)
    v = 1.3 * rng.standard_normal((DRAWS, 1))
    x = np.concatenate([v, np.exp(1.5 * v) * rng.standard_normal((DRAWS, 3))], 1)
    weights = np.exp(-0.5 * v[:, 0] ** 2 * (1 - 1.3**-2))
    found = looked_at(funnel, x, weights / weights.sum())
    assert found is not None
    assert abs(found.growth) < 0.03


def test_a_posterior_that_does_not_narrow_has_no_neck():
    x = np.random.default_rng(0).standard_normal((4_000, 6))
    assert looked_at(lambda x: -0.5 * x @ x, x) is None


def test_few_draws_say_nothing():
    assert looked_at(funnel, from_funnel(4, 500)) is None


@pytest.mark.parametrize("end", [1.7, 2.5, 9.0])
def test_what_the_tail_of_a_normal_distribution_adds(end):
    """Draws of N(0, 1) below `end`, in their own units: with the tail the sd is one again."""
    x = np.random.default_rng(0).standard_normal(200_000)
    x = x[x < end]
    outwards, weights = (x - x.mean()) / x.std(), np.full(len(x), 1 / len(x))
    t = necks._abscissae(outwards, weights)
    log_m = -0.5 * (x.mean() + x.std() * t) ** 2 + 100.0
    growth, _ = necks._added(outwards, weights, t, log_m, np.ones(len(t)), 1.0)
    assert abs(x.std() * (1 + growth) - 1) < 0.01


def test_a_marginal_that_is_unknown_adds_nothing():
    x = np.random.default_rng(0).standard_normal(4_000)
    weights = np.full(len(x), 1 / len(x))
    t = necks._abscissae(x, weights)
    for log_m in (np.full(len(t), np.nan), np.full(len(t), -np.inf)):
        assert necks._added(x, weights, t, log_m, np.zeros(len(t)), 1.0) == (0.0, 0.0)
    uneven = necks._added(x, weights, t, -0.1 * t**2, np.full(len(t), 0.5 / necks.PAIRS), 1.0)
    assert uneven[0] <= 0


@pytest.mark.parametrize(
    ("neck", "level"),
    [
        (None, "good"),
        (Neck(1, 0.25, 6.0, 1), "do not trust"),
        (Neck(1, 0.25, 1.0, 1), "good"),
        (Neck(1, 0.03, 9.0, 1), "good"),
        (Neck(1, -0.25, -6.0, 1), "good"),
    ],
)
def test_the_verdict_beside_a_neck(neck, level):
    judged = verdict.beside_neck(Verdict("good", "fits"), neck, "log_tau")
    assert judged.level == level
    if level != "good":
        assert "narrows along log_tau" in judged.reason
        assert "25%" in judged.reason
        assert "non-centred" in judged.remedy


GROUPS = 80


def two_level(seed: int):
    """Observations in 80 groups of one to five, whose means have an unknown spread τ: x = (μ, log τ, log σ, means)."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), rng.integers(1, 6, GROUPS))
    y = 1.0 + 0.4 * rng.standard_normal(GROUPS)[group] + rng.standard_normal(len(group))

    def log_density(x):
        mean, log_tau, log_sigma, means = x[0], x[1], x[2], x[3:]
        tau, sigma = jnp.exp(log_tau), jnp.exp(log_sigma)
        prior = -0.5 * (mean / 5) ** 2 - 0.5 * tau**2 + log_tau - 0.5 * sigma**2 + log_sigma
        within = -0.5 * (((jnp.asarray(y, x.dtype) - means[group]) / sigma) ** 2).sum()
        between = -0.5 * (((means - mean) / tau) ** 2).sum()
        return prior + between - GROUPS * log_tau + within - len(y) * log_sigma

    return gpvi.Target(log_density, dim=3 + GROUPS)


@pytest.mark.slow
def test_a_two_level_model_is_not_called_good():
    """log τ has a neck that holds a hundredth of the posterior, and a fifth of its sd: no fit of it was ever right."""
    posterior = gpvi.fit(two_level(7), key=jax.random.key(0), progress=False)
    found = posterior.diagnose(key=jax.random.key(1))
    assert found.verdict.level != "good"
    refined = posterior.refine(key=jax.random.key(2), progress=False)
    assert refined.diagnose(key=jax.random.key(3)).verdict.level != "good"
