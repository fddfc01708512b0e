"""The Cholesky factor of diagonal plus low rank, against NumPy's of the dense matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.targets import Affine, Semiseparable


def example(dim, rank=3, signs=(1.0, -1.0, 1.0)):
    rng = np.random.default_rng(0)
    unit, factor = np.exp(rng.standard_normal(dim)), rng.standard_normal((dim, rank))
    factor[:, 1] *= 0.5 / np.linalg.norm(factor[:, 1])
    inner = np.eye(dim) + (factor * np.asarray(signs)) @ factor.T
    return unit, factor, np.asarray(signs), unit[:, None] * inner * unit


@pytest.mark.parametrize("dim", [1, 5, 64, 150])
def test_it_is_the_cholesky_factor(dim):
    unit, factor, signs, covariance = example(dim)
    with jax.enable_x64(True):
        scale = Semiseparable.of(unit, factor, signs, np.float64)
        affine = Affine(jnp.arange(dim, dtype=float), scale)
        L, (u, v) = np.linalg.cholesky(covariance), np.random.default_rng(1).normal(size=(2, dim))
        np.testing.assert_allclose(scale.dense(), L, atol=1e-9)
        np.testing.assert_allclose(affine(jnp.asarray(u)), np.arange(dim) + L @ u)
        np.testing.assert_allclose(affine.inverse(affine(jnp.asarray(u))), u, atol=1e-9)
        transposed = affine.solve_transposed(jnp.asarray(v))
        np.testing.assert_allclose(transposed, np.linalg.solve(L.T, v), atol=1e-9)
        np.testing.assert_allclose(affine.log_det(), np.log(np.diag(L)).sum())
        np.testing.assert_allclose(affine.diagonal, np.diag(L))
        np.testing.assert_allclose(affine.deviations, np.sqrt(np.diag(covariance)))
        conditional = np.diag(np.linalg.inv(covariance)) ** -0.5
        np.testing.assert_allclose(scale.conditional_deviations(), conditional)
        k = (dim + 1) // 2
        np.testing.assert_allclose(affine.leading(k).scale.dense(), L[:k, :k], atol=1e-9)


def test_products_of_many_coordinates_in_single_precision():
    """Rounding errors of the running sums do not grow with the dimension: there and back is the identity."""
    unit, factor = np.ones(20_000), np.random.default_rng(0).standard_normal((20_000, 4))
    scale = Semiseparable.of(unit, factor, np.ones(4))
    u = jnp.asarray(np.random.default_rng(1).standard_normal(20_000), jnp.float32)
    assert float(jnp.abs(scale.solve(scale @ u) - u).max()) < 1e-3


def test_an_indefinite_matrix_has_no_factor():
    with (
        pytest.raises(np.linalg.LinAlgError, match="not positive definite"),
        np.errstate(all="ignore"),
    ):
        Semiseparable.of(np.ones(2), np.array([[2.0], [2.0]]), -np.ones(1))
