"""Exploration within a fit: after a resume, for several seeds at once, with log p near 10⁵."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import quietly

KEY = jax.random.key(0)


def two_modes(x):
    """.3 N(0, 1) + .7 N(20, 1), up to a constant."""
    near, far = -0.5 * x @ x, -0.5 * ((x - 20) ** 2).sum()
    return jnp.logaddexp(jnp.log(0.3) + near, jnp.log(0.7) + far)


def modes_of_seeds(method):
    target = gpvi.Target(two_modes, dim=1)
    return gpvi.fit_seeds([target, target], method, key=KEY, progress=False)


@pytest.mark.slow
def test_a_resumed_run_explores_what_the_whole_run_explored(tmp_path):
    """Exploration is not saved: it follows from the key and the start, which are."""
    target = gpvi.Target(two_modes, dim=1)
    options = {"key": KEY, "progress": False}

    def stop(event):
        if event.step >= 250:
            raise StopIteration

    with quietly():
        whole = gpvi.fit(target, **options)
        gpvi.fit(target, checkpoint=tmp_path, callbacks=[stop], **options)
        resumed = gpvi.fit(target, checkpoint=tmp_path, **options)
    assert str(resumed.modes()) == str(whole.modes())
    assert resumed.training.notes == whole.training.notes
    np.testing.assert_array_equal(resumed.sample(10, key=KEY), whole.sample(10, key=KEY))


@pytest.mark.slow
def test_particles_of_several_seeds():
    for posterior in modes_of_seeds(gpvi.SMC(islands=4, particles=256)):
        shares = [(posterior.particles < 10).mean(), (posterior.particles > 10).mean()]
        np.testing.assert_allclose(shares, [0.3, 0.7], atol=0.15)


@pytest.mark.slow
def test_chains_of_several_seeds_start_in_different_modes():
    for posterior in modes_of_seeds(gpvi.NUTS(chains=4, warmup=100, draws=100)):
        assert 0.1 < (posterior.particles > 10).mean() < 0.9
        assert posterior.diagnose(key=KEY).verdict.level == "do not trust"


@pytest.mark.slow
def test_a_large_constant_is_not_taken_for_missing_mass():
    """log p is near 10⁵, where float32 has steps of .008."""
    target = gpvi.Target(lambda x: 1e5 - 0.5 * x @ x - 0.1 * (x**4).sum(), dim=3)
    diagnosis = gpvi.fit(target, key=KEY, progress=False).diagnose(key=KEY)
    assert diagnosis.verdict.level == "good"
    assert diagnosis.missing == 0
    assert diagnosis.explored is not None and diagnosis.explored.healthy
