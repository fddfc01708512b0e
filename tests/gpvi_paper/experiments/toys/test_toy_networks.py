"""Networks beside long chains: the measures on oracles, the data's facts, and smoke runs from end to end."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.generators import MLP, Residual
from gpvi.methods import GPVI, SVGD
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine
from gpvi_paper.experiments import KeepsReference, experiment
from gpvi_paper.experiments.toys import classification, recipes, regression1d
from gpvi_paper.experiments.toys import toy_networks as toys
from gpvi_paper.report.charts import bands, maps


def test_total_variation_of_distributions_known_by_heart():
    certain, even = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert toys.total_variation(certain, certain) == 0
    assert toys.total_variation(certain, certain[:, ::-1]) == 1
    assert toys.total_variation(certain, even) == 0.5
    both = toys.total_variation(np.vstack([certain, certain]), np.vstack([certain, even]))
    assert both == 0.25


def test_wasserstein_of_two_gaussians():
    """W₁ of a shift is the shift, and of N(0, 1) and N(0, s²) it is |s − 1| √(2/π)."""
    from scipy.stats import norm

    quantiles = np.tile(norm.ppf(toys.LEVELS)[:, None], (1, 3))
    scale = np.full(3, 2.0)
    assert toys.wasserstein(quantiles + 1, quantiles, scale) == pytest.approx(0.5)
    stretched = toys.wasserstein(3 * quantiles, quantiles, np.ones(3))
    assert stretched == pytest.approx(2 * math.sqrt(2 / math.pi), rel=0.01)


def test_correlation_with_a_constant_is_none():
    assert toys.correlation(np.ones(4), np.arange(4.0)) == 0
    assert toys.correlation(np.arange(4.0), -2 * np.arange(4.0)) == pytest.approx(-1)


class TestData:
    def test_regression(self):
        given = regression1d.problem()
        x = given.inputs[:, 0]
        assert len(x) == 80 and regression1d.in_gap(x).sum() == 4
        assert regression1d.in_range(x).sum() == 76 and (x > 0).any() and (x < 0).any()
        many, y = regression1d.drawn(20_000, 0, np.random.default_rng(1))
        assert np.var(y - regression1d.truth(many[:, 0])) == pytest.approx(0.04, rel=0.05)
        assert given.network.size == toys.size(regression1d.SIZES) == 151

    @pytest.mark.parametrize(("classes", "size"), [(2, 162), (4, 184)])
    def test_classes(self, classes, size):
        given = classification.problem(classes)
        assert given.network.size == size == classification.Classification(classes).size
        assert given.inputs.shape == (100, 2) and given.test_inputs.shape == (200, 2)
        assert set(given.outputs) == set(range(classes))
        centres = np.array(classification.CENTRES[classes])
        spread = (given.inputs - centres[given.outputs]).var()
        assert spread == pytest.approx(0.3, rel=0.35)
        assert given.grid.shape == (1600, 2) and np.abs(given.grid).max() == 10


def particles(given: toys.Problem, draws: np.ndarray) -> Posterior:
    size = given.network.size
    model = Particles(jnp.asarray(draws, jnp.float32))
    affine = Affine.identity(size, np.dtype("float32"))
    return Posterior(SVGD(), model, Start(affine), given.network.names, Training(1, 1, 0.0, {}))


@pytest.mark.slow
def test_the_floor_falls_as_the_root_of_the_number_of_networks(monkeypatch):
    """Networks from the prior in place of chains: all draws are independent, and the halves alike."""
    given = dataclasses.replace(
        classification.problem(2), grid=np.random.default_rng(0).uniform(-5, 5, (50, 2))
    )
    draws = np.random.default_rng(1).standard_normal((2, 2_000, given.network.size))
    first, second = (particles(given, half) for half in draws)
    view = given.view(second, 0)
    known = toys.Reference(first, view, first, view)
    monkeypatch.setattr(toys, "FLOOR_REPLICATES", 24)
    few, many, all_ = (toys.floor(given, known, n) for n in (20, 320, 10_000))
    assert 2.5 < few / many < 5.5
    assert all_ == pytest.approx(toys.distance(given.view(first, 0), view), rel=1e-4)
    assert all_ < many


def test_two_networks_are_viewed_as_their_mixture():
    """A view has the mean of the probabilities, their spread, and the loss of the mixture."""
    given = classification.problem(2)
    flat = np.random.default_rng(0).standard_normal((2, given.network.size)).astype(np.float32)
    view = given.view(particles(given, flat), 0)
    grid = jnp.asarray(given.grid, jnp.float32)
    logits = np.stack([np.asarray(given.network.apply(jnp.asarray(w), grid)) for w in flat])
    p = np.exp(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    np.testing.assert_allclose(view.mean, p.mean(0), atol=1e-5)
    np.testing.assert_allclose(view.sd, p.std(0).mean(1), atol=1e-5)
    members = tuple(particles(given, one) for one in flat[:, None])
    np.testing.assert_allclose(given.view(members, 0).mean, view.mean, atol=1e-6)
    predictive = bnn.Predictive(particles(given, flat), given.network, "categorical")
    log_prob = predictive.log_prob(given.test_inputs, given.test_outputs, key=jax.random.key(0))
    assert view.loss["nll"] == pytest.approx(-float(log_prob.mean()), rel=1e-4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where references are kept."""
    return tmp_path_factory.mktemp("references")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        pytest.param("regression1d", "SVGD", marks=pytest.mark.slow),
        pytest.param("classification4", "GPVI (pathwise)", marks=pytest.mark.slow),
        *(
            pytest.param(name, label, marks=pytest.mark.slow)
            for name in ("regression1d", "classification2")
            for label in ("GPVI (pathwise)", "GPVI (l2)", "MF-VI", "NUTS")
        ),
        pytest.param("regression1d", "GPVI (pathwise, 5 generators)", marks=pytest.mark.slow),
    ],
)
def test_smoke(name, label, directory):
    found = experiment(name)
    assert isinstance(found, KeepsReference)
    found = found.keeping(directory)
    record = found.run(label, "smoke", (0, 1), False)
    expected = {metric.key for metric in found.metrics}
    recipe = found.recipes("smoke")[label]
    has_density = recipe.method.density and recipe.members == 1
    assert set(record.rows) == expected - (set() if has_density else {"elbo", "k_hat", "fold"})
    assert all(len(values) == 2 for values in record.rows.values())
    distance = record.rows[found.headline[0]]
    assert all(value >= 0 and math.isfinite(value) for value in distance)
    if name == "regression1d":
        assert record.arrays["mean"].shape == record.arrays["grid"].shape
    else:
        assert record.arrays["map"].shape == record.arrays["reference_map"].shape == (40, 40)


