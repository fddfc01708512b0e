"""Mirror images and permutations: found where draws keep to one of them, and not where they visit all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics.images import Image, _maps, unvisited_image
from gpvi.diagnostics.importance import draw_weighted, importance
from gpvi.generators.gaussian import LinearMap
from gpvi.targets.coordinates import Affine, Whitened

NAMES = ("mu[0]", "mu[1]", "sd[0]", "sd[1]", "tau")


def seen(log_density, mean, names=None) -> Image | None:
    """What images show of draws from N(mean, I)."""
    mean = jnp.asarray(mean)
    dim = len(mean)
    density = Whitened(
        gpvi.Target(log_density, dim=dim, names=names), Affine.identity(dim, "float32")
    )
    generator = LinearMap(jnp.eye(dim), mean)
    drawn = draw_weighted(density.target, generator, 500, key=jax.random.key(0))
    return unvisited_image(density, generator, drawn, importance(drawn.log_ratios)[0])


def two(x, a, b):
    return jnp.logaddexp(-0.5 * ((x - a) ** 2).sum(), -0.5 * ((x - b) ** 2).sum())


def test_entries_of_unknowns_with_one_length_are_exchanged_together():
    maps = {each.which: each for each in _maps(NAMES)}
    x = np.arange(5.0)[None]
    both = maps["mu[0] and mu[1] exchanged (and 1 more with it)"]
    assert both(x).tolist() == [[1, 0, 3, 2, 4]]
    assert maps["mu[0] and mu[1] exchanged"](x).tolist() == [[1, 0, 2, 3, 4]]
    assert maps["the sign of tau changed"](x).tolist() == [[0, 1, 2, 3, -4]]


def test_a_lone_vector_is_folded_and_no_map_comes_twice():
    images = [
        tuple(each(np.arange(1.0, 5.0)[None])[0]) for each in _maps([f"x[{i}]" for i in range(4)])
    ]
    assert (2, 1, 4, 3) in images
    assert len(images) == len(set(images))


def test_exchanged_labels_are_half_of_the_posterior():
    a = jnp.array([4.0, -2.0, 3.0, 1.0, 0.0])
    b = jnp.array([-2.0, 4.0, 1.0, 3.0, 0.0])
    found = seen(lambda x: two(x, a, b), a, NAMES)
    assert found is not None
    assert found.share == pytest.approx(0.5, abs=1e-3)
    assert "exchanged" in found.which


def test_images_that_are_visited_or_have_no_mass_are_not_reported():
    assert seen(lambda x: -0.5 * x @ x, [0.0, 0.0, 0.0]) is None
    assert seen(lambda x: -0.5 * ((x - 9) ** 2).sum(), [9.0, 9.0, 9.0]) is None
    lone = jnp.array([9.0, 0.0])
    assert seen(lambda x: -0.5 * ((x - lone) ** 2).sum(), lone) is None


def test_a_small_image_has_its_own_share():
    """.9 N(6, I) + .1 N(−6, I): the mirrored draws weigh p by q, so the share is that of the smaller mode."""
    a = jnp.array([6.0, 6.0])

    def log_density(x):
        near, far = -0.5 * ((x - a) ** 2).sum(), -0.5 * ((x + a) ** 2).sum()
        return jnp.logaddexp(jnp.log(0.9) + near, jnp.log(0.1) + far)

    found = seen(log_density, a)
    assert found is not None
    assert found.share == pytest.approx(0.1, abs=1e-3)
