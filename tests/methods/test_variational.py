"""Gaussian and flow families against posteriors with a closed form."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError
from gpvi.generators import (
    AbstractGenerator,
    Autoregressive,
    FullRank,
    Planar,
    SplineFlow,
    Triangular,
)
from gpvi.methods.reverse_kl import l2_gradient, pathwise_gradient
from gpvi.methods.schedules import decaying
from gpvi.methods.variational import MAX_TURN, local_gradient, turning_rows
from gpvi.solvers.block import Block
from gpvi.targets.coordinates import Affine, Whitened

COVARIANCE = np.array([[1.0, 0.8, 0.1], [0.8, 2.0, -0.5], [0.1, -0.5, 0.3]])
MEAN = np.array([1.0, -2.0, 0.5])
PRECISION = np.linalg.inv(COVARIANCE)
SMALL = {
    "spline": SplineFlow(layers=2, knots=3, width=4),
    "planar": Planar(8),
    "autoregressive": Autoregressive(2, 8),
}


@functools.cache
def correlated(dtype="float32"):
    mean, precision = MEAN.astype(dtype), PRECISION.astype(dtype)
    return gpvi.Target(lambda x: -0.5 * (x - mean) @ precision @ (x - mean), dim=3, dtype=dtype)


def fitted(method, steps, init=None, target=None, seed=0):
    target = correlated() if target is None else target
    return gpvi.fit(
        target, method, key=jax.random.key(seed), steps=steps, progress=False, init=init
    )


def gaussian_moments(posterior):
    """b and LLᵀ of an affine generator."""
    origin = jnp.zeros(posterior.dim)
    jacobian = np.asarray(jax.jacobian(posterior.generator)(origin), float)
    return np.asarray(posterior.generator(origin), float), jacobian @ jacobian.T


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_a_step_turns_no_row_of_the_factor_by_more_than_its_share(scale):
    """Where rows are short; where they are of length 1, it is the step of Adam."""
    rate, dim = 0.01, 30
    params = eqx.filter(
        FullRank(scale).build(dim, key=jax.random.key(0), dtype=jnp.float32), eqx.is_inexact_array
    )
    signs = jax.random.rademacher(jax.random.key(1), (dim, dim), jnp.float32)
    gradient = eqx.tree_at(lambda g: g.flow.lower, params, jnp.tril(signs, -1))

    def second_step(optimizer):
        """At the full rate, after a warm-up of one step."""
        _, moments = optimizer.update(gradient, optimizer.init(params), params)
        return optimizer.update(gradient, moments, params)[0].flow

    free, found = (second_step(make("adam", rate, 50)) for make in (decaying, turning_rows))
    np.testing.assert_array_equal(found.shift, free.shift)
    np.testing.assert_array_equal(found.log_scale, free.log_scale)
    length, allowed = np.linalg.norm(found.lower, axis=1), MAX_TURN * rate * scale
    assert np.linalg.norm(free.lower, axis=1)[-1] == pytest.approx(
        rate * (dim - 1) ** 0.5, rel=1e-3
    )
    assert (length <= allowed * 1.001).all()
    if scale == 1:
        np.testing.assert_array_equal(found.lower, free.lower)
    else:
        np.testing.assert_allclose(length[1:], allowed, rtol=1e-3)


@pytest.mark.parametrize("gradient", ["pathwise", "l2"])
def test_mean_field_finds_the_inverse_of_the_diagonal_of_the_precision(gradient):
    """KL(q‖p) is least at σ_i² = 1/P_ii, up to ten times below the true variances here."""
    posterior = fitted(gpvi.MeanFieldVI(gradient=gradient, particles=128, learning_rate=0.03), 1500)
    mean, covariance = gaussian_moments(posterior)
    np.testing.assert_allclose(mean, MEAN, atol=0.02)
    np.testing.assert_allclose(np.diag(covariance), 1 / np.diag(PRECISION), rtol=0.02)
    assert not (covariance - np.diag(np.diag(covariance))).any()
    assert (np.diag(COVARIANCE) > 1.5 / np.diag(PRECISION)).any()


def test_mean_field_stays_factorised_in_the_coordinates_that_fit_chooses():
    posterior = fitted(gpvi.MeanFieldVI(particles=128), 800, init="laplace")
    assert posterior.affine.kind == "diagonal"
    _, covariance = gaussian_moments(posterior)
    np.testing.assert_allclose(np.diag(covariance), 1 / np.diag(PRECISION), rtol=0.02)


@pytest.mark.parametrize("gradient", ["pathwise", "l2"])
def test_full_rank_finds_mean_and_covariance(gradient):
    posterior = fitted(gpvi.FullRankVI(gradient=gradient, particles=128, learning_rate=0.03), 1500)
    mean, covariance = gaussian_moments(posterior)
    np.testing.assert_allclose(mean, MEAN, atol=0.03)
    np.testing.assert_allclose(covariance, COVARIANCE, atol=0.03)
    x, log_q = posterior.sample_and_log_prob(50, key=jax.random.key(1))
    np.testing.assert_allclose(posterior.log_prob(x), log_q, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        pytest.param("spline", 0.9, marks=pytest.mark.slow),  # has its row in test_contract
        pytest.param("autoregressive", 0.9, marks=pytest.mark.slow),
        pytest.param("planar", 0.7, marks=pytest.mark.slow),
    ],
)
def test_flows_find_mean_and_covariance(kind, share):
    method = gpvi.NormalizingFlow(SMALL[kind], particles=128, learning_rate=0.02)
    posterior = fitted(method, 600)
    x = np.asarray(posterior.sample(20_000, key=jax.random.key(1)), float)
    np.testing.assert_allclose(x.mean(0), MEAN, atol=0.1)
    np.testing.assert_allclose(np.cov(x.T), COVARIANCE, atol=0.2)
    found = posterior.diagnose(key=jax.random.key(2))
    assert found.density == "exact"
    assert found.effective_share > share
    assert abs(found.elbo - 0.5 * np.linalg.slogdet(2 * np.pi * COVARIANCE)[1]) < 0.3
    if kind == "planar":
        with pytest.raises(NotAvailableError, match=r"no exact inverse.*sample_and_log_prob"):
            posterior.log_prob(x[:2])
    else:
        draws, log_q = posterior.sample_and_log_prob(20, key=jax.random.key(3))
        np.testing.assert_allclose(posterior.log_prob(draws), log_q, atol=1e-2)


@pytest.mark.slow
def test_a_spline_flow_is_gpvi_with_k_equal_to_d():
    """From one generator one step of each gives the same parameters, to the last bit."""
    options = {"particles": 16, "learning_rate": 0.01}
    flow = gpvi.NormalizingFlow(SMALL["spline"], **options)
    sampler = gpvi.GPVI(Triangular(3, SMALL["spline"]), **options)
    density = Whitened(correlated(), Affine.identity(3, np.dtype("float32")))
    optimizer = flow.default_optimizer(10)
    state = sampler.init(density, optimizer, key=jax.random.key(0))
    both = eqx.filter_jit(
        lambda state: [
            method.step(density, optimizer, state, None, key=jax.random.key(1))[0].learner.model
            for method in (flow, sampler)
        ]
    )(state)
    assert eqx.tree_equal(*both)
    built = flow.init(density, optimizer, key=jax.random.key(0)).learner.model
    assert jax.tree.structure(built) == jax.tree.structure(state.learner.model)


def test_both_gradients_agree_in_expectation():
    """Path-derivative and pathwise gradients have one mean; where q = p the former has no variance at all."""
    with jax.enable_x64(True):
        target = Whitened(correlated("float64"), Affine.identity(3, np.dtype("float64")))
        generator = FullRank(0.7).build(3, key=jax.random.key(0), dtype=jnp.float64)
        z = jax.random.normal(jax.random.key(1), (100_000, 3), jnp.float64)
        both = eqx.filter_jit(
            lambda g, z: (
                pathwise_gradient(g, target, z, None)[0],
                l2_gradient(g, Block(), target, z, None)[0],
            )
        )
        for a, b in zip(*map(jax.tree.leaves, both(generator, z)), strict=True):
            np.testing.assert_allclose(a, b, atol=0.1)
        factor = np.linalg.cholesky(COVARIANCE)
        best = eqx.tree_at(
            lambda g: (g.flow.shift, g.flow.log_scale, g.flow.lower),
            generator,
            (jnp.asarray(MEAN), jnp.log(jnp.diag(factor)), jnp.asarray(factor)),
        )
        pathwise, quiet = both(best, z)
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(quiet)) < 1e-12
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(pathwise)) > 1e-4


def test_networks_start_narrow():
    """σ is relative to the spread of the starting points, and typical where a coordinate always starts at one value."""
    spread = jnp.array([0.1, 1.0, 0.0])
    target = gpvi.Target(
        lambda x: -0.5 * x @ x, dim=3, initial=lambda key: spread * jax.random.normal(key, (3,))
    )
    density = Whitened(target, Affine.identity(3, target.dtype))
    optimizer = gpvi.MeanFieldVI().default_optimizer(10)

    def scales(method):
        state = method.init(density, optimizer, key=jax.random.key(0))
        return np.exp(state.learner.model.flow.log_scale)

    found = scales(gpvi.MeanFieldVI())
    np.testing.assert_allclose(found, 0.05 * np.array([0.1, 1.0, 0.55]), rtol=0.3)
    np.testing.assert_allclose(scales(gpvi.FullRankVI(scale=0.5)), 10 * found, rtol=1e-5)


def linear_network(rows=20):
    """Regression by a network without hidden layers, noise 1 and prior N(0, 1): the precision is XᵀX + I."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    outputs = inputs @ [1.0, -1.0] + 0.5 + rng.standard_normal(rows)
    target = bnn.target(bnn.mlp((2, 1)), bnn.Gaussian(noise=1.0), "normal", inputs, outputs)
    bias_first = target.names[0].find("bias") >= 0
    columns = [np.ones(rows), *inputs.T] if bias_first else [*inputs.T, np.ones(rows)]
    features = np.stack(columns, 1)
    precision = features.T @ features + np.eye(3)
    return target, np.linalg.solve(precision, features.T @ outputs), precision


