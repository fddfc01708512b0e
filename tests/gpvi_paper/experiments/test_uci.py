"""Networks on the UCI sets: the scores against closed forms, and a smoke run on sets made here."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi import DeepEnsemble, fit
from gpvi.bnn import FanIn, Gaussian, mlp
from gpvi_paper.data import uci
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.uci import UCI, Model, Problem, drawn, held_out, scores
from made_data import FEATURES, write_uci


@pytest.fixture
def sets(tmp_path):
    write_uci(tmp_path / "yacht")
    return tmp_path


def test_a_held_out_part_is_of_the_training_rows_alone(sets):
    split = uci.read(sets, "yacht")[0]
    part = held_out(split, 0)
    assert len(part.y_test) == len(split.y) // 5
    whole = np.sort(np.concatenate([part.y, part.y_test]))
    np.testing.assert_allclose(whole, np.sort(split.y))


def test_scores_are_those_of_the_mixture_in_the_units_of_y(sets):
    """Linear networks with known weights and noise: the mixture is one of two Gaussians."""
    problem = Problem.of(uci.read(sets, "yacht")[0])
    network = mlp((FEATURES, 1))
    rng = np.random.default_rng(1)
    draws = jnp.asarray(rng.standard_normal((2, network.size + 1)), jnp.float32)
    found = scores(network, Gaussian(), draws, problem)
    outputs = [np.asarray(network.apply(w[:-1], jnp.asarray(problem.X_test)))[:, 0] for w in draws]
    sds = problem.scale * np.exp(np.asarray(draws[:, -1], np.float64))
    means, y = problem.scale * np.array(outputs), problem.scale * problem.y_test[:, 0]
    density = np.mean([stats.norm.pdf(y, m, s) for m, s in zip(means, sds, strict=True)], 0)
    below = np.mean([stats.norm.cdf(y, m, s) for m, s in zip(means, sds, strict=True)], 0)
    assert found.rmse == pytest.approx(math.sqrt(((means.mean(0) - y) ** 2).mean()), rel=1e-4)
    assert found.nll == pytest.approx(-np.log(density).mean(), rel=1e-4)
    assert found.coverage == pytest.approx(((below > 0.05) & (below < 0.95)).mean())


def test_published_figures_cover_every_set():
    found = experiment("uci")
    assert isinstance(found, UCI)
    for figures in found.published.values():
        assert len(figures) == 2 * len(found.cases)


def smoke_run(directory, label):
    bench = experiment("uci").reading(directory)  # pyright: ignore[reportAttributeAccessIssue]
    recipe, record = bench.recipes("smoke")[label], bench.run(label, "smoke", (0,), False)
    assert 0 < record.rows["yacht/rmse"][0] < 20
    assert math.isfinite(record.rows["yacht/nll"][0])
    assert 0 <= record.rows["yacht/coverage"][0] <= 1
    assert record.rows["yacht/chosen"][0] in range(1, 1 + len(recipe.models))
    assert ("yacht/rmse_one" in record.rows) == (recipe.members > 1)


@pytest.mark.slow
@pytest.mark.parametrize("label", list(experiment("uci").recipes("smoke")))
def test_every_row_runs(sets, label):
    smoke_run(sets, label)


@pytest.mark.slow
def test_members_are_joined(sets):
    """Particles all count, and generators share the number asked for."""
    problem = Problem.of(uci.read(sets, "yacht")[0])
    network = mlp((FEATURES, 1))
    target = problem.target(network, Model(FanIn(), Gaussian()))
    one = fit(target, DeepEnsemble(members=3), key=jax.random.key(0), steps=2, progress=False)
    assert drawn([one, one], 10, key=jax.random.key(1)).shape == (6, network.size + 1)
