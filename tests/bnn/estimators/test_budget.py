"""What a budget pays for, and what the estimators choose by themselves."""

import itertools

import jax
import jaxtyping
import numpy as np
import pytest

from gpvi import bnn
from gpvi.bnn import training
from gpvi.bnn.estimators import _budget, regressor
from gpvi.bnn.estimators._budget import affordable_chains, as_budget
from gpvi.bnn.estimators.regressor import BayesianMLPRegressor
from gpvi.errors import UnknownOptionError


def wave(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=n)


@pytest.fixture
def quickly(monkeypatch):
    """Budgets of a few steps; gives the methods that were to be trained."""
    few = {name: as_budget(name) for name in _budget.BUDGETS}
    for name, members in (("fast", 2), ("default", 3), ("thorough", 4)):
        few[name] = _budget.Budget(members, 3, 20, 200, 1e12)
    monkeypatch.setattr(_budget, "BUDGETS", few)


@pytest.mark.parametrize("name", ["fast", "default", "thorough"])
def test_chains_get_shorter_on_larger_tables_and_stop_paying(name):
    budget = as_budget(name)
    small = affordable_chains(budget, 500, 1_000, None)
    assert small is not None and small.members == budget.members
    assert small.method.default_steps() <= budget.chain_steps
    lengths = []
    for rows in (1_000, 5_000, 10**7):
        chains = affordable_chains(budget, rows, 1_000, 5)
        lengths.append(0 if chains is None else chains.method.default_steps())
        if chains is not None:
            assert 2 * rows * 1_000 * 5 * lengths[-1] <= budget.work
    assert sorted(lengths, reverse=True) == lengths and lengths[-1] == 0


def test_a_budget_costs_more_than_the_one_before():
    budgets = [as_budget(name) for name in ("fast", "default", "thorough")]
    for less, more in itertools.pairwise(budgets):
        assert less.members < more.members and less.work < more.work
        assert less.fitted_steps < more.fitted_steps and less.chain_steps < more.chain_steps


def test_few_rows_and_large_networks_have_generators():
    budget = as_budget("thorough")
    assert affordable_chains(budget, _budget.CHAIN_ROWS - 1, 100, None) is None
    assert affordable_chains(budget, _budget.CHAIN_ROWS, training.LARGE, None) is None


@pytest.mark.parametrize("kind", [bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier])
def test_an_unknown_budget_is_refused(kind, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    X, y = wave(20)
    with pytest.raises(UnknownOptionError, match="unknown budget 'thorugh'"):
        kind().set_params(budget="thorugh").fit(X, y > 0)


@pytest.mark.slow
def test_chains_predict_save_and_go_on(quickly, tmp_path):
    X, y = wave(520)
    model = BayesianMLPRegressor(8, budget="thorough", random_state=0).fit(X[:510], y[:510])
    assert isinstance(model.posterior_.method, bnn.MCLMC)
    assert len(model.posteriors_) == 4
    mean, sd = model.predict(X, return_std=True)
    assert mean.shape == sd.shape == (520,) and (sd > 0).all()
    model.predictive_.save(tmp_path / "chains.gpvi")
    loaded = bnn.load(tmp_path / "chains.gpvi", model.network_)
    Z = model.x_scaler_.transform(X)
    found, again = (each.predict(Z, key=0) for each in (model.predictive_, loaded))
    np.testing.assert_array_equal(found.mean, again.mean)
    model.partial_fit(X[510:], y[510:])
    target = model.posterior_.target
    assert target is not None and target.size == 520
    assert (model.predict(X) != mean).any()


@pytest.mark.slow
def test_chains_of_default_length_know_the_noise():
    """The error is that of the noise, 0.1, and intervals cover what they should."""
    X, y = wave(600)
    new_X, new_y = wave(1_000, seed=1)
    model = BayesianMLPRegressor(budget="fast", random_state=0).fit(X, y)
    mean = model.predict(new_X)
    assert np.sqrt(np.mean((mean - new_y) ** 2)) < 0.13
    low, high = model.predict_quantiles(new_X, (0.05, 0.95)).T
    assert 0.85 < np.mean((low < new_y) & (new_y < high)) < 0.95


@pytest.mark.slow
def test_the_same_seed_gives_the_same_chains(quickly):
    X, y = wave(500)
    fits = [BayesianMLPRegressor(4, random_state=3).fit(X, y) for _ in range(2)]
    np.testing.assert_array_equal(fits[0].predict(X), fits[1].predict(X))


@pytest.mark.slow
def test_chains_by_hand_start_at_fitted_networks():
    """A few steps from a random network would not find the line."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0]
    method = bnn.MCLMC(chains=1, draws=5, warmup=80, thin=1)
    options = {"method": method, "members": 2, "steps": 500, "progress": False}
    found = bnn.fit(bnn.mlp((2, 8, 1), "tanh"), "gaussian", X, y, key=0, **options)
    assert len(found.members) == 2 and found.available_draws == 10
    mean = np.asarray(found.predict(X, key=0).mean)[:, 0]
    assert np.corrcoef(mean, y)[0, 1] > 0.8


def test_another_method_or_few_rows_choose_nothing(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("held-out rows decide for chains only")

    monkeypatch.setattr(regressor, "held_out_curve", refuse)
    X, y = wave(500)
    for options, rows in (({"method": "gpvi"}, 500), ({}, 499)):
        model = BayesianMLPRegressor(4).set_params(**options)
        plan = model._planned(X[:rows], y[:rows, None], jax.random.key(0))
        assert plan.method == "gpvi" and isinstance(plan.likelihood, bnn.Gaussian)
