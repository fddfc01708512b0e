"""What is seen before particles are sent: summits, their masses, and islands that overlook one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.exploration.curvature import curvature, to_the_top
from gpvi.exploration.probes import (
    Reached,
    _along_rays,
    _climbed,
    _distinct,
    _explained,
    _humps,
    summits_in_sight,
)
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
    _, alone = _along_rays(of(lambda x: -0.5 * x @ x, 3), jax.random.key(0))
    assert not _humps(alone).any()
    points, values = _along_rays(of(far_and_narrow, 2), jax.random.key(0))
    near = np.linalg.norm(points[_humps(values)] - [30, 40], axis=1) < 10
    assert len(near) and near.all()


def test_rays_follow_the_coordinates_of_the_target():
    """Another summit on an axis, or on the diagonal, where training has other coordinates."""
    affine = Affine(
        jnp.zeros(6), jnp.asarray(np.tril(np.full((6, 6), 0.3)) + np.eye(6), jnp.float32)
    )
    for place in (30 * jnp.eye(6)[2], jnp.full(6, 12.0)):

        def log_density(x, place=place):
            other = -0.5 * ((x - place) ** 2).sum()
            return jnp.logaddexp(-0.5 * jnp.sqrt(1 + x @ x), other)

        density = Whitened(gpvi.Target(log_density, dim=6), affine)
        _, values = _along_rays(density, jax.random.key(0))
        assert _humps(values).any()


def test_points_climb_from_far_out_where_no_ray_rises():
    """Thirty Gaussians in thirty dimensions: a ray enters the basin of another one on its way down."""
    centres = jnp.concatenate(
        [jnp.zeros((1, 30)), 40 * jax.random.normal(jax.random.key(0), (29, 30))]
    )

    def log_density(x):
        return jax.nn.logsumexp(-0.5 * ((x - centres) ** 2).sum(1))

    density = of(log_density, 30)
    _, values = _along_rays(density, jax.random.key(1))
    assert not _humps(values).any()
    found = summits_in_sight(density, key=jax.random.key(1))
    nearest = np.linalg.norm(found.centres[:, None] - np.asarray(centres), axis=2)
    assert (nearest.min(1) < 0.1).all()
    assert len(found.centres) >= 25
    assert found.points.sum() <= found.gradients


def test_a_point_is_counted_at_the_summit_that_explains_log_p_there():
    """Gaussians of two widths: the nearest in standard deviations explains; far out and between them alike."""
    centres, widths = np.array([[0.0, 0.0], [20.0, 0.0]]), np.array([1.0, 2.0])

    def log_density(x):
        away = ((x - jnp.asarray(centres, jnp.float32)) ** 2).sum(1) / jnp.asarray(widths) ** 2
        return jax.nn.logsumexp(-0.5 * away - 2 * jnp.log(jnp.asarray(widths)))

    density = of(log_density, 2)
    heights = np.array([float(log_density(c)) for c in centres])
    x = np.random.default_rng(0).normal(size=(200, 2)) * 30
    x[0] = 1e30
    values = np.array([float(log_density(each)) for each in x])
    by = _explained(density, Reached(centres, heights, np.ones(2, int)), x, values)
    q = heights - 0.5 * ((x[1:, None] - centres) ** 2).sum(2) / widths**2
    clear = np.abs(q[:, 0] - q[:, 1]) > 5
    assert by[0] == -1
    np.testing.assert_array_equal(by[1:][clear & (by[1:] >= 0)], q.argmax(1)[clear & (by[1:] >= 0)])
    assert (by[1:][clear] >= 0).mean() > 0.8
    unknown = _explained(density, Reached(centres[:1], heights[:1], np.ones(1, int)), x, values)
    assert (unknown[1:][clear & (q.argmax(1) == 1)] == -1).all()


def test_points_climb_within_walls():
    """Nothing is far out: log p is −∞ beyond a box that holds two modes."""

    def log_density(x):
        away = ((x - jnp.array([[1.0, 1.0], [-1.0, -1.0]])) ** 2).sum(1)
        return jnp.where((jnp.abs(x) < 2).all(), jax.nn.logsumexp(-50 * away), -jnp.inf)

    found = summits_in_sight(of(log_density, 2, initial=jnp.ones(2)), key=jax.random.key(0))
    np.testing.assert_allclose(np.abs(found.centres), 1, atol=1e-3)
    assert len(found.centres) == 2


def test_a_large_share_around_summits_met_once_is_told():
    around = look_around(of(far_and_narrow, 2), key=jax.random.key(0))
    assert around is not None and not around.met_once.any()
    assert around.share_met_once(0.0) == 0
    once = around._replace(met_once=np.array([False, True]))
    assert once.share_met_once(0.0) == pytest.approx(0.33, abs=0.08)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_climbing_reaches_the_top_at_any_scale(scale):
    top = jnp.array([1.0, -2.0]) * scale
    density = of(lambda x: -0.5 * (((x - top) / scale) ** 2).sum(), 2)
    ends, heights = _climbed(density, jnp.array([[0.0, 0.0], [50.0, 3.0]]))
    np.testing.assert_allclose(ends, jnp.stack([top, top]), atol=0.05 * scale)
    np.testing.assert_allclose(heights, 0.0, atol=1e-2)
    ends, heights = np.asarray(ends, float), np.asarray(heights, float)
    tops, counts = _distinct(density, ends, heights, np.array([1, 1]))
    assert len(tops) == 1 and counts == [2]


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


def test_curvature_needs_gradients_alone():
    """A log-density whose gradient is a rule of its own has no forward derivative."""
    precision = jnp.array([[4.0, 1.0], [1.0, 100.0]])

    @jax.custom_vjp
    def log_density(x):
        return -0.5 * x @ precision @ x

    log_density.defvjp(lambda x: (log_density(x), x), lambda x, g: (-g * precision @ x,))
    found = curvature(of(log_density, 2), np.zeros((1, 2)))
    covariance = found.axes[0] * found.variances[0] @ found.axes[0].T
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=0.05, atol=0.005)


def test_the_last_steps_of_a_climb_do_not_depend_on_the_coordinates():
    """Far below a summit in a narrow ridge across the axes, where steps along these do not get on."""
    factor = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0] * np.geomspace(
        1e-2, 1, 5
    )
    inverse, top = jnp.asarray(np.linalg.inv(factor), jnp.float32), np.full(5, 3.0)

    def log_density(x):
        return -0.5 * (jnp.matmul(inverse, x - top, precision="highest") ** 2).sum()

    density = of(log_density, 5)
    ends = top + (factor @ np.full(5, 6.0))[None]
    above = to_the_top(density, ends, np.array([-90.0]))
    np.testing.assert_allclose(above.heights, 0, atol=0.01)
    np.testing.assert_allclose(above.ends[0], top, atol=0.02)
    assert above.gradients > 0


def test_summits_are_reached_in_coordinates_in_which_they_are_narrow():
    """Forty unit Gaussians in ten dimensions, in the coordinates of one Gaussian that is wide, narrow and oblique."""
    centres = 40 * np.random.default_rng(1).uniform(-1, 1, (40, 10))
    means = jnp.asarray(centres, jnp.float32)
    factor = np.linalg.qr(np.random.default_rng(2).normal(size=(10, 10)))[0] * np.geomspace(
        1, 40, 10
    )
    affine = Affine(jnp.zeros(10), jnp.asarray(factor, jnp.float32))
    target = gpvi.Target(lambda x: jax.nn.logsumexp(-0.5 * ((x - means) ** 2).sum(1)), dim=10)
    found = summits_in_sight(Whitened(target, affine), key=jax.random.key(0))
    nearest = np.linalg.norm((found.centres @ factor.T)[:, None] - centres, axis=2)
    assert (nearest.min(1) < 0.3).all()
    assert len(np.unique(nearest.argmin(1))) >= 38
