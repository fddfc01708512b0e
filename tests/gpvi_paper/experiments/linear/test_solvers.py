"""Solvers of Jᵀy = ∇k are measured against LU, and the transpose matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.generators.gaussian import LinearMap
from gpvi.solvers import as_solver
from gpvi.solvers.iterative import Iterative
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.linear import solvers

WEIGHT = np.array([[1.0, 0.8, 0.0], [-0.5, 0.9, 0.3], [0.2, 0.0, 1.2]], np.float32)


@pytest.fixture
def problem():
    generator = LinearMap(jnp.asarray(WEIGHT), jnp.zeros(3))
    return generator, solvers.Systems.draw(8, 3, key=jax.random.key(0))


def test_the_right_hand_sides_are_gradients_of_the_kernel_in_its_first_argument():
    systems = solvers.Systems.draw(5, 3, key=jax.random.key(1))
    assert systems.v.shape == (5, 5, 3)
    z_prime, z = jax.random.normal(jax.random.key(1), (2, 5, 3))
    toward = np.einsum("jid,jid->ji", systems.v, z_prime[:, None] - z[None])
    assert (toward < 0).all(), "the kernel falls with the distance"


def test_errors_and_residuals_of_what_is_known(problem):
    generator, systems = problem
    v = np.asarray(systems.v)
    right = np.linalg.solve(WEIGHT.T, v[..., None])[..., 0]
    wrong = np.linalg.solve(WEIGHT, v[..., None])[..., 0]
    assert max(solvers.product_error(right, generator, systems)) < 1e-6
    assert min(solvers.product_error(wrong, generator, systems)) > 0.1, "J^{-1} is not J^{-T}"
    assert solvers.product_error(0 * right, generator, systems) == pytest.approx((1, 1))


def test_three_dimensions_need_three_iterations(problem):
    """In exact arithmetic BiCGSTAB ends after d iterations."""
    generator, systems = problem
    left = np.asarray(solvers.residual_by_iteration(generator, systems, 4))
    assert left[0] == pytest.approx(1)
    assert left[1] > 1e-2, "one iteration is not enough"
    assert left[4] < 1e-4
    one = solvers.solutions(Iterative("bicgstab", 1e-6, 1), None, generator, systems)
    _, residual = solvers.product_error(np.asarray(one), generator, systems)
    assert residual == pytest.approx(left[1], rel=1e-2)


@pytest.mark.slow
def test_smoke(monkeypatch):
    monkeypatch.setattr(solvers, "PARTICLES", 20)
    monkeypatch.setattr(solvers, "ITERATIONS", 3)
    monkeypatch.setattr(solvers, "TIMINGS", 1)
    monkeypatch.setitem(solvers.STEPS, "smoke", 50)
    found = experiment("solvers").run("BiCGSTAB", "smoke", (0,), False)
    assert set(found.rows) == {metric.key for metric in solvers.LinearSolvers.metrics}
    assert found.rows["product_error"][0] < 1e-4
    assert found.rows["iterations"][0] <= solvers.ITERATIONS
    assert found.arrays["residual_by_iteration"].shape == (solvers.ITERATIONS + 1,)
    for name in ("product_error", "residual", "covariance_error"):
        assert found.curves[name].steps[-1] == 50
    assert as_solver("block") == solvers.SOLVERS["block"]
