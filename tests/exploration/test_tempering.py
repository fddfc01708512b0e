"""Islands of particles: log Z against closed forms, and log p that is unpleasant at the wide end."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.exploration.search import log_mean, wide_scale
from gpvi.exploration.tempering import Summits, _log_wide, _sum, _wide_score, advance, begin, temper
from gpvi.targets.coordinates import Affine, Whitened

LOG_2PI = math.log(2 * math.pi)


def in_own_coordinates(log_density, dim: int, dtype: str = "float32") -> Whitened:
    return Whitened(gpvi.Target(log_density, dim=dim, dtype=dtype), Affine.identity(dim, dtype))


@pytest.mark.parametrize(
    "summits", [None, Summits(jnp.array([[-9.0], [30.0]]), jnp.full((2, 1), 0.5))]
)
def test_the_wide_end_is_a_normalised_density_with_its_own_score(summits):
    density = in_own_coordinates(lambda x: -0.5 * x @ x, 1)
    islands = begin(density, jnp.array([3.0]), 50, summits, key=jax.random.key(0))
    island = jax.tree.map(lambda each: each[0], islands)
    x = jnp.linspace(-4_000, 4_000, 400_001)[:, None]
    log_r = _log_wide(island, x)
    assert abs(float(jnp.trapezoid(jnp.exp(log_r), x[:, 0])) - 1) < 1e-3
    at = jnp.array([[0.3], [-7.0], [29.0]])
    slope = jax.grad(lambda x: _log_wide(island, x).sum())(at)
    np.testing.assert_allclose(_wide_score(island, at), slope, rtol=1e-4)


def test_particles_begin_in_all_parts_of_the_wide_end():
    summits = Summits(jnp.array([[100.0, 0.0], [0.0, 100.0]]), jnp.full((2, 2), 0.01))
    density = in_own_coordinates(lambda x: -0.5 * x @ x, 2)
    islands = begin(density, jnp.full(2, 1.0), 40, summits, key=jax.random.key(0))
    for centre in summits.centres:
        assert (jnp.linalg.norm(islands.points - centre, axis=-1) < 1).sum(1).tolist() == [10, 10]


def test_a_mode_that_particles_do_not_meet_is_weighed_if_they_begin_there():
    """½ N(0, 1) + ½ N(3, .01²) in five dimensions: log Z is 0 with the spike, −log 2 without."""

    def spiked(x):
        spike = -0.5 * ((x - 3) ** 2).sum() / 1e-4 + 5 * math.log(100)
        return jnp.logaddexp(-0.5 * x @ x, spike) - 2.5 * LOG_2PI - math.log(2)

    density = in_own_coordinates(spiked, 5)
    centres = jnp.stack([jnp.full(5, 3.0), jnp.zeros(5)])
    widths = jnp.stack([jnp.full(5, 0.01), jnp.ones(5)])
    islands = temper(
        density, jnp.full(8, 8.0), 128, 0.6, Summits(centres, widths), key=jax.random.key(0)
    )
    found, error = log_mean(np.asarray(islands.log_evidence, np.float64))
    assert abs(found) < max(4.8 * error, 0.1)
    assert error < 0.15


def test_a_large_constant_does_not_cost_digits():
    """log p is near 10⁵, where float32 has steps of .008."""
    density = in_own_coordinates(lambda x: 1e5 - 0.5 * x @ x, 2)
    islands = temper(density, jnp.full(8, 8.0), 256, 0.9, key=jax.random.key(0))
    found, error = log_mean(np.asarray(islands.log_evidence, np.float64) - 1e5)
    assert abs(found - LOG_2PI) < 4.8 * error + 0.01
    assert error < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_log_evidence_of_a_gaussian(seed):
    """E Ẑ = Z: the islands' mean is within four of its standard errors."""
    density = in_own_coordinates(lambda x: -0.5 * x @ x / 0.25, 3)
    islands = temper(density, jnp.full(8, 8.0), 256, 0.8, key=jax.random.key(seed))
    found, error = log_mean(np.asarray(islands.log_evidence, np.float64))
    assert islands.arrived.all()
    assert abs(found - 1.5 * (LOG_2PI + math.log(0.25))) < 4.8 * error
    spread = islands.points.reshape(-1, 3).std(0)
    np.testing.assert_allclose(spread, 0.5, rtol=0.1)


def test_particles_without_a_value_at_the_wide_end_are_left_behind():
    def half_normal(x):
        return jnp.where(x[0] > 0, -0.5 * x @ x, jnp.nan)

    islands = temper(
        in_own_coordinates(half_normal, 2),
        jnp.full(8, 8.0),
        256,
        0.8,
        key=jax.random.key(0),
    )
    found, error = log_mean(np.asarray(islands.log_evidence, np.float64))
    assert (islands.points[..., 0] > 0).all()
    assert abs(found - (LOG_2PI - math.log(2))) < max(4.8 * error, 0.1)


def test_an_island_that_has_arrived_rests():
    density = in_own_coordinates(lambda x: -0.5 * x @ x, 2)
    islands = begin(density, jnp.full(2, 1.0), 16, key=jax.random.key(0))
    advance_once = eqx.filter_jit(advance)
    for number in range(60):
        islands = advance_once(density, islands, jnp.asarray(0.5), key=jax.random.key(number))
    assert islands.arrived.all()
    again = advance_once(density, islands, jnp.asarray(0.5), key=jax.random.key(99))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), islands, again))


@pytest.mark.parametrize(("sd", "least"), [(1.0, 8.0), (100.0, 64.0)])
def test_the_wide_end_is_as_wide_as_the_posterior(sd, least):
    density = in_own_coordinates(lambda x: -0.5 * x @ x / sd**2, 2)
    narrow, widest = wide_scale(density, key=jax.random.key(0))
    assert least <= narrow <= 8 * least
    assert widest >= 1_024


def test_sums_without_rounding():
    """Where the first particles lie at −10⁹, a plain sum in float32 would be off by tens of nats."""
    small = np.random.default_rng(0).normal(size=300)
    terms = np.concatenate([np.full(300, -2.5e6), small, np.full(300, 2.5e6)]).astype(np.float32)

    @jax.jit
    def summed(terms):
        def add(carry, term):
            return _sum(carry[0], term + carry[1]), None

        return jax.lax.scan(add, (jnp.float32(0), jnp.float32(0)), terms)[0]

    assert sum(map(float, summed(terms))) == pytest.approx(terms.astype(float).sum(), abs=1e-2)
    assert abs(np.cumsum(terms)[-1] - terms.astype(float).sum()) > 1
