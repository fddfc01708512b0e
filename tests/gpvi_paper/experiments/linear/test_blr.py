"""Bayesian linear regression: the exact posterior, the errors and their floor, and a smoke run."""

import math

import jax
import numpy as np
import pytest

from gpvi import generators
from gpvi_paper import records
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.linear import blr


@pytest.mark.slow
def test_the_posterior_is_where_the_score_vanishes_with_the_inverse_hessian():
    problem = blr.regression(3)
    with jax.enable_x64(True):
        score = np.asarray(problem.target.score(jax.numpy.asarray(problem.mean)))
        hessian = np.asarray(
            jax.hessian(problem.target.log_density)(jax.numpy.asarray(problem.mean))
        )
    np.testing.assert_allclose(score, 0, atol=1e-3)
    np.testing.assert_allclose(-np.linalg.inv(hessian), problem.covariance, rtol=1e-5)


def test_seeds_have_data_of_their_own_and_coefficients_between_five_and_six():
    first, second = blr.regression(0), blr.regression(1)
    assert not np.allclose(first.mean, second.mean)
    for problem in (first, second):
        assert ((problem.mean > 4.5) & (problem.mean < 6.5)).all()


def test_a_collapsed_ensemble_scores_one():
    problem = blr.regression(0)
    draws = np.tile(problem.mean, (blr.PARTICLES, 1))
    assert blr.sample_errors(problem, draws) == pytest.approx((0.0, 1.0), abs=1e-12)


def test_the_floor_of_a_hundred_exact_draws():
    """E‖S − Σ‖² = (tr(Σ)² + ‖Σ‖²)/(n − 1) for a Wishart S; the mean norm is just below its root."""
    problem = blr.regression(0)
    covariance = problem.covariance
    square = (np.trace(covariance) ** 2 + (covariance**2).sum()) / (blr.PARTICLES - 1)
    root = math.sqrt(square / (covariance**2).sum())
    _, floor = blr.exact_sample_errors(problem, 0)
    assert 0.85 * root < floor < root


def test_moments_of_an_affine_generator_are_exact(getkey):
    from gpvi.methods import GPVI
    from gpvi.posterior.history import Training
    from gpvi.posterior.posterior import Posterior
    from gpvi.posterior.start import Start
    from gpvi.targets.coordinates import Affine

    method = GPVI(generator=generators.Linear())
    model = generators.Linear().build(3, key=getkey(), dtype=np.float32)
    scale = np.tril(np.random.default_rng(0).uniform(0.5, 1.5, (3, 3)))
    affine = Affine(jax.numpy.arange(3.0), jax.numpy.asarray(scale, np.float32))
    posterior = Posterior(method, model, Start(affine), ("a", "b", "c"), Training(1, 1, 0.0, {}))
    moments = blr.moments(posterior, 0)
    assert moments is not None
    np.testing.assert_allclose(moments[0], [0, 1, 2], atol=1e-6)
    np.testing.assert_allclose(moments[1], scale @ scale.T, rtol=1e-5)


@pytest.mark.parametrize("label", ["SVGD", "GPVI (pathwise)"])
def test_smoke(label, tmp_path):
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
    assert max(record.rows["mean_error_samples"]) < 0.97, "training left the origin, where it is 1"
    assert records.read(records.write(record, tmp_path)).rows == record.rows
