"""The posterior in the noise of a generator: the density of z by the change of variables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from cases import Shape, conditioned, example
from gpvi.errors import NotAvailableError
from gpvi.generators.gaussian import LinearMap
from gpvi.generators.noise import log_standard_normal
from gpvi.posterior.noise_space import NoiseSpace
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import Density


def skewed(x):
    return -0.5 * (x**2).sum() - 0.3 * jnp.sin(x).sum() + x[0] * x[1]


@pytest.mark.parametrize("kind", ["affine-conditional", "full-rank"])
def test_the_density_is_that_of_the_change_of_variables(kind):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        target = gpvi.Target(skewed, dim=3, dtype="float64")
        generator = example(kind, Shape(3, 2, (4,)), "bare", rng)
        affine = conditioned(generator, "dense", rng).affine
        density = NoiseSpace(Whitened(target, affine), generator)
        assert isinstance(density, Density)
        z = jnp.asarray(rng.standard_normal((5, 3)))

        def whole(z):
            return affine(generator(z))

        by_hand = [
            skewed(whole(each)) + jnp.linalg.slogdet(jax.jacobian(whole)(each))[1] for each in z
        ]
        np.testing.assert_allclose(jax.vmap(density.log_density)(z), by_hand, rtol=1e-9)
        np.testing.assert_allclose(density.log_densities(z), by_hand, rtol=1e-9)


def test_an_exact_generator_leaves_a_standard_normal():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        factor = np.tril(rng.standard_normal((3, 3)), -1) + np.diag([0.1, 2.0, 30.0])
        inverse, mean = jnp.asarray(np.linalg.inv(factor)), jnp.asarray([5.0, -3.0, 0.0])
        target = gpvi.Target(
            lambda x: -0.5 * ((inverse @ (x - mean)) ** 2).sum(), dim=3, dtype="float64"
        )
        affine = Affine(mean, jnp.asarray(factor))
        identity = LinearMap(jnp.eye(3), jnp.zeros(3))
        density = NoiseSpace(Whitened(target, affine), identity)
        z = jnp.asarray(rng.standard_normal((4, 3)))
        log_z = np.linalg.slogdet(factor)[1] + 1.5 * np.log(2 * np.pi)
        expected = jax.vmap(log_standard_normal)(z) + log_z
        np.testing.assert_allclose(density.log_densities(z), expected, rtol=1e-9)
        scores = jax.vmap(jax.grad(density.log_density))(z)
        np.testing.assert_allclose(scores, -z, rtol=1e-9)


def test_it_shares_data_and_start_with_the_target():
    target = gpvi.Target(
        log_likelihood=lambda x, y: -0.5 * (y - x[0]) ** 2, data=np.ones(7, np.float32), dim=1
    )
    generator = gpvi.generators.FullRank().build(1, key=jax.random.key(0), dtype="float32")
    density = NoiseSpace(Whitened(target, Affine.identity(1, np.dtype("float32"))), generator)
    assert (density.dim, density.size, density.stream) == (1, 7, None)
    assert not density.draws_its_start
    assert density.operations() > 0
    np.testing.assert_array_equal(density.batch(jnp.arange(2)), [1, 1])
    point = jnp.asarray([0.5])
    whole = density.log_density(point)
    batch = density.log_density(point, density.batch(jnp.arange(3)))
    np.testing.assert_allclose(batch, whole, rtol=1e-6)  # all data are equal
    with pytest.raises(NotAvailableError, match="use the target itself"):
        density.local_log_density(point, point, None, key=jax.random.key(0))
