"""Gradients of parameters: Eq. 4 against explicit Jacobians, the pathwise gradient against the objective itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy.spatial.distance import cdist

from cases import Shape, built, example, perturbed
from gpvi._compute import outer_products as products
from gpvi._compute.outer_products import FEW, LONG, WIDE, Products, added_up, norm
from gpvi.directions import SVGDDirection, l2_direction
from gpvi.generators import Preconditioned
from gpvi.generators.noise import standard_normal
from gpvi.kernels import RBF
from gpvi.methods.carriers import Particles, Sampler
from gpvi.methods.pullback import push, push_with_log_det, scale_gradient
from gpvi.solvers.block import Block
from selection import some_slow

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
"""For directions that draw nothing."""


def log_p(x):
    """A banana: not Gaussian, and every coordinate depends on the one before."""
    return -(x[0] ** 2 + (x[1:] - 0.3 * x[:-1] ** 2) @ (x[1:] - 0.3 * x[:-1] ** 2)) / 2


score = jax.vmap(jax.grad(log_p))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


CASES = {
    "linear": ("linear", Shape(3, 3, ()), "bare"),
    "mlp": ("mlp", Shape(3, 3, (4,)), "dense"),
    "residual": ("residual-learned", Shape(4, 2, (3,)), "diagonal"),
    "affine": ("affine-conditional", Shape(4, 2, (3,)), "dense"),
    "spline": ("spline", Shape(3, 1, (4,)), "bare"),
}


@pytest.mark.parametrize("case", some_slow(CASES, fast=("residual", "affine")))
def test_pathwise_is_the_gradient_of_the_objective(case):
    """Eq. 3 on the same noise, with log|det J| from the dense Jacobian, differentiated by JAX."""
    rng = np.random.default_rng(0)
    generator = example(*CASES[case], rng)
    z = jnp.asarray(rng.standard_normal((5, generator.dim)))
    learned = jax.tree.map(eqx.is_inexact_array, generator)
    if isinstance(generator, Preconditioned):
        fixed = jax.tree.map(lambda _: False, generator.affine)
        learned = eqx.tree_at(lambda g: g.affine, learned, fixed)
    params, static = eqx.partition(generator, learned)

    def objective(params):
        model = eqx.combine(params, static)

        def term(point):
            return -log_p(model(point)) - jnp.linalg.slogdet(jax.jacfwd(model)(point))[1]

        return jax.vmap(term)(z).mean()

    @jax.jit
    def both(params):
        x, _, _, pull = push_with_log_det(eqx.combine(params, static), z, learned)
        return pull(score(x) / 5, jnp.full(5, 1 / 5)), jax.grad(objective)(params)

    found, expected = both(params)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-8, atol=1e-10)
    assert np.abs(flat(expected)).max() > 0.1


@pytest.mark.parametrize("kind", ["residual-learned", "affine-conditional"])
def test_pathwise_restricted_to_the_scales(kind):
    """Only the parameters of σ get a gradient, and it is their part of the whole one."""
    rng = np.random.default_rng(0)
    generator = perturbed(built(kind, Shape(4, 2, (3,))), rng)
    z = jnp.asarray(rng.standard_normal((5, 4)))
    scales = generator.scale_parameters()

    @eqx.filter_jit
    def gradient(generator, learned):
        x, *_, pull = push_with_log_det(generator, z, learned)
        return pull(score(x), jnp.ones(5))

    part, whole = gradient(generator, scales), gradient(generator, eqx.is_inexact_array)
    np.testing.assert_allclose(flat(part), flat(eqx.filter(whole, scales)), rtol=1e-12)
    assert 0 < flat(part).size < flat(whole).size


def test_scales_by_an_inverse_at_hand():
    """What A⁻¹ gives is what the log-determinant gives; σ enters A, too."""
    rng = np.random.default_rng(0)
    generator = perturbed(built("residual-learned", Shape(5, 3, (4,))), rng)
    z, direction = jnp.asarray(rng.standard_normal((2, 6, 5)))
    weight = jnp.asarray(rng.uniform(size=6))

    @eqx.filter_jit
    def both(generator):
        blocks = jax.vmap(lambda z: generator.head_jacobian(z).as_matrix())(z[:, :3])
        given = jnp.linalg.inv(blocks)
        return [scale_gradient(generator, z, direction, weight, found) for found in (given, None)]

    found, expected = both(generator)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-9)
    assert np.abs(flat(found)[:3]).min() > 1e-3


@pytest.mark.parametrize("n", [3, FEW + 1])
def test_long_vectors_of_parameters(n):
    """Whether their gradients are added up draw by draw or by the compiler, it is one vjp of all parameters."""
    rng = np.random.default_rng(0)
    generator = example("affine", Shape(LONG + 2, 2, (2,)), "bare", rng)
    z, direction = jnp.asarray(rng.standard_normal((2, n, generator.dim)))
    weight = jnp.asarray(rng.uniform(size=n))
    params, static = eqx.partition(generator, eqx.is_inexact_array)

    @jax.jit
    def both(params):
        def forward(params):
            return jax.vmap(eqx.combine(params, static).transform_and_log_det)(z)

        (x, sign, _), vjp = jax.vjp(forward, params)
        by_jax = vjp((-direction, jnp.zeros_like(sign), -weight))[0]
        own = push_with_log_det(eqx.combine(params, static), z)
        along = push(Sampler(eqx.combine(params, static)), z)
        without = vjp((-direction, jnp.zeros_like(sign), jnp.zeros(n)))[0]
        return (own[0], own[-1](direction, weight), along[1](direction)), (x, by_jax, without)

    for found, expected in zip(*both(params), strict=True):
        np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "residual-learned", "affine-conditional"])
def test_l2_is_the_pathwise_gradient_in_expectation(kind):
    """Paired over 20,000 draws: every parameter's mean difference is within 4.5 standard errors of zero.

    Chance exceeds that once in 3,000 for the 40 parameters; the gradient itself is beyond 20.
    """
    rng = np.random.default_rng(4)
    generator = perturbed(built(kind, Shape(3, 2, (4,))), rng, scale=0.2)
    noise = jnp.asarray(rng.standard_normal((20_000, 1, 3)))

    @eqx.filter_jit
    def each_gradient(generator):
        def at(z):
            x, _, _, pull = push_with_log_det(generator, z)
            pathwise = pull(score(x), jnp.ones(1))
            along = pull(l2_direction(generator, Block(), z, score(x)), jnp.zeros(1))
            return ravel_pytree(pathwise)[0], ravel_pytree(along)[0]

        return jax.lax.map(at, noise, batch_size=200)

    pathwise, along = map(np.asarray, each_gradient(generator))
    difference = pathwise - along
    assert (difference.std(0) > 1e-3).mean() > 0.5
    assert np.abs(z_scores(difference)).max() < 4.5
    assert np.abs(z_scores(pathwise)).max() > 20


def z_scores(samples):
    """The mean over the first axis in units of its standard error; zero where all samples are."""
    error = samples.std(0) / np.sqrt(len(samples))
    return np.where(
        error > 1e-12, samples.mean(0) / np.maximum(error, 1e-12), samples.mean(0) / 1e-12
    )


@pytest.mark.parametrize("case", ["mlp", "affine"])
def test_push_is_equation_4(case):
    """−Σ_i (∂x_i/∂θ)ᵀ φ_i with the explicit ∂x/∂θ."""
    rng = np.random.default_rng(0)
    generator = example(*CASES[case], rng)
    z, direction = jnp.asarray(rng.standard_normal((2, 5, generator.dim)))
    params, static = eqx.partition(Sampler(generator), eqx.is_inexact_array)
    theta, unravel = ravel_pytree(params)

    @jax.jit
    def both(theta):
        draws = lambda t: jax.vmap(eqx.combine(unravel(t), static).generator)(z)  # noqa: E731
        x, pull = push(eqx.combine(unravel(theta), static), z)
        by_hand = -jnp.einsum("ndp,nd->p", jax.jacobian(draws)(theta), direction)
        return x, draws(theta), ravel_pytree(pull(direction))[0], by_hand

    x, draws, found, expected = both(theta)
    np.testing.assert_allclose(x, draws, rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rows", "parts"), [(61_450, 25), (90_112, 32), (61_706, 1)])
def test_a_tall_product_in_parts_on_a_gpu(monkeypatch, rows, parts):
    """61,706 is twice a prime. Both ways are those of the plain product."""
    rng = np.random.default_rng(3)
    weight, h = (
        jnp.asarray(rng.standard_normal((rows, 2))),
        jnp.asarray(rng.standard_normal((3, 2))),
    )
    given = jnp.asarray(rng.standard_normal((3, rows)))

    def both():
        x, back = jax.vjp(jax.vmap(lambda h: products.tall(weight, h)), h)
        return x, back(given)[0]

    expected = both()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(products, "LARGE", 1)
    assert products._parts(weight) == parts
    for a, b in zip(both(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "open_sum"), [(5, True), (FEW + 1, False)])
def test_a_last_layer_is_left_open_for_few_draws(n, open_sum):
    """Added up it is what one vjp of all parameters gives, and its norm needs no entries."""
    rng = np.random.default_rng(2)
    generator = example("affine-conditional", Shape(4, 2, (WIDE,)), "bare", rng)
    z, direction = jnp.asarray(rng.standard_normal((2, n, 4)))
    weight = jnp.asarray(rng.uniform(size=n))
    left_open = []

    @jax.jit
    def found():
        pull = push_with_log_det(generator, z)[-1]
        products = pull.products(direction, weight)
        left_open.append(any(isinstance(leaf, Products) for leaf in jax.tree.leaves(products)))
        every = jax.tree.map(eqx.is_inexact_array, generator)
        whole = push_with_log_det(generator, z, every)[-1](direction, weight)
        return added_up(products), whole, norm(products), optax.tree.norm(whole)

    gradient, expected, length, expected_length = found()
    assert left_open == [open_sum]
    np.testing.assert_allclose(flat(gradient), flat(expected), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(length, expected_length, rtol=1e-12)


def test_a_table_of_particles_gets_the_direction_itself(getkey):
    positions, direction = jax.random.normal(getkey(), (2, 6, 3))
    x, pull = push(Particles(positions), None)
    np.testing.assert_array_equal(x, positions)
    np.testing.assert_array_equal(pull(direction).positions, -direction)


def svgd_by_pairs(x, rate, steps):
    """Liu & Wang's update in NumPy, pair by pair, on the banana."""
    for _ in range(steps):
        squares = cdist(x, x, "sqeuclidean")
        h = np.median(squares) / np.log(len(x))
        s = np.asarray(score(jnp.asarray(x)))
        move = np.zeros_like(x)
        for i in range(len(x)):
            for j in range(len(x)):
                k = np.exp(-squares[j, i] / h)
                move[i] += (k * s[j] - 2 / h * k * (x[j] - x[i])) / len(x)
        x = x + rate * move
    return x