@pytest.mark.slow
def test_local_reparameterisation_finds_the_mean_field_posterior_with_less_noise():
    target, mean, precision = linear_network()
    method = gpvi.MeanFieldVI(local=True, particles=32, learning_rate=0.03)
    posterior = fitted(method, 1500, target=target)
    found, covariance = gaussian_moments(posterior)
    np.testing.assert_allclose(found, mean, atol=0.03)
    np.testing.assert_allclose(np.diag(covariance), 1 / np.diag(precision), rtol=0.03)

    density, generator = Whitened(target, posterior.affine), posterior.model
    assert isinstance(generator, AbstractGenerator)

    def shift_gradients(key):
        z = jax.random.normal(key, (1, 3))
        local, _ = local_gradient(generator, density, 1, None, key=key)
        shared, _ = pathwise_gradient(generator, density, z, None)
        return local.flow.shift, shared.flow.shift

    local, shared = jax.jit(jax.vmap(shift_gradients))(jax.random.split(jax.random.key(1), 4_000))
    np.testing.assert_allclose(local.mean(0), shared.mean(0), atol=5 * shared.std(0).max() / 63)
    assert (local.std(0) < 0.8 * shared.std(0)).all()


def test_local_reparameterisation_is_refused_where_it_is_not_known():
    with pytest.raises(NotAvailableError, match=r"a separate draw for each datum.*local=False"):
        fitted(gpvi.MeanFieldVI(local=True, particles=2), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpvi.MeanFieldVI(gradient="functional"), "functional.*l2, pathwise"),  # pyright: ignore
        (lambda: gpvi.MeanFieldVI(scale=0.0), "scale .* is 0.0"),
        (lambda: gpvi.FullRankVI(particles=0), "particles is 0"),
        (lambda: gpvi.NormalizingFlow("planer"), "Did you mean 'planar'"),
        (lambda: gpvi.NormalizingFlow(Triangular()), "kind of flow is Triangular"),  # pyright: ignore
        (lambda: gpvi.NormalizingFlow(optimizer="rmsprob"), "Did you mean 'rmsprop'"),  # pyright: ignore
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises((InputError, UnknownOptionError), match=message):
        make()
