"""What bending each coordinate would gain over a Gaussian, where its share is known; and when a fit does so."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.initialization import share_of_marginals
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training.preparation import BENT, first_state, planned, should_bend

SHAPE = 30.0


def log_gammas(dim, rotated):
    """Independent logarithms of gamma variables, or as many orthogonal mixtures of them, in the best Gaussian."""
    axes = np.eye(dim)
    if rotated:
        axes = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]

    def log_density(x):
        w = jnp.asarray(axes, x.dtype) @ x
        return SHAPE * (w - jnp.exp(w)).sum()

    location = axes.T @ np.full(dim, -0.5 / SHAPE)
    affine = Affine(jnp.asarray(location, jnp.float32), jnp.eye(dim) / SHAPE**0.5)
    return Whitened(gpvi.Target(log_density, dim=dim), affine)


def test_independent_coordinates_are_bent_and_rotated_ones_are_not():
    assert 0.9 < share_of_marginals(log_gammas(40, rotated=False), key=jax.random.key(0)) < 1.1
    assert share_of_marginals(log_gammas(40, rotated=True), key=jax.random.key(0)) < 0.15


def test_the_gain_is_that_of_the_expansion_for_correlated_coordinates():
    """Of a log-Gaussian Cox process on a line: the third order, from the moments of its best Gaussian."""
    dim = 30
    prior = np.exp(-np.abs(np.subtract.outer(np.arange(dim), np.arange(dim))) / 2.0)
    precision, mean, covariance, rate = np.linalg.inv(prior), np.zeros(dim), prior, np.ones(dim)
    for _ in range(200):
        rate = 4 * np.exp(mean + np.diag(covariance) / 2)
        covariance = np.linalg.inv(precision + np.diag(rate))
        mean = mean + covariance @ (4.0 - rate - precision @ mean)
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviations, deviations)
    slopes = -rate * deviations**3
    curvature = 2 * correlation**2 * np.linalg.inv(correlation) + 4 * np.eye(dim)
    gain = 0.5 * slopes @ np.linalg.solve(curvature, slopes)
    everything = slopes @ correlation**3 @ slopes / 12

    def log_density(f):
        return -0.5 * f @ jnp.asarray(precision, f.dtype) @ f + 4 * (f - jnp.exp(f)).sum()

    arrays = (jnp.asarray(a, jnp.float32) for a in (mean, np.linalg.cholesky(covariance)))
    density = Whitened(gpvi.Target(log_density, dim=dim), Affine(*arrays))
    found = share_of_marginals(density, key=jax.random.key(1))
    np.testing.assert_allclose(found, gain / everything, atol=0.1)


def test_a_density_without_values_is_not_bent():
    nowhere = gpvi.Target(lambda x: jnp.where(x[0] > 1.0, 0.0, jnp.nan) + x.sum(), dim=5)
    density = Whitened(nowhere, Affine.identity(5, jnp.float32))
    assert share_of_marginals(density, key=jax.random.key(0)) == 0.0


@pytest.mark.parametrize(
    ("dim", "method", "share", "bent"),
    [
        (130, gpvi.GPVI(), 0.6, True),
        (130, gpvi.GPVI(), 0.2, False),
        (128, gpvi.GPVI(), 0.6, False),
        (3_001, gpvi.GPVI(), 0.6, False),
        (130, gpvi.GPVI(particles=100), 0.6, False),
    ],
)
def test_when_a_fit_bends(monkeypatch, dim, method, share, bent):
    monkeypatch.setattr("gpvi.initialization.share_of_marginals", lambda *_, **__: share)
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=dim)
    plan = planned(target, method, None, None, None, "auto")
    density = Whitened(target, Affine.identity(dim, jnp.float32))
    assert should_bend(plan, density, "auto", key=jax.random.key(0)) == bent


def test_a_bent_fit_starts_as_the_gaussian_and_is_short():
    density = log_gammas(5, rotated=False)
    factor = np.tril(np.random.default_rng(0).standard_normal((5, 5))) + 2 * np.eye(5)
    density = Whitened(density.target, Affine(jnp.zeros(5), jnp.asarray(factor, jnp.float32)))
    plan = planned(density.target, BENT, None, None, None, "auto")
    key = jax.random.key(0)
    state = first_state(plan.method, density, plan.optimizer, "auto", key=key)
    z = jax.random.normal(key, (5,))
    assert plan.steps == 250
    np.testing.assert_allclose(state.learner.model(z), z, atol=1e-5)
    covariance = state.learner.model.factor @ state.learner.model.factor.T
    np.testing.assert_allclose(np.diag(covariance), 1, atol=1e-5)


@pytest.mark.slow
def test_log_gammas_in_many_dimensions():
    """A default fit removes most of what the best Gaussian misses; log Z is 0."""
    dim, shape = 210, 2.0
    log_z = math.lgamma(shape) - shape * math.log(shape)
    best = -0.5 - shape - log_z + 0.5 * math.log(2 * math.pi * math.e / shape)

    def log_density(x):
        return (shape * (x - jnp.exp(x)) - log_z).sum()

    posterior = gpvi.fit(gpvi.Target(log_density, dim=dim), key=0, progress=False)
    assert posterior.method == BENT
    elbo = posterior.diagnose(key=1).elbo
    assert elbo is not None and elbo > 0.2 * dim * best
