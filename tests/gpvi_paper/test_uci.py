"""The UCI sets: their reader, the scores against closed forms, and a smoke run on sets made here."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi import DeepEnsemble, fit
from gpvi.bnn import FanIn, Gaussian, mlp
from gpvi.errors import InputError, StorageError
from gpvi_paper.data import uci
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.uci import UCI, Model, Problem, drawn, held_out, scores
from made_data import FEATURES, ROWS, TESTED, write_uci


@pytest.fixture
def sets(tmp_path):
    write_uci(tmp_path / "yacht")
    return tmp_path


class TestReading:
    def test_columns_and_rows_are_those_named(self, tmp_path):
        table = write_uci(tmp_path / "energy" / "data")
        first, second = uci.read(tmp_path, "energy")
        assert first.X.shape == (ROWS - TESTED, FEATURES) and first.X_test.shape[0] == TESTED
        rows = np.loadtxt(tmp_path / "energy" / "data" / "index_test_1.txt").astype(int)
        np.testing.assert_allclose(second.X_test, table[rows][:, [2, 0, 3]])
        np.testing.assert_allclose(second.y_test, table[rows, 1])
        whole = np.sort(np.concatenate([first.y, first.y_test]))
        np.testing.assert_allclose(whole, np.sort(table[:, 1]))
        assert len(uci.read(tmp_path, "energy", 1)) == 1

    def test_no_directory_or_a_wrong_one(self, tmp_path):
        with pytest.raises(InputError, match="--data-dir"):
            uci.find(None)
        with pytest.raises(InputError, match="does not exist"):
            uci.find(tmp_path / "nowhere")
        with pytest.raises(InputError, match="has none of bostonHousing"):
            uci.find(tmp_path)
        (tmp_path / "uci" / "yacht").mkdir(parents=True)
        assert uci.find(tmp_path) == tmp_path / "uci"

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("index_target", "7", r"index_target.txt does not hold 1 whole number from 0 to 3"),
            ("index_train_0", "0.5", r"index_train_0.txt does not hold whole numbers"),
            ("index_train_0", "1\n1", r"contains a number twice"),
            ("index_test_1", "", r"index_test_1.txt is not a table of numbers"),
            ("data", "1 2 3 4\n5 nan 7 8", r"holds NaN"),
            ("data", "1 2 3 four", r"data.txt is not a table of numbers"),
            ("index_features", None, r"neither .*index_features.txt nor"),
        ],
    )
    def test_faults_are_named(self, sets, name, content, message):
        path = sets / "yacht" / f"{name}.txt"
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        with pytest.raises(StorageError, match=message):
            uci.read(sets, "yacht")

    def test_a_row_in_both_parts(self, sets):
        train = sets / "yacht" / "index_train_0.txt"
        test = np.loadtxt(sets / "yacht" / "index_test_0.txt")
        np.savetxt(train, np.append(np.loadtxt(train), test[0]))
        with pytest.raises(StorageError, match="split 0 has rows that are in both"):
            uci.read(sets, "yacht")
        with pytest.raises(InputError, match="there are 2"):
            uci.read(sets, "yacht", 3)


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
