"""Gaussians with a linear generator: the targets are what they say, and the errors are those of closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.linear import density, gaussians


@pytest.mark.parametrize("law", density.LAWS)
def test_the_target_is_the_gaussian_of_its_covariance(law):
    problem = density.gaussian(5, law, 3)
    with jax.enable_x64(True):
        hessian = np.asarray(jax.hessian(problem.target.log_density)(jnp.zeros(5)))
    np.testing.assert_allclose(-hessian @ problem.covariance, np.eye(5), atol=2e-2)
    assert not np.allclose(problem.covariance, density.gaussian(5, law, 4).covariance)


def test_the_laws_of_the_factor():
    """E (AAᵀ)_ij is d·E[a²] on the diagonal and d·E[a]² beside it: d/3 and d/4 for U(0, 1), d and 0 for N(0, 1)."""
    wanted: dict[density.Law, tuple[float, float]] = {
        "uniform": (2 / 3, 1 / 2),
        "normal": (2.0, 0.0),
    }
    for law, (on, off) in wanted.items():
        mean = np.mean([density.gaussian(2, law, seed).covariance for seed in range(400)], 0)
        np.testing.assert_allclose(mean, [[on, off], [off, on]], atol=0.3)


def test_divergence_in_closed_form():
    """For N(b, s²I) against N(0, I) in d dimensions: ½ (d (s² − 1 − log s²) + ‖b‖²)."""
    problem = gaussians.KnownGaussian(
        density.gaussian(3, "normal", 0).target, np.zeros(3), np.eye(3)
    )
    shift = np.array([1.0, 2.0, 0.0])
    found = gaussians.divergence(problem, shift, 4 * np.eye(3))
    assert found == pytest.approx(0.5 * (3 * (4 - 1 - np.log(4)) + 5))
    assert gaussians.divergence(problem, np.zeros(3), np.eye(3)) == pytest.approx(0)


def test_smoke(monkeypatch):
    monkeypatch.setattr(density, "DIMENSIONS", (2,))
    found = experiment("density").run("GPVI (l2)", "smoke", (0, 1), False)
    wanted = {"max_error", "covariance_error", "mean_error", "kl", "condition", "seconds"}
    assert set(found.rows) == {f"2d_{law}/{name}" for law in density.LAWS for name in wanted}
    for law in density.LAWS:
        at_start = [
            gaussians.divergence(density.gaussian(2, law, seed), np.zeros(2), np.eye(2))
            for seed in (0, 1)
        ]
        assert np.less(found.rows[f"2d_{law}/kl"], at_start).all(), "training led nearer than W = I"
    assert {case.split("/")[0] for case in found.curves} == {f"2d_{law}" for law in density.LAWS}
