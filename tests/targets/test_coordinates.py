"""The affine map against its matrix, and a whitened Gaussian against the standard normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target


@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_whitening_a_gaussian_gives_the_standard_normal(form):
    with jax.enable_x64(True):
        L = np.diag([0.5, -2.0, 3.0]) + (form == "dense") * np.tril(np.ones((3, 3)), -1)
        m = np.asarray([1.0, -2.0, 0.5])
        affine = Affine(jnp.asarray(m), jnp.asarray(L if form == "dense" else np.diagonal(L)))
        precision, log_det = np.linalg.inv(L @ L.T), np.linalg.slogdet(L)[1]
        target = Target(
            lambda x: -(x - m) @ precision @ (x - m) / 2 - log_det - 1.5 * np.log(2 * np.pi), dim=3
        )
        u = np.random.default_rng(0).standard_normal(3)
        value = Whitened(target, affine).log_density(jnp.asarray(u))
        np.testing.assert_allclose(value, multivariate_normal(np.zeros(3)).logpdf(u), rtol=1e-12)


@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_affine_against_its_matrix(form):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        L = np.diag([0.5, -2.0, 3.0]) + (form == "dense") * np.tril(rng.standard_normal((3, 3)), -1)
        m, u, v = rng.standard_normal((3, 3))
        affine = Affine(jnp.asarray(m), jnp.asarray(L if form == "dense" else np.diagonal(L)))
        x = affine(jnp.asarray(u))
        np.testing.assert_allclose(x, m + L @ u, rtol=1e-12)
        np.testing.assert_allclose(affine.inverse(x), u, rtol=1e-12)
        np.testing.assert_allclose(affine.solve_transposed(jnp.asarray(v)), np.linalg.solve(L.T, v))
        np.testing.assert_allclose(affine.log_det(), np.linalg.slogdet(L)[1], rtol=1e-12)
        np.testing.assert_array_equal(affine.diagonal, np.diagonal(L))
        np.testing.assert_array_equal(Affine.identity(3, jnp.float64)(jnp.asarray(u)), u)
