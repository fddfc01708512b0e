"""Open category: what is trained on and what is scored, the recipes, and smoke runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.bnn import generator, mlp
from gpvi.errors import InputError, UnknownOptionError
from gpvi_paper.data.images import Images
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.images import digits, open_category, recipes
from gpvi_paper.experiments.images.cifar10 import CIFAR10, SmallConvolutional
from gpvi_paper.experiments.images.digits import Digits
from gpvi_paper.experiments.images.mnist import MNIST
from gpvi_paper.report.charts.outliers import ScoreHistogram, outlier_histograms
from made_data import write_cifar, write_mnist

COLDER = "GPVI (pathwise, g = 6, T = 0.3)"


def made_images(n=60):
    labels = np.arange(n, dtype=np.int32) % 10
    images = np.random.default_rng(1).integers(0, 256, (n, 4, 4, 1)).astype(np.uint8)
    return Images(images, labels, images[::-1].copy(), labels[::-1].copy())


class TestTask:
    def test_unknown_classes_are_in_the_outliers_alone(self):
        images = made_images()
        found = open_category.task(images, (6, 7, 8, 9))
        assert set(found.labels) == set(found.inlier_labels) == set(range(6))
        assert len(found.inputs) == 36 and len(found.outliers) == 24
        np.testing.assert_allclose(found.inputs.mean(), 0, atol=1e-5)
        np.testing.assert_allclose(found.inputs.std(), 1, atol=1e-5)

    def test_validation_never_sees_the_test_set(self):
        images = made_images()
        found = open_category.task(open_category.hold_out(images, 0.5)[1], (6, 7, 8, 9))
        broken = images._replace(test=images.test[:1], test_labels=images.test_labels[:1])
        again = open_category.task(open_category.hold_out(broken, 0.5)[1], (6, 7, 8, 9))
        for a, b in zip(found, again, strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(found.inputs) + len(found.inliers) == 36

    def test_images_kept_back_are_the_last_and_are_not_trained_on(self):
        images = made_images()
        shorter, kept = open_category.hold_out(images, 0.1)
        assert len(shorter.train) == len(images.train) - len(kept.test) == 54
        np.testing.assert_array_equal(kept.test, images.train[54:])
        np.testing.assert_array_equal(kept.train, shorter.train)
        np.testing.assert_array_equal(shorter.test, images.test)

    def test_mirror_images_are_training_images_and_nothing_else(self):
        found = open_category.task(made_images(), (6, 7, 8, 9))
        doubled = open_category.with_mirror_images(found)
        n = len(found.labels)
        np.testing.assert_array_equal(doubled.inputs[:n], found.inputs)
        np.testing.assert_array_equal(doubled.inputs[n:, :, ::-1], found.inputs)
        np.testing.assert_array_equal(doubled.labels, np.tile(found.labels, 2))
        for a, b in zip(doubled[2:], found[2:], strict=True):
            assert a is b

    def test_the_authors_temperature(self):
        paper = experiment("mnist").recipes("paper")
        assert paper[recipes.HELPER].temperature(36_000) == pytest.approx(3.6)
        assert paper["SVGD"].temperature(36_000) == pytest.approx(3.6e5)
        assert experiment("cifar10").recipes("paper")[recipes.HELPER].temperature(
            30_000
        ) == pytest.approx(30.0)

    def test_a_temperature_of_ones_own_does_not_grow_with_the_data(self):
        best = experiment("mnist").recipes("best")
        found = {label: recipe.temperature(36_000) for label, recipe in best.items()}
        assert found.pop(COLDER) == best[COLDER].temperature(1) == 0.3
        assert [found.pop(f"GPVI (pathwise, T = {t})") for t in (0.3, 0.1)] == [0.3, 0.1]
        assert set(found.values()) == {1.0}


def test_every_budget_has_as_many_networks_a_step():
    """GPVI's generators together draw as many networks a step as the ensemble has members."""
    for name in ("mnist", "cifar10", "digits"):
        best = experiment(name).recipes("best")
        members = best[recipes.ENSEMBLE].method.members
        for label in (recipes.GPVI_BEST, recipes.ONE_GENERATOR):
            recipe = best[label]
            assert recipe.generators * recipe.method.particles == members
            assert recipe.epochs == best[recipes.ENSEMBLE].epochs


def test_the_network_on_photographs_has_the_papers_size():
    network = CIFAR10().network(made_images())
    assert network.size == 90_506
    assert network.definition == SmallConvolutional()
    assert network.outputs(np.zeros((2, 32, 32, 3))) == 10


@pytest.mark.slow
def test_digits_run_from_end_to_end():
    """A few steps of GPVI's mixture; what is recorded is what the tables and pictures need."""
    found = Digits().run(recipes.GPVI_BEST, "smoke", (0,), False)
    assert {f"split/{m.key}" for m in Digits.metrics} == {*found.rows, "split/sharpness"}
    assert all(np.isfinite(values).all() for values in found.rows.values())
    assert found.arrays["split/reliability"].shape == (3, 15)
    for part in ("inlier", "outlier"):
        np.testing.assert_allclose(found.arrays[f"split/{part}_scores"].sum(), 1, atol=1e-3)


