"""Mixtures of Gaussians."""

import numpy as np
import pytest

from gpvi.initialization._gaussians import Mixture, Normal


def test_shares_of_a_mixture_are_those_of_its_draws():
    parts = [Normal(np.array([centre]), np.eye(1)) for centre in (-8.0, 0.0, 8.0)]
    mixture = Mixture(parts, np.array([0.09, 0.46, 0.45]))
    x, drawn = mixture.draw(10, np.random.default_rng(0))
    nearest = np.abs(x - [-8.0, 0.0, 8.0]).argmin(1)
    assert np.array_equal(np.bincount(nearest, minlength=3), [0, 4, 6])
    assert np.allclose(drawn.shares, [0.0, 0.4, 0.6])
    assert drawn.moments().location == pytest.approx(4.8)
