"""The second witness: what was called good and is wrong, and what must not be called wrong."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.diagnostics.witness import hear_points
from gpvi.exploration.search import Exploration
from selection import some_slow


def two_modes(x):
    """.3 N(0, I) + .7 N(20·1, I), up to a constant."""
    near, far = -0.5 * x @ x, -0.5 * ((x - 20) ** 2).sum()
    return jnp.logaddexp(jnp.log(0.3) + near, jnp.log(0.7) + far)


def judged(
    method: gpvi.methods.Method, *, init: Literal["auto"] | None = "auto", seed: int = 0
) -> Diagnosis:
    posterior = gpvi.fit(
        gpvi.Target(two_modes, dim=5),
        method,
        key=jax.random.key(seed),
        steps=None if isinstance(method, gpvi.NUTS) else 300,
        init=init,
        progress=False,
    )
    return posterior.diagnose(key=jax.random.key(1))


CHAINS = gpvi.NUTS(chains=4, draws=200, warmup=200)


@pytest.mark.parametrize("init", some_slow(["auto", None], fast=["auto"]))
def test_chains_that_lose_a_mode_are_not_good(init):
    """R̂ of chains that all start near one mode is 1.00."""
    found = judged(CHAINS, init=init)
    assert found.verdict.level == "do not trust"
    assert found.explored is not None


@pytest.mark.slow
@pytest.mark.parametrize("method", [gpvi.FullRankVI(), gpvi.SVGD(particles=50)])
def test_what_loses_a_mode_is_told_how_much(method):
    found = judged(method, init=None)
    assert found.verdict.level == "do not trust"
    assert found.explored is not None and 0.5 < found.explored.unseen < 0.9
    assert "miss" in found.verdict.reason


@pytest.mark.slow
def test_a_neck_into_which_no_particle_follows_does_not_count_against_the_draws():
    """Exact draws of a funnel, by its own map: the islands fall short, and their health says so."""
    from gpvi.diagnostics.importance import Importance
    from gpvi.diagnostics.witness import _healthy
    from gpvi.exploration.search import explore
    from gpvi.targets.coordinates import Affine, Whitened

    def funnel(x):
        return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.exp(-x[0]) * x[1:] @ x[1:] - 4.5 * x[0]

    target = gpvi.Target(funnel, dim=10)
    found = explore(Whitened(target, Affine.identity(10, "float32")), key=jax.random.key(0))
    assert found is not None
    truth = 5 * jnp.log(2 * jnp.pi) + jnp.log(3)
    own = Importance(float(truth), 0.0, float(truth), 0.0, 1.0, 0.1, 0.0, 4_000)
    assert found.log_evidence < truth - 0.5
    assert not _healthy(found, own, target.dtype)


@pytest.mark.parametrize(("particles", "told"), [(3, True), (1, False)])
def test_a_small_mode_that_the_draws_leave_out_is_told(particles, told):
    """Of 128 particles of an island about 3, 2.3 %, or 1 lie in a mode that no draw visits."""
    rng = np.random.default_rng(0)
    inside = np.arange(128) < rng.poisson(particles, (8, 1))
    points = np.where(inside, 30.0, 0.0)[..., None] + rng.normal(size=(8, 128, 1))
    flat = np.zeros((8, 128))
    found = Exploration(points, flat, inside.astype(int), np.zeros(8), 8.0, 1, True)
    heard = hear_points(found, rng.normal(size=(4_000, 1)))
    assert (heard.unseen > 0) == told
    assert hear_points(found, points[:, ::4].reshape(-1, 1)).unseen == 0
