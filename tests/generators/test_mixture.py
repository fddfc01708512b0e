"""Mixtures of generators against quadrature, closed forms, and the Jacobian of each component."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import multivariate_normal

import gpvi
from gpvi.diagnostics import sampling
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import (
    FullRank,
    Linear,
    Mixture,
    Planar,
    Preconditioned,
    SplineFlow,
    Triangular,
)
from gpvi.generators.noise import standard_normal
from gpvi.methods.reverse_kl import mixture_gradient
from gpvi.targets.coordinates import Affine

pytestmark = pytest.mark.usefixtures("x64")
SPLINE = Triangular(head=SplineFlow(layers=2, knots=3, width=4))
WEIGHTS = np.array([0.6, 0.3, 0.1])


def mixed(component, dim=2, seed=0) -> Any:
    """Three components away from their start, with the weights .6, .3 and .1."""
    rng = np.random.default_rng(seed)
    built = Mixture(3, component).build(dim, key=jax.random.key(seed), dtype=jnp.float64)
    moved = jax.tree.map(
        lambda a: a + 0.1 * rng.normal(size=a.shape) if eqx.is_inexact_array(a) else a, built
    )
    affines = jax.vmap(Affine)(
        jnp.asarray(3 * rng.normal(size=(3, dim))),
        jnp.asarray(np.tril(0.3 * rng.normal(size=(3, dim, dim))) + np.eye(dim)),
    )
    weights = jnp.log(WEIGHTS) + 5.0
    return eqx.tree_at(lambda m: (m.affines, m.log_weights), moved, (affines, weights))


@pytest.mark.parametrize("component", [FullRank(), SPLINE])
def test_log_q_integrates_to_one(component):
    grid = np.linspace(-14, 14, 281)
    points = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    density = np.exp(sampling.log_prob(mixed(component), jnp.asarray(points)))
    assert density.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(1, abs=1e-3)


def test_gaussians_have_the_closed_form():
    mixture = mixed(FullRank(), dim=3)
    x = 3 * np.random.default_rng(1).normal(size=(7, 3))
    wanted = np.zeros(7)
    flow, affines = jax.tree.map(np.asarray, (mixture.generators.flow, mixture.affines))
    for c, weight in enumerate(WEIGHTS):
        inner = np.tril(flow.lower[c], -1) + np.diag(np.exp(flow.log_scale[c]))
        factor = affines.scale[c] @ inner
        mean = affines.location[c] + affines.scale[c] @ flow.shift[c]
        wanted += weight * multivariate_normal(mean, factor @ factor.T).pdf(x)
    found = sampling.log_prob(mixture, jnp.asarray(x))
    np.testing.assert_allclose(found, np.log(wanted), 1e-9)


@pytest.mark.parametrize("component", [FullRank(), SPLINE])
def test_a_component_has_the_dense_jacobian(component):
    mixture = mixed(component)

    @jax.jit
    def described(c, z):
        dense = jax.jacobian(lambda z: mixture((c, z)))(z)
        own = jax.jacobian(mixture.component(c))(z)
        return dense, own, mixture.head_jacobian((c, z)).as_matrix(), mixture.log_det((c, z))

    z = jnp.asarray(np.random.default_rng(1).normal(size=2))
    for c in range(3):
        dense, own, head, log_det = described(c, z)
        np.testing.assert_allclose(own, dense, 1e-9)
        np.testing.assert_allclose(head, dense, 1e-9)
        np.testing.assert_allclose(log_det, np.linalg.slogdet(dense), 1e-9)


@pytest.mark.parametrize("component", [FullRank(), SPLINE])
def test_draws_come_from_the_components_by_weight_with_their_density(component):
    affine = Affine(jnp.array([5.0, -1.0]), jnp.array([[2.0, 0.0], [0.3, 0.5]]))
    mixture = mixed(component)
    generator = Preconditioned(mixture, affine)
    key = jax.random.key(3)
    x, log_q = sampling.sample_with_density(generator, 1_500, key)
    np.testing.assert_array_equal(x, sampling.sample(generator, 1_500, key))
    np.testing.assert_allclose(log_q, sampling.log_prob(generator, x), 1e-9)
    u = jax.vmap(affine.inverse)(x)
    own = jax.vmap(mixture.component_log_probs)(u) + jnp.log(WEIGHTS)
    shares = np.asarray(jax.nn.softmax(own, axis=1)).mean(0)
    np.testing.assert_allclose(shares, WEIGHTS, atol=5 * np.sqrt(0.25 / 1_500))


def test_the_gradient_is_that_of_the_reverse_kl():
    """Against plain differentiation of the sum over the same noise, with the parameters in log q itself held fixed.

    Those add E_q[∂ log q] = 0; with them the gradients differ by the noise of that mean alone.
    """
    mixture = mixed(FullRank())
    target = gpvi.Target(lambda x: -0.25 * (x**4).sum(), dim=2, dtype="float64")
    params, static = eqx.partition(mixture, eqx.is_inexact_array)
    key, draws = jax.random.key(5), 6_000
    z = standard_normal(mixture, draws, key=key).reshape(3, -1, 2)

    def reverse_kl(params, of_log_q):
        own, fixed = eqx.combine(params, static), eqx.combine(of_log_q, static)
        x = own.each(lambda component, z: jax.vmap(component)(z), z)
        log_q = jax.vmap(jax.vmap(fixed.log_prob))(x)
        log_p = jax.vmap(jax.vmap(target.log_density))(x)
        return (jnp.exp(own.normalised) * (log_q - log_p).mean(1)).sum()

    wanted, added = jax.jit(jax.grad(reverse_kl, (0, 1)))(params, params)
    found, info = eqx.filter_jit(mixture_gradient)(mixture, target, draws, None, key=key)
    assert info["elbo"] == pytest.approx(-float(reverse_kl(params, params)))
    for have, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-10)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(added)) < 0.1
    assert not np.asarray(found.affines.location).any(), "coordinates are not trained"


def test_where_q_is_p_the_gradient_has_no_variance():
    mixture = mixed(FullRank())
    target = gpvi.Target(mixture.log_prob, dim=2, dtype="float64")
    gradient = eqx.filter_jit(mixture_gradient)
    found, _ = gradient(mixture, target, 90, None, key=jax.random.key(1))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found)) < 1e-10


def test_training_finds_a_mixture():
    """Two Gaussians of weights .3 and .7, from two components at other places and equal weights."""
    centres = jnp.array([[-2.0, 0.0], [2.0, 1.0]])

    def log_density(x):
        return jax.nn.logsumexp(jnp.log(jnp.array([0.3, 0.7])) - 2 * ((x - centres) ** 2).sum(1))

    target = gpvi.Target(log_density, dim=2, dtype="float64")
    method = gpvi.GPVI(generator=Mixture(2, FullRank()), particles=64)
    optimizer = optax.adam(0.02)
    state = method.init(target, optimizer, key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.affines.location, state.learner.model, 1.2 * centres)
    state = state._replace(learner=state.learner._replace(model=model))

    @jax.jit
    def trained(arrays, key):
        def one(arrays, key):
            now = eqx.combine(arrays, static)
            after, info = method.step(target, optimizer, now, None, key=key)
            return eqx.filter(after, eqx.is_array), info["elbo"]

        return jax.lax.scan(one, arrays, jax.random.split(key, 300))

    arrays, static = eqx.partition(state, eqx.is_array)
    arrays, elbo = trained(arrays, jax.random.key(1))
    mixture = eqx.combine(arrays, static).learner.model
    assert elbo[-20:].mean() == pytest.approx(np.log(np.pi / 2), abs=0.01)
    np.testing.assert_allclose(np.exp(mixture.normalised), [0.3, 0.7], atol=0.03)


def test_what_cannot_be_a_mixture_is_refused():
    with pytest.raises(InputError, match="components"):
        Mixture(0)
    with pytest.raises(NotAvailableError, match="mixture itself"):
        Mixture(2, Mixture(2))
    with pytest.raises(NotAvailableError, match="may fold"):
        Mixture(2, gpvi.generators.MLP()).build(2, key=jax.random.key(0), dtype="float64")
    with pytest.raises(NotAvailableError, match="no exact inverse"):
        Mixture(2, Planar(2)).build(2, key=jax.random.key(0), dtype="float64").log_prob(jnp.ones(2))
    with pytest.raises(NotAvailableError, match="a mixture has several"):
        gpvi.GPVI(generator=Mixture(2, Linear()), gradient="l2")
    with pytest.raises(NotAvailableError, match="log_prob"):
        mixed(FullRank()).inverse(jnp.ones(2))
