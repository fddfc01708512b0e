"""The experiments measure what they say, on oracles; smoke runs go from end to end."""

import json
import math

import jax
import numpy as np
import pytest

from gpvi import generators, specs
from gpvi.errors import UnknownOptionError
from gpvi.methods import Method
from gpvi_paper import records
from gpvi_paper.experiments import (
    EXPERIMENTS,
    PRESETS,
    Experiment,
    Recipe,
    energy,
    experiment,
    matching,
)
from gpvi_paper.experiments.linear import blr
from gpvi_paper.experiments.reference.peers import Peer


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
class TestContract:
    def test_recipes_are_methods_that_survive_json(self, name, preset):
        found = experiment(name)
        assert isinstance(found, Experiment)
        for label, recipe in found.recipes(preset).items():
            method = recipe.method if isinstance(recipe, Recipe) else recipe
            assert isinstance(method, Method | Peer), label
            document = json.loads(json.dumps(recipe.to_json()))
            assert specs.from_json(document["method"]) == method

    def test_labels_have_names_of_their_own(self, name, preset):
        labels = list(experiment(name).recipes(preset))
        assert len({records.slug(label) for label in labels}) == len(labels)
        for label in labels:
            assert matching(experiment(name), preset, label) == [label]
            assert matching(experiment(name), preset, records.slug(label)) == [label]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_and_published_figures_name_metrics_that_exist(name):
    found = experiment(name)
    keys = {metric.key for metric in found.metrics}
    assert {key for table in found.tables for key in table.metrics} <= keys
    assert set(found.headline) <= keys
    assert {m.floor for m in found.metrics} | {m.void_if for m in found.metrics} <= keys | {None}
    rows = {f"{case}/{key}".strip("/") for case in found.cases for key in keys}
    assert {row for figures in found.published.values() for row in figures} <= rows


def test_a_family_is_named_by_its_first_words():
    labels = matching(experiment("blr"), "best", "gpvi")
    assert labels == [
        label for label in experiment("blr").recipes("best") if label.startswith("GPVI")
    ]
    assert matching(experiment("blr"), "best", "nothing") == []


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownOptionError, match="'blr'"):
        experiment("brl")
    with pytest.raises(UnknownOptionError, match="'SVGD'"):
        experiment("blr").run("SVG", "smoke", (0,), False)
    with pytest.raises(UnknownOptionError, match="'smoke'"):
        experiment("blr").run("SVGD", "smok", (0,), False)


class TestRegression:
    @pytest.mark.slow
    def test_the_posterior_is_where_the_score_vanishes_with_the_inverse_hessian(self):
        problem = blr.regression(3)
        with jax.enable_x64(True):
            score = np.asarray(problem.target.score(jax.numpy.asarray(problem.mean)))
            hessian = np.asarray(
                jax.hessian(problem.target.log_density)(jax.numpy.asarray(problem.mean))
            )
        np.testing.assert_allclose(score, 0, atol=1e-3)
        np.testing.assert_allclose(-np.linalg.inv(hessian), problem.covariance, rtol=1e-5)

    def test_seeds_have_data_of_their_own_and_coefficients_between_five_and_six(self):
        first, second = blr.regression(0), blr.regression(1)
        assert not np.allclose(first.mean, second.mean)
        for problem in (first, second):
            assert ((problem.mean > 4.5) & (problem.mean < 6.5)).all()

    def test_a_collapsed_ensemble_scores_one(self):
        problem = blr.regression(0)
        draws = np.tile(problem.mean, (blr.PARTICLES, 1))
        assert blr.sample_errors(problem, draws) == pytest.approx((0.0, 1.0), abs=1e-12)

    def test_the_floor_of_a_hundred_exact_draws(self):
        """E‖S − Σ‖² = (tr(Σ)² + ‖Σ‖²)/(n − 1) for a Wishart S; the mean norm is just below its root."""
        problem = blr.regression(0)
        covariance = problem.covariance
        square = (np.trace(covariance) ** 2 + (covariance**2).sum()) / (blr.PARTICLES - 1)
        root = math.sqrt(square / (covariance**2).sum())
        _, floor = blr.exact_sample_errors(problem, 0)
        assert 0.85 * root < floor < root

    def test_moments_of_an_affine_generator_are_exact(self, getkey):
        from gpvi.methods import GPVI
        from gpvi.posterior.history import Training
        from gpvi.posterior.posterior import Posterior
        from gpvi.posterior.start import Start
        from gpvi.targets.coordinates import Affine

        method = GPVI(generator=generators.Linear())
        model = generators.Linear().build(3, key=getkey(), dtype=np.float32)
        scale = np.tril(np.random.default_rng(0).uniform(0.5, 1.5, (3, 3)))
        affine = Affine(jax.numpy.arange(3.0), jax.numpy.asarray(scale, np.float32))
        posterior = Posterior(
            method, model, Start(affine), ("a", "b", "c"), Training(1, 1, 0.0, {})
        )
        moments = blr.moments(posterior, 0)
        assert moments is not None
        np.testing.assert_allclose(moments[0], [0, 1, 2], atol=1e-6)
        np.testing.assert_allclose(moments[1], scale @ scale.T, rtol=1e-5)

    @pytest.mark.parametrize("label", ["SVGD", "GPVI (pathwise)"])
    def test_smoke(self, label, tmp_path):
        record = experiment("blr").run(label, "smoke", (0, 1), False)
        assert record.seeds == (0, 1)
        wanted = {
            "mean_error_samples",
            "covariance_error_samples",
            "mean_floor",
            "covariance_floor",
        }
        assert wanted <= set(record.rows)
        assert ("covariance_error" in record.rows) == (label != "SVGD")
        assert all(math.isfinite(v) for values in record.rows.values() for v in values)
        assert record.curves["log_density"].steps[-1] == blr.STEPS["smoke"]
        assert max(record.rows["mean_error_samples"]) < 0.97, (
            "training left the origin, where it is 1"
        )
        assert records.read(records.write(record, tmp_path)).rows == record.rows


