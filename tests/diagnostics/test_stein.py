"""Stein's identities and discrepancy against closed forms and automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.diagnostics import stein

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_spread_of_gaussians_is_the_ratio_of_variances(ratio):
    """s = −x/v_p at draws of variance v_q."""
    x = jax.random.normal(jax.random.key(0), (20_000, 2)) * jnp.sqrt(ratio) + 3.0
    found = stein.identities(x, -(x - 3.0))
    np.testing.assert_allclose(found.spread, ratio, rtol=0.05)
    assert np.abs(found.mean_score).max() < 4


def test_mean_score_sees_a_shift():
    x = jax.random.normal(jax.random.key(0), (1_000, 2)) + jnp.array([0.0, 1.0])
    found = stein.identities(x, -x)
    assert abs(found.mean_score[0]) < 4
    assert found.mean_score[1] < -20


def test_discrepancy_is_that_of_the_stein_kernel():
    """u(x, y) by differentiating the inverse multiquadric."""
    x = jax.random.normal(jax.random.key(1), (12, 3))
    s = jnp.sin(x) - 0.3 * x

    def k(a, b):
        return (1 + ((a - b) ** 2).sum() / 3) ** -0.5

    def u(a, s_a, b, s_b):
        mixed = jnp.trace(jax.jacobian(jax.grad(k), 1)(a, b))
        return s_a @ s_b * k(a, b) + s_a @ jax.grad(k, 1)(a, b) + s_b @ jax.grad(k)(a, b) + mixed

    rows = jax.vmap(u, (None, None, 0, 0))
    matrix = jax.jit(jax.vmap(rows, (0, 0, None, None)))(x, s, x, s)
    found = stein.discrepancy(x, s, key=jax.random.key(2))
    assert found.value == pytest.approx(np.sqrt(matrix.mean()), rel=1e-10)


def test_the_test_keeps_its_level_and_has_power():
    keys = jax.random.split(jax.random.key(3), 40)
    exact = jnp.stack([jax.random.normal(key, (200, 2)) for key in keys])
    p_values = jnp.stack([stein.discrepancy(x, -x, key=keys[0]).p_value for x in exact])
    assert 0.3 < p_values.mean() < 0.7
    narrow = stein.discrepancy(0.7 * exact[0], -0.7 * exact[0], key=keys[0])
    assert narrow.p_value < 0.01
