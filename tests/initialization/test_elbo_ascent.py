"""A Newton step up the ELBO solves a Gaussian."""

import numpy as np
import pytest

from gpvi.initialization._elbo_ascent import newton_step
from gpvi.initialization._gaussians import Normal

pytestmark = pytest.mark.usefixtures("x64")


def test_newton_step_solves_a_normal_from_d_plus_two_draws():
    rng = np.random.default_rng(0)
    root = np.tril(rng.standard_normal((4, 4))) + 3 * np.eye(4)
    target = Normal(rng.standard_normal(4), root)
    normal = Normal(np.zeros(4), np.eye(4))
    noise = rng.standard_normal((6, 4))
    scores = -np.linalg.solve(root @ root.T, (noise - target.location).T).T
    step = newton_step(normal, noise, np.zeros(6), scores)
    assert step is not None
    moved = normal.moved(step.shift, step.factor(1.0))
    assert np.allclose(moved.location, target.location)
    assert np.allclose(moved.scale, target.scale)