def test_a_table_of_particles_under_sgd_is_svgd(getkey):
    start = jax.random.normal(getkey(), (8, 3))
    optimizer = optax.sgd(0.3)

    @jax.jit
    def descend(particles):
        x, pull = push(particles, particles.noise(8, key=KEY))
        direction, _ = SVGDDirection()(None, x, score(x), key=KEY)
        update, _ = optimizer.update(pull(direction), optimizer.init(particles))
        return eqx.apply_updates(particles, update)

    particles = Particles(start)
    for _ in range(10):
        particles = descend(particles)
    expected = svgd_by_pairs(np.asarray(start), 0.3, 10)
    np.testing.assert_allclose(particles.positions, expected, rtol=1e-10, atol=1e-12)
    assert np.abs(expected - start).max() > 0.5


def test_amortised_svgd_of_the_identity_is_svgd(getkey):
    """x = b + Wz from W = I: the draws are z, and φ reaches b as −Σφ and W as −Σφzᵀ."""
    sampler = Sampler(built("linear", Shape(3, 3, ())))
    z = sampler.noise(7, key=getkey())

    @jax.jit
    def amortised_and_plain():
        x, pull = push(sampler, z)
        direction, _ = SVGDDirection(RBF())(None, x, score(x), key=KEY)
        of_particles, _ = SVGDDirection(RBF())(None, z, score(z), key=KEY)
        return x, direction, of_particles, pull(direction).generator

    x, direction, of_particles, gradient = amortised_and_plain()
    np.testing.assert_array_equal(x, z)
    np.testing.assert_allclose(direction, of_particles, rtol=1e-13)
    np.testing.assert_allclose(gradient.bias, -of_particles.sum(0), rtol=1e-12)
    np.testing.assert_allclose(gradient.weight, -np.asarray(of_particles).T @ z, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_noise_is_standard_normal_in_the_dtype_of_the_parameters(dtype, getkey):
    generator = jax.tree.map(lambda leaf: leaf.astype(dtype), built("linear", Shape(3, 3, ())))
    z = standard_normal(generator, 4_000, key=getkey())
    assert z.shape == (4_000, 3)
    assert z.dtype == dtype
    np.testing.assert_allclose(z.mean(0), 0, atol=4 / np.sqrt(4_000))
    np.testing.assert_allclose(np.cov(z.T), np.eye(3), atol=4 * np.sqrt(2 / 4_000))