def test_the_generators_of_a_mixture_share_out_the_draws_and_stand_in_the_record():
    rows = regression1d.GappedRegression().recipes("best")
    (several,) = (recipe for recipe in rows.values() if recipe.members > 1)
    assert several.members == several.to_json()["members"] == recipes.GENERATORS
    assert isinstance(several.method, GPVI) and several.method.particles is not None
    draws = several.members * several.method.particles
    assert 0.9 * recipes.WIDE_DRAWS < draws <= recipes.WIDE_DRAWS
    assert "members" not in rows["GPVI (pathwise)"].to_json(), "records of one stay as they are"


@pytest.mark.slow
def test_chains_are_kept_and_found_again(directory, monkeypatch):
    """Where log p of the last draws is not what it was, the chains are of another posterior."""
    given, short = classification.problem(4), toys.REFERENCES["smoke"]
    first = toys.shared_reference(given, short, directory)
    monkeypatch.setattr(gpvi, "fit", None)
    again = toys.reference(given, short, False, directory)
    np.testing.assert_array_equal(again.chains.particles, first.chains.particles)
    np.testing.assert_array_equal(again.view.mean, first.view.mean)
    one, other = toys.halves(again.chains, seed=1)
    together = {row.tobytes() for half in (one, other) for row in np.asarray(half.particles)}
    assert together == {row.tobytes() for row in np.asarray(again.chains.particles)}
    elsewhere = dataclasses.replace(given, network=bnn.mlp((2, 10, 10, 4), "tanh"))
    assert toys._name(elsewhere, short) == toys._name(given, short)
    with pytest.raises(TypeError, match="not callable"):
        toys.reference(elsewhere, short, False, directory)


def test_published_recipes_say_their_temperature_and_prior():
    text, code = (experiment("classification4").recipes(name) for name in ("paper", "authors"))
    assert {recipe.temperature for recipe in text.values()} == {1.0}
    assert {recipe.temperature for recipe in code.values()} == {1e4}
    assert text["MF-VI"].to_json()["prior"]["narrow"] == pytest.approx(math.exp(-6))


def test_the_text_has_a_kernel_on_all_of_z_and_the_code_no_term_of_noise():
    for name in ("classification4", "regression1d"):
        text, code = (experiment(name).recipes(preset) for preset in ("paper", "authors"))
        published = text["GPVI (functional, exact Jacobian)"].method
        assert isinstance(published, gpvi.GPVI)
        assert published.kernel == "full"
        assert isinstance(published.generator, Residual) and published.generator.scale == 0.05
        own = code["GPVI (functional, helper)"].method
        assert isinstance(own, gpvi.GPVI) and isinstance(own.generator, MLP)


def test_pictures():
    grid = np.linspace(-1, 1, 5)
    band = bands.Band(grid, np.ones(5))
    svg = bands.bands_chart(grid, {"one": band, "two": band}, grid, np.zeros((3, 2)))
    assert svg.startswith("<svg") and ">one</text>" in svg and ">two</text>" in svg
    sd, inputs, labels = np.eye(4), np.zeros((2, 2)), np.array([0, 1])
    assert maps.map_panel(sd, 1.0, inputs, labels, 2.0).startswith(b"\x89PNG")
    assert maps.maps_chart({"one": sd, "two": sd}, inputs, labels, 2.0).startswith(b"\x89PNG")
