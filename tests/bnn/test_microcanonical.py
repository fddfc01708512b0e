"""Microcanonical chains: they draw from densities with known moments, and are refused where they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.errors import InputError, NotAvailableError

KEY = jax.random.key(0)
SCALES = np.linspace(0.5, 2.0, 12)


def correlated():
    """A Gaussian with unequal scales and correlations, and its mean and covariance."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    covariance = rotation @ np.diag(SCALES**2) @ rotation.T
    precision = jnp.asarray(np.linalg.inv(covariance))
    mean = np.linspace(-1, 1, 12)
    return (
        gpvi.Target(lambda x: -0.5 * (x - mean) @ precision @ (x - mean), dim=12),
        mean,
        covariance,
    )


def test_moments_of_a_gaussian_are_right():
    target, mean, covariance = correlated()
    method = bnn.MCLMC(chains=8, draws=500, warmup=500, thin=8, energy_variance=1e-3, length=1.0)
    posterior = gpvi.fit(target, method, key=KEY, init=None, progress=False)
    x = np.asarray(posterior.particles)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(x.mean(0), mean, atol=0.12 * sd.max())
    np.testing.assert_allclose(np.cov(x.T), covariance, atol=0.12 * (SCALES**2).max())


def test_the_step_size_reaches_the_energy_variance():
    target, *_ = correlated()
    for wanted in (1e-3, 1e-2):
        method = bnn.MCLMC(chains=8, draws=50, warmup=400, thin=8, energy_variance=wanted)
        history = gpvi.fit(target, method, key=KEY, init=None, progress=False).training.history
        found = history["energy_variance"][-200:].mean()
        assert wanted / 4 < found < 4 * wanted


def test_chains_are_saved_and_loaded(tmp_path):
    target, *_ = correlated()
    method = bnn.MCLMC(chains=2, draws=10, warmup=80, thin=1)
    posterior = gpvi.fit(target, method, key=KEY, init=None, progress=False)
    posterior.save(tmp_path / "chains.gpvi")
    loaded = gpvi.load(tmp_path / "chains.gpvi")
    assert loaded.method == method
    np.testing.assert_array_equal(loaded.particles, posterior.particles)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"warmup": 10}, "warmup is 10"),
        ({"chains": 0}, "chains is 0"),
        ({"thin": 0}, "thin is 0"),
        ({"energy_variance": 0.0}, "energy_variance is 0"),
        ({"length": -1.0}, "length is -1"),
    ],
)
def test_bad_options_are_refused(options, told):
    with pytest.raises(InputError, match=told):
        bnn.MCLMC(**options)


def test_batches_and_other_numbers_of_steps_are_refused():
    method = bnn.MCLMC(draws=10, warmup=100, thin=2)
    with pytest.raises(NotAvailableError, match="needs all data"):
        method.check_run(120, 32)
    with pytest.raises(InputError, match="make 120"):
        method.check_run(100, None)
