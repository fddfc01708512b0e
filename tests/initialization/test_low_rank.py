"""A Gaussian with a factor covariance is found exactly, in the metric of its own KL divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.initialization import low_rank
from gpvi.initialization._low_rank import fit_precision

RANK = 5


def factors(dim, seed=0):
    rng = np.random.default_rng(seed)
    unit, factor = np.exp(rng.standard_normal(dim)), rng.standard_normal((dim, RANK))
    return rng.standard_normal(dim), unit, factor * np.geomspace(0.1, 3, RANK)


def normal(location, unit, factor, power):
    """A Gaussian with covariance D (I + WWᵀ)^power D, for power 1 or −1."""
    inner = np.linalg.inv(np.eye(RANK) + factor.T @ factor) if power == 1 else -np.eye(RANK)

    def log_density(x):
        u = (x - jnp.asarray(location, x.dtype)) / jnp.asarray(unit, x.dtype)
        v = jnp.asarray(factor, x.dtype).T @ u
        return -0.5 * u @ u + 0.5 * v @ (jnp.asarray(inner, x.dtype) @ v)

    core = np.eye(len(unit)) + factor @ factor.T
    core = core if power == 1 else np.linalg.inv(core)
    return log_density, unit[:, None] * core * unit


@pytest.mark.parametrize("power", [1, -1])
def test_a_gaussian_with_a_factor_covariance(power):
    location, unit, factor = factors(200)
    log_density, covariance = normal(location, unit, factor, power)
    found = low_rank(log_density, np.zeros(200), key=jax.random.key(0))
    L = np.asarray(found.scale.dense(), np.float64)
    between, away = np.linalg.solve(covariance, L @ L.T), np.asarray(found.location) - location
    kl = 0.5 * (np.trace(between) - 200 - np.linalg.slogdet(between)[1])
    assert kl + 0.5 * away @ np.linalg.solve(covariance, away) < 0.02
    assert str(found.report).startswith("low rank: ELBO") and found.report.scores > 0


def test_a_precision_is_fixed_by_few_products():
    _, unit, factor = factors(300)
    precision = np.diag(unit) + factor @ factor.T
    rng = np.random.default_rng(1)
    groups, probes = rng.permutation(300) % 3, rng.choice([-1.0, 1.0], (RANK + 3, 300))
    products = np.stack([((groups == g) * probes) @ precision for g in range(3)])
    diagonal, basis, eigenvalues = fit_precision(groups, probes, products)
    root = np.sqrt(diagonal)[:, None]
    found = root * (np.eye(300) + (basis * (eigenvalues - 1)) @ basis.T) * root.T
    np.testing.assert_allclose(found, precision, rtol=1e-6, atol=1e-6)


def test_a_density_without_support_is_refused():
    with pytest.raises(gpvi.errors.InputError):
        low_rank(
            lambda x: jnp.where(jnp.abs(x).max() > 0, -jnp.inf, 0.0),
            np.zeros(9),
            key=jax.random.key(0),
        )


@pytest.mark.slow
def test_a_fit_in_ten_thousand_dimensions_is_saved_and_loaded(tmp_path):
    """The start fits, so that there is nothing to train, and the coordinates have a file."""
    location, unit, factor = factors(10_000)
    log_density, _ = normal(location, unit, factor, 1)[0], None
    posterior = gpvi.fit(gpvi.Target(log_density, dim=10_000), key=0, progress=False)
    assert posterior.training.steps == 0 and posterior.affine.kind == "semiseparable"
    posterior.save(tmp_path / "posterior.gpvi")
    loaded = gpvi.load(tmp_path / "posterior.gpvi")
    np.testing.assert_array_equal(loaded.sample(3, key=1), posterior.sample(3, key=1))
    draws = np.asarray(posterior.sample(2_000, key=2))
    deviations = unit * np.sqrt(1 + (factor**2).sum(1))
    assert np.abs((draws.mean(0) - location) / deviations).max() < 6 / np.sqrt(2_000)
    np.testing.assert_allclose(draws.std(0) / deviations, 1.0, atol=0.1)
