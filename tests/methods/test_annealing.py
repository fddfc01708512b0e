"""The schedule that weighs the score, and what it changes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gpvi
from gpvi.errors import InputError
from gpvi.methods import Annealing


def test_the_schedule():
    ramp, cyclic = Annealing(10), Annealing(12, cycles=3, power=2.0)
    found = [float(ramp(jnp.asarray(t))) for t in (0, 5, 9, 10, 500)]
    np.testing.assert_allclose(found, [0.0, 0.5, 0.9, 1.0, 1.0], rtol=1e-6)
    found = [float(cyclic(jnp.asarray(t))) for t in (0, 2, 3, 4, 6, 8, 11, 12)]
    np.testing.assert_allclose(found, [0, 1 / 4, 9 / 16, 0, 1 / 4, 0, 9 / 16, 1], atol=1e-6)


def fitted(log_density, steps, annealing):
    method = gpvi.SVGD(particles=8, annealing=annealing)
    target = gpvi.Target(log_density, dim=2)
    options = {"optimizer": optax.sgd(0.5), "progress": False, "init": None}
    return gpvi.fit(target, method, key=jax.random.key(0), steps=steps, **options)


@pytest.mark.slow
def test_the_posterior_counts_for_nothing_at_first_and_for_all_at_last():
    normal, flat = lambda x: -0.5 * x @ x, lambda x: 0.0 * x.sum()
    start = fitted(normal, 1, Annealing(100)).particles
    np.testing.assert_allclose(start, fitted(flat, 1, None).particles, atol=1e-6)
    assert not np.allclose(start, fitted(normal, 1, None).particles, atol=1e-4)
    for annealing in (None, Annealing(300)):
        x = np.asarray(fitted(normal, 600, annealing).particles)
        np.testing.assert_allclose(x.mean(0), 0.0, atol=0.05)
        assert 0.5 < x.var() < 1.2


def test_bad_schedules_are_refused():
    with pytest.raises(InputError, match=r"steps of the annealing is 0"):
        Annealing(0)
    with pytest.raises(InputError, match=r"power of the annealing is 0.0"):
        Annealing(10, power=0.0)
    with pytest.raises(InputError, match=r"6 annealing cycles in 10 steps"):
        Annealing(10, cycles=6)
