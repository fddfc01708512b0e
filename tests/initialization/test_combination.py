"""Importance weights that combine path ends."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.initialization._combination import importance_sample, temper
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._gaussians import Mixture, Normal

pytestmark = pytest.mark.usefixtures("x64")


def test_parts_of_a_mixture_without_a_draw_do_not_count():
    """Of 100 draws none comes from a part with a share of 0.4 %: all come from the other part, which is p."""
    p, far = Normal(np.zeros(2), np.eye(2)), Normal(np.ones(2), np.eye(2))
    density = HostDensity(lambda x: -0.5 * x @ x - jnp.log(2 * jnp.pi), 2)
    proposal = Mixture([far, p], np.array([0.004, 0.996]))
    sample = importance_sample(density, proposal, 100, np.random.default_rng(0))
    assert sample.x.shape == (100, 2)
    assert np.allclose(sample.log_ratios, 0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0])
def test_tempered_weights_keep_the_effective_sample(spread):
    ratios = spread * np.random.default_rng(0).standard_normal(1000)
    ratios[::10] = -np.inf
    exponent, weights = temper(ratios, 200)
    assert weights.sum() == pytest.approx(1)
    assert np.all(weights[::10] == 0)
    effective = 1 / (weights**2).sum()
    assert exponent == 1 if spread < 1 else effective == pytest.approx(200, rel=1e-3)