@pytest.mark.slow
def test_one_network_has_no_variance_to_go_by():
    found = Digits().run(recipes.SOFTMAX, "smoke", (0,), False)
    assert "split/auroc_entropy" in found.rows and "split/auroc_variance" not in found.rows


@pytest.mark.slow
def test_training_learns_the_digits():
    """A short ensemble is far above chance, and images of unknown classes are more doubtful."""
    exp = Digits()
    images = exp.images()
    setting = recipes.BestSetting(
        dim=8_970, epochs=20, batch_size=100, learning_rate=5e-3, members=4, generators=2
    )
    recipe = recipes.best_recipes(setting)[recipes.ENSEMBLE]
    recipe = dataclasses.replace(recipe, draws=None)
    problem = open_category.task(images, open_category.UNKNOWN["split"])
    (parts,) = open_category.trained(problem, exp.network(images), recipe, 1, key=jax.random.key(0))
    found = open_category.measured(
        parts, exp.network(images), problem, None, key=jax.random.key(1)
    ).values
    assert found["accuracy"] > 0.9
    assert found["auroc_variance"] > 0.8
    assert found["nll"] < 0.4


SMALL = recipes.PaperSetting(
    epochs=1,
    batch_size=50,
    latent=8,
    hidden=(8, 8),
    learning_rate=1e-4,
    entropy_weight=1e-5,
    authors_hidden=(8, 8),
    generator_decay=1e-4,
    scale=0.01,
)
IN_SMALL = {
    (preset, label): recipe
    for preset, rows in (
        ("paper", recipes.paper_recipes(SMALL)),
        ("authors", recipes.authors_recipes(SMALL)),
        ("entropy", digits.entropy_recipes()),
    )
    for label, recipe in rows.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("row", list(IN_SMALL), ids=str)
def test_the_published_recipes_run_in_small(row):
    exp = Digits()
    images = exp.images()
    recipe = dataclasses.replace(IN_SMALL[row], steps=4, draws=5)
    problem, network = open_category.task(images, (6, 7, 8, 9)), exp.network(images)
    (parts,) = open_category.trained(problem, network, recipe, 1, key=jax.random.key(0))
    found = open_category.measured(parts, network, problem, 5, key=jax.random.key(1)).values
    assert np.isfinite(list(found.values())).all()


def test_cases_are_run_apart():
    alone = Digits().only(["clean"])
    assert alone.problems("SVGD", "best") == ("clean",)
    assert Digits().problems("SVGD", "best") == ("split", "clean")
    with pytest.raises(UnknownOptionError, match="Did you mean 'clean'"):
        Digits().only(["claen"])
    with pytest.raises(InputError, match="none of the cases neal1"):
        Digits().only(["neal1"]).run("SVGD", "best", (0,), False)


@pytest.mark.slow
@pytest.mark.parametrize("label", list(MNIST().recipes("smoke")))
def test_mnist_runs_on_made_files(tmp_path, label):
    write_mnist(tmp_path, train=100)
    found = MNIST().reading(tmp_path).run(label, "smoke", (0,), False)
    assert np.isfinite(found.rows["split/nll"]).all()


SHARPENED = f"{recipes.ENSEMBLE}, mirror images, sharpened"


@pytest.mark.slow
@pytest.mark.parametrize("label", [recipes.GPVI_BEST, recipes.ENSEMBLE, SHARPENED])
def test_cifar10_runs_on_made_files(tmp_path, label):
    write_cifar(tmp_path, each=10)
    found = CIFAR10().reading(tmp_path).run(label, "smoke", (0,), False)
    assert np.isfinite(found.rows["split/nll"]).all()
    assert ("split/sharpness" in found.rows) == (label == SHARPENED)


def test_options_that_came_later_leave_older_records_as_they_are():
    rows = CIFAR10().recipes("best")
    later = {"mirrored", "sharpened", "posterior_temperature"}
    assert not later & rows[recipes.ENSEMBLE].to_json().keys()
    assert rows[SHARPENED].to_json()["mirrored"] is rows[SHARPENED].to_json()["sharpened"] is True
    assert MNIST().recipes("best")[COLDER].to_json()["posterior_temperature"] == 0.3


def test_histograms_are_drawn():
    edges = open_category.HISTOGRAM
    shares = np.full(len(edges) - 1, 1 / (len(edges) - 1))
    histogram = ScoreHistogram(edges, shares, shares[::-1], "AUROC 0.99")
    svg = outlier_histograms({"GPVI": histogram, "Deep ensemble": histogram}, "variance")
    assert svg.startswith("<svg") and "AUROC 0.99" in svg and "unknown" in svg


def test_large_networks_start_near_their_own_initialisation(getkey):
    """Offsets of g beyond those of the network's initialisation would undo it."""
    network = mlp((400, 60, 10))
    first = network.leaves[1]
    start = np.asarray(network.init(getkey()))[first.start : first.stop].std()
    made = generator(network.size).build(network.size, key=getkey(), dtype=jnp.float32)
    assert made.network is not None
    assert np.asarray(made.network.output.bias).std() < start / 2