class TestPotentials:
    def test_normaliser_of_the_sinusoid_in_closed_form(self):
        """∫ dz₂ is a Gaussian of sd 0.4, ∫ dz₁ a box of width 8 with two half Gaussians of sd 0.4 at its ends."""
        gaussian = 0.4 * math.sqrt(2 * math.pi)
        exact = math.log(gaussian * (8 + gaussian))
        assert energy.reference("sinusoid").log_normaliser == pytest.approx(exact, abs=1e-6)

    @pytest.mark.parametrize("case", energy.POTENTIALS)
    def test_normaliser_by_another_rule_on_another_square(self, case):
        nodes, weights = np.polynomial.legendre.leggauss(400)
        half = 7.5
        density = np.exp(energy.log_density_grid(case, half * nodes))
        value = math.log(half**2 * weights @ density @ weights)
        assert energy.reference(case).log_normaliser == pytest.approx(value, abs=1e-5)

    @pytest.mark.parametrize("case", energy.POTENTIALS)
    def test_scores_are_finite_everywhere(self, case):
        points = np.random.default_rng(0).uniform(-8, 8, (500, 2)).astype(np.float32)
        points[0] = 0
        scores = jax.vmap(jax.grad(energy.POTENTIALS[case]))(points)
        assert np.isfinite(scores).all()

    def test_modes_lie_where_the_paper_draws_them(self):
        on = {
            "twin_moons": [(2.0, 0.0), (-2.0, 0.0)],
            "sinusoid": [(1.0, 1.0), (-1.0, -1.0), (3.0, -1.0)],
            "sin_bisect": [(1.0, 1.0), (1.0, -2.0), (-3.0, 1.0)],
            "sin_split": [(3.0, -1.0), (3.0, -4.0), (-3.0, 1.0)],
        }
        for case, points in on.items():
            values = [float(energy.POTENTIALS[case](jax.numpy.array(p))) for p in points]
            assert min(values) > -0.5, (case, values)
            assert float(energy.POTENTIALS[case](jax.numpy.array([0.0, 4.0]))) < -5

    def test_exact_draws_are_at_the_floor_and_others_are_not(self):
        rng = np.random.default_rng(1)
        cells = energy.reference("twin_moons").cells
        chosen = rng.choice(cells.size, 5_000, p=cells.ravel() / cells.sum())
        width = 2 * energy.HALF_WIDTH / energy.CELLS
        corner = np.stack(np.unravel_index(chosen, cells.shape), 1) * width - energy.HALF_WIDTH
        draws = corner + rng.uniform(0, width, corner.shape)
        floor = energy.total_variation_floor("twin_moons", 5_000)
        assert energy.total_variation(draws, "twin_moons") == pytest.approx(floor, rel=0.2)
        assert energy.total_variation(draws[:, ::-1], "twin_moons") > 4 * floor
        assert energy.total_variation(draws + 100, "twin_moons") == pytest.approx(1.0)

    def test_the_flow_is_trained_as_the_appendix_says(self):
        """By PyTorch's RMSProp with its decay in the gradient: two steps by hand."""
        recipe = experiment("energy").recipes("paper")["Planar flow"]
        optimizer, rate, decay = recipe.optimizer(), 1e-4, 1e-3
        assert recipe.to_json()["weight_decay"] == decay
        parameter, square = 2.0, 0.0
        state = optimizer.init(jax.numpy.array(parameter))
        for gradient in (0.3, -0.7):
            update, state = optimizer.update(gradient, state, jax.numpy.array(parameter))
            whole = gradient + decay * parameter
            square = 0.99 * square + 0.01 * whole**2
            assert float(update) == pytest.approx(-rate * whole / square**0.5, rel=1e-4)
            parameter += float(update)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "label", ["GPVI (functional, exact Jacobian)", "Amortized SVGD", "Planar flow"]
    )
    def test_smoke(self, label, monkeypatch, tmp_path):
        monkeypatch.setattr(energy, "POTENTIALS", {"sin_split": energy.sinusoid_split})
        record = experiment("energy").run(label, "smoke", (0,), False)
        assert set(record.rows) == {f"sin_split/{m.key}" for m in experiment("energy").metrics}
        assert record.arrays["sin_split/draws"].shape == (energy.KEPT_DRAWS, 2)
        assert record.arrays["sin_split/target"].max() == 1
        (distance,), (floor,) = record.rows["sin_split/tv"], record.rows["sin_split/tv_floor"]
        assert floor < distance < 1
        back = records.read(records.write(record, tmp_path))
        np.testing.assert_array_equal(
            back.arrays["sin_split/draws"], record.arrays["sin_split/draws"]
        )


def test_an_interrupted_training_makes_no_record():
    from gpvi.posterior.history import Training
    from gpvi_paper.experiments.base import Measurements

    found = Measurements(experiment("blr"), "SVGD", "smoke", (0,))
    with pytest.raises(KeyboardInterrupt):
        found.follow(Training(10, 300, 1.0, {}, interrupted=True))
