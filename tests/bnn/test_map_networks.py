"""MAP networks, from which generators start, and the noise while they are trained."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import bnn
from gpvi.bnn._map_networks import (
    LOW_NOISE,
    MAP_NOISE,
    map_networks,
    with_fixed_noise,
    with_low_noise,
)

KEY = jax.random.key(0)


@pytest.mark.parametrize("batch_size", [None, 30])
def test_map_networks_reach_the_maximum(batch_size):
    """Without hidden layers it is known: ridge regression with noise 0.1 under weights N(0, 1)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = (X @ [0.5, -0.3] + 0.2 + 0.02 * rng.standard_normal(60))[:, None]
    network, likelihood = bnn.mlp((2, 1)), bnn.Gaussian(start_noise=0.7)
    options = {"number": 2, "steps": 2_000, "batch_size": batch_size, "key": KEY}
    found = map_networks(network, likelihood, "normal", X, y, **options)
    A = np.c_[X, np.ones(60)]
    best = np.linalg.solve(A.T @ A + MAP_NOISE**2 * np.eye(3), A.T @ y)
    weights = network.apply(found[0, : network.size], jnp.eye(3, 2))
    known = np.r_[best[:2] + best[2], best[2:]]
    np.testing.assert_allclose(weights, known, atol=0.002 if batch_size is None else 0.02)
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
    np.testing.assert_allclose(found[:, -1], np.log(0.7), rtol=1e-5)


def test_noise_is_kept_low_in_the_units_of_y():
    y = 30.0 * np.random.default_rng(0).standard_normal((400, 1))
    low: Any = with_low_noise(bnn.Gaussian(), y)
    assert low.noise.median == pytest.approx(LOW_NOISE * np.std(y), rel=0.05)
    for values, scale in ((y, np.std(y)), (np.ones((5, 1)), 1.0)):
        firm: Any = with_fixed_noise(bnn.Gaussian(), values)
        assert firm.noise == pytest.approx(MAP_NOISE * scale, rel=0.05)
    known = bnn.Gaussian(noise=0.3)
    assert with_low_noise(known, y) == known
