"""The potentials: normalisers, modes and distances against closed forms, and a smoke run."""

import math

import jax
import numpy as np
import pytest

from gpvi_paper import records
from gpvi_paper.experiments import energy, experiment


def test_normaliser_of_the_sinusoid_in_closed_form():
    """∫ dz₂ is a Gaussian of sd 0.4, ∫ dz₁ a box of width 8 with two half Gaussians of sd 0.4 at its ends."""
    gaussian = 0.4 * math.sqrt(2 * math.pi)
    exact = math.log(gaussian * (8 + gaussian))
    assert energy.reference("sinusoid").log_normaliser == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("case", energy.POTENTIALS)
def test_normaliser_by_another_rule_on_another_square(case):
    nodes, weights = np.polynomial.legendre.leggauss(400)
    half = 7.5
    density = np.exp(energy.log_density_grid(case, half * nodes))
    value = math.log(half**2 * weights @ density @ weights)
    assert energy.reference(case).log_normaliser == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("case", energy.POTENTIALS)
def test_scores_are_finite_everywhere(case):
    points = np.random.default_rng(0).uniform(-8, 8, (500, 2)).astype(np.float32)
    points[0] = 0
    scores = jax.vmap(jax.grad(energy.POTENTIALS[case]))(points)
    assert np.isfinite(scores).all()


def test_modes_lie_where_the_paper_draws_them():
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


def test_exact_draws_are_at_the_floor_and_others_are_not():
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


def test_the_flow_is_trained_as_the_appendix_says():
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
def test_smoke(label, monkeypatch, tmp_path):
    monkeypatch.setattr(energy, "POTENTIALS", {"sin_split": energy.sinusoid_split})
    record = experiment("energy").run(label, "smoke", (0,), False)
    assert set(record.rows) == {f"sin_split/{m.key}" for m in experiment("energy").metrics}
    assert record.arrays["sin_split/draws"].shape == (energy.KEPT_DRAWS, 2)
    assert record.arrays["sin_split/target"].max() == 1
    (distance,), (floor,) = record.rows["sin_split/tv"], record.rows["sin_split/tv_floor"]
    assert floor < distance < 1
    back = records.read(records.write(record, tmp_path))
    np.testing.assert_array_equal(back.arrays["sin_split/draws"], record.arrays["sin_split/draws"])
