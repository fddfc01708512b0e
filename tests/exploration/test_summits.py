"""What is seen before particles are sent: summits, their masses, and islands that overlook one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.exploration.probes import _climbed, _distinct, _humps
from gpvi.exploration.summits import look_around
from gpvi.targets.coordinates import Affine, Whitened


def of(log_density, dim, **options) -> Whitened:
    return Whitened(gpvi.Target(log_density, dim=dim, **options), Affine.identity(dim, "float32"))


def far_and_narrow(x):
    """½ N(0, I) + ½ N((30, 40), .1² I)."""
    far = jnp.array([30.0, 40.0])
    near, narrow = -0.5 * x @ x, -0.5 * ((x - far) ** 2).sum() / 0.01
    return jnp.logaddexp(near, narrow + 2 * math.log(10)) - math.log(4 * math.pi)


def test_a_ray_rises_only_where_another_summit_is():
    assert not len(_humps(of(lambda x: -0.5 * x @ x, 3), jax.random.key(0))[0])
    humps, _ = _humps(of(far_and_narrow, 2), jax.random.key(0))
    assert len(humps)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_climbing_reaches_the_top_at_any_scale(scale):
    top = jnp.array([1.0, -2.0]) * scale
    density = of(lambda x: -0.5 * (((x - top) / scale) ** 2).sum(), 2)
    ends, heights = _climbed(density, jnp.array([[0.0, 0.0], [50.0, 3.0]]))
    np.testing.assert_allclose(ends, jnp.stack([top, top]), atol=0.05 * scale)
    np.testing.assert_allclose(heights, 0.0, atol=1e-2)
    assert len(_distinct(density, np.asarray(ends, float), np.asarray(heights, float))) == 1


def test_the_mass_around_a_summit_and_islands_that_overlook_it():
    around = look_around(of(far_and_narrow, 2), key=jax.random.key(0))
    assert around is not None
    log_mass, error = around.masses(np.isfinite(around.log_weights))
    assert len(log_mass) == 2
    np.testing.assert_allclose(np.exp(log_mass), 0.5, atol=0.08)
    assert (error < 0.1).all()
    rng = np.random.default_rng(0)
    at_home = rng.normal(size=(8, 100, 2))
    everywhere = at_home.copy()
    everywhere[:, ::2] = [30, 40] + 0.1 * at_home[:, ::2]
    assert around.overlooked(at_home, math.log(0.5))
    assert not around.overlooked(everywhere, 0.0)


def test_other_coordinates_hold_the_same_mass():
    around = look_around(of(far_and_narrow, 2), key=jax.random.key(0))
    affine = Affine(jnp.array([1.0, 2.0]), jnp.array([[2.0, 0.0], [1.0, 3.0]]))
    assert around is not None
    placed = around.placed(affine)
    x = np.random.default_rng(0).normal(size=(50, 2)) * 2
    moved = np.asarray(jax.vmap(affine)(jnp.asarray(x, jnp.float32)), float)
    np.testing.assert_array_equal(placed.within(moved), around.within(x))


def test_the_users_start_climbs():
    """A summit that no ray meets, in twenty dimensions, is where the user's start leads."""
    far = np.full(20, 9.0, np.float32)

    def log_density(x):
        near, narrow = -0.5 * x @ x, -0.5 * ((x - far) ** 2).sum() / 0.25
        return jnp.logaddexp(near, narrow + 20 * math.log(2))

    around = look_around(of(log_density, 20, initial=far + 1), key=jax.random.key(0))
    assert around is not None
    assert any(np.allclose(each, far, atol=0.1) for each in around.centres)


def test_particles_begin_around_summits_and_in_what_was_found():
    around = look_around(of(far_and_narrow, 2), key=jax.random.key(0))
    assert around is not None
    points = np.random.default_rng(0).normal(size=(100, 2)) + 5
    starts = around.starts(points, np.zeros(100, int), np.dtype("float32"))
    assert starts.centres.shape == starts.widths.shape == (4, 2)
    for centre, width in ([30, 40], 0.1), ([0, 0], 1.0), ([5, 5], 1.0):
        nearest = np.linalg.norm(starts.centres - np.array(centre), axis=1).argmin()
        np.testing.assert_allclose(starts.centres[nearest], centre, atol=0.3)
        np.testing.assert_allclose(starts.widths[nearest], width, rtol=0.2)
