"""Directions against brute force, against each other, and against closed forms on Gaussians."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from cases import FLOW_SHAPES, Shape, built, example, seeds
from gpvi.directions import (
    GFSDDirection,
    GFSFDirection,
    KSDDirection,
    Points,
    SVGDDirection,
    functional_direction,
    l2_direction,
    model_score,
)
from gpvi.directions import ksd as ksd_module
from gpvi.errors import InputError
from gpvi.kernels import IMQ, RBF, OnNoise
from gpvi.solvers.block import Block
from selection import some_slow

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
"""For directions that draw nothing."""


def brute_force(generator, coordinates, h, z_prime, score, z):
    """Thm 3.1 pair by pair, with the dense J and kernel gradients by automatic differentiation."""
    used = generator.latent if coordinates == "head" else generator.dim

    def kernel(a, b):
        return jnp.exp(-((a[:used] - b[:used]) ** 2).sum() / h)

    def term(point, s, target):
        k, gradient = jax.value_and_grad(kernel)(point, target)
        return s * k + jnp.linalg.inv(jax.jacobian(generator)(point)).T @ gradient

    def at(target):
        return jax.vmap(lambda point, s: term(point, s, target))(z_prime, score).mean(0)

    return jax.vmap(at)(z)


@pytest.mark.parametrize("coordinates", ["head", "full"])
@pytest.mark.parametrize(
    ("kind", "how"),
    [("residual-learned", "bare"), ("affine-conditional", "dense"), ("linear", "bare")],
)
def test_functional_is_theorem_3_1(kind, how, coordinates):
    rng = np.random.default_rng(0)
    generator = example(kind, Shape(4, 2, (4,)), how, rng)
    z_prime, score = jnp.asarray(rng.standard_normal((2, 5, 4)))
    z = jnp.asarray(rng.standard_normal((3, 4)))

    @eqx.filter_jit
    def both(generator):
        noise_kernel = OnNoise(coordinates, RBF(1.7))
        found = functional_direction(generator, noise_kernel, Block(), None, z_prime, score, z)
        return found.direction, brute_force(generator, coordinates, 1.7, z_prime, score, z)

    np.testing.assert_allclose(*both(generator), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("coordinates", ["head", "full"])
@pytest.mark.parametrize("kernel", [RBF(), IMQ(0.7)])
def test_functional_with_identity_and_one_batch_is_svgd(kernel, coordinates, getkey):
    z, score = jax.random.normal(getkey(), (2, 12, 3))
    identity = built("linear", Shape(3, 3, ()))

    @jax.jit
    def both():
        on_noise = OnNoise(coordinates, kernel)
        found = functional_direction(identity, on_noise, Block(), None, z, score, z)
        return found.direction, SVGDDirection(kernel)(None, z, score, key=KEY)[0]

    np.testing.assert_allclose(*both(), rtol=1e-13, atol=1e-14)


INVERTIBLE = {
    "linear": ("linear", Shape(3, 3, ()), "dense"),
    "affine": ("affine", Shape(4, 2, (3,)), "bare"),
    "affine-conditional": ("affine-conditional", Shape(4, 2, (3,)), "dense"),
    "spline": ("spline", FLOW_SHAPES["diagonal"], "diagonal"),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case == "spline")) for case in INVERTIBLE],
)
def test_model_score_is_the_gradient_of_log_q(case):
    """log q(x) = log p_z(f^{-1}(x)) + log|det ∂f^{-1}/∂x|, differentiated in x."""
    rng = np.random.default_rng(1)
    generator = example(*INVERTIBLE[case], rng)
    z = jnp.asarray(rng.standard_normal((3, generator.dim)))

    def log_q(generator, x):
        stretch = jnp.linalg.slogdet(jax.jacfwd(generator.inverse)(x))[1]
        return -(generator.inverse(x) ** 2).sum() / 2 + stretch

    @eqx.filter_jit
    def both(generator):
        by_autodiff = jax.vmap(jax.grad(log_q, 1), (None, 0))(generator, jax.vmap(generator)(z))
        return model_score(generator, Block(), z), by_autodiff

    np.testing.assert_allclose(*both(generator), rtol=1e-8, atol=1e-9)


def test_l2_vanishes_where_q_is_p(getkey):
    generator = example("linear", Shape(3, 3, ()), "bare", np.random.default_rng(0))
    covariance = generator.weight @ generator.weight.T
    z = jax.random.normal(getkey(), (6, 3))
    score = -jnp.linalg.solve(covariance, (jax.vmap(generator)(z) - generator.bias).T).T
    np.testing.assert_allclose(l2_direction(generator, Block(), z, score), 0, atol=1e-11)
    np.testing.assert_allclose(l2_direction(generator, Block(), z, score + 1), 1, atol=1e-11)


@pytest.mark.parametrize("kind", ["residual-learned", "affine-conditional"])
def test_integration_by_parts(kind):
    """E[J^{-T}∇k(z′, z)] = −E[k(z′, z) s_q(x′)] at three z.

    The difference is averaged over 20,000 z′ (paired), so each of its 9 components is a z-score: below 4.2, which
    chance exceeds once in 4,000. Without the transpose some component is beyond 8.
    """
    n, h = 20_000, 3.0
    rng = np.random.default_rng(5)
    generator = example(kind, Shape(3, 2, (4,)), "bare", rng)
    z_prime, z = jnp.asarray(rng.standard_normal((n, 3))), jnp.asarray(rng.standard_normal((3, 3)))

    @eqx.filter_jit
    def score_and_jacobian(generator):
        def at(point):
            return model_score(generator, Block(), point[None])[0], jax.jacobian(generator)(point)

        return jax.lax.map(at, z_prime, batch_size=200)

    s_q, J = map(np.asarray, score_and_jacobian(generator))
    gram = RBF(h)(z_prime, z)
    gradients = np.asarray(gram.gradients())
    smoothed = np.asarray(gram.value)[:, :, None] * s_q[:, None]
    entropy = gradients @ np.linalg.inv(J)
    without_transpose = gradients @ np.linalg.inv(J).swapaxes(1, 2)
    assert np.abs(z_scores(smoothed + entropy)).max() < 4.2
    assert np.abs(z_scores(smoothed + without_transpose)).max() > 8
    assert np.abs(z_scores(entropy)).max() > 50


def z_scores(samples):
    """The mean over the first axis in units of its standard error."""
    return samples.mean(0) / (samples.std(0) / np.sqrt(len(samples)))


@pytest.fixture(params=["at the particles", "elsewhere"])
def places(request, getkey):
    """Particles with scores, and the points where a direction is asked for."""
    x, score = jax.random.normal(getkey(), (2, 5, 3))
    if request.param == "elsewhere":
        return x, score, Points(*jax.random.normal(getkey(), (2, 4, 3)))
    return x, score, None


@pytest.mark.parametrize("kernel", [RBF(), IMQ(2.0)])
def test_svgd_pair_by_pair(kernel, places):
    x, score, at = places
    gram = kernel(x, x if at is None else at.x)
    value, gradients, scores = map(np.asarray, (gram.value, gram.gradients(), score))
    expected = np.zeros((gram.value.shape[1], 3))
    for i in range(len(expected)):
        for j in range(5):
            expected[i] += (value[j, i] * scores[j] + gradients[j, i]) / 5
    found, _ = SVGDDirection(kernel)(None, x, score, key=KEY, at=at)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(1.1), IMQ(2.0)])
def test_gfsd_is_the_score_of_the_smoothed_density(kernel, places):
    x, score, at = places

    def log_smoothed(point):
        return jnp.log(kernel(point[None], x).value.sum())

    found, _ = GFSDDirection(kernel)(None, x, score, key=KEY, at=at)
    points = Points(x, score) if at is None else at
    expected = points.score - jax.jit(jax.vmap(jax.grad(log_smoothed)))(points.x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_gfsf_solves_the_regularised_system(getkey):
    x, score = jax.random.normal(getkey(), (2, 6, 3))
    gram = RBF(1.1)(x, x)
    found, _ = GFSFDirection(RBF(1.1), ridge=0.05)(None, x, score, key=KEY)
    all_gradients = np.asarray(gram.gradients())
    gradients = np.stack([sum(all_gradients[j, i] for j in range(6)) for i in range(6)])
    expected = np.linalg.solve(np.asarray(gram.value) + 0.05 * np.eye(6), gradients)
    np.testing.assert_allclose(found - score, expected, rtol=1e-8, atol=1e-10)
    others = Points(x[:4] + 1, score[:4])
    there, _ = GFSFDirection(RBF(1.1), ridge=0.05)(None, x, score, key=KEY, at=others)
    of_others, _ = GFSFDirection(RBF(1.1), ridge=0.05)(None, *others, key=KEY)
    np.testing.assert_array_equal(there, of_others)


def test_gfsd_is_the_score_where_no_kernel_reaches():
    """q̂ is 0 to rounding there."""
    x = jnp.array([[0.0, 0.0], [1.0, 0.0]], jnp.float32)
    far = Points(jnp.array([[30.0, 0.0]], jnp.float32), jnp.array([[-3.0, 1.0]], jnp.float32))
    found, _ = GFSDDirection(RBF(1.0))(None, x, jnp.zeros_like(x), key=KEY, at=far)
    np.testing.assert_array_equal(found, far.score)


DIRECTIONS = {"svgd": SVGDDirection(), "gfsd": GFSDDirection(), "gfsf": GFSFDirection()}


@pytest.mark.parametrize("name", DIRECTIONS)
def test_particles_have_no_order(name):
    direction = jax.jit(lambda x, score: DIRECTIONS[name](None, x, score, key=KEY)[0])

    @settings(max_examples=20)
    @given(seeds)
    def check(seed):
        rng = np.random.default_rng(seed)
        x, score = jnp.asarray(rng.standard_normal((2, 7, 3)))
        order = rng.permutation(7)
        found = direction(x[order], score[order])
        np.testing.assert_allclose(found, direction(x, score)[order], rtol=1e-8, atol=1e-10)

    check()


@pytest.mark.parametrize("h", [0.3, 0.8])
@pytest.mark.parametrize("start", some_slow((0.3, 2.0), fast=(2.0,)))
def test_gfsd_settles_at_the_variance_of_the_closed_form(h, start):
    """On N(0, 1), q smoothed with variance h/2 matches p where Var q = 1 − h/2: 300 particles, to 1 %."""
    x = start * jax.random.normal(jax.random.key(3), (300, 1))

    @jax.jit
    def settle(x):
        move = GFSDDirection(RBF(h))
        return jax.lax.fori_loop(0, 1_000, lambda _, x: x + 0.1 * move(None, x, -x, key=KEY)[0], x)

    assert np.var(settle(x)) == pytest.approx(1 - h / 2, rel=0.01)


def test_gfsf_estimates_the_score_of_a_gaussian(getkey):
    """1,000 draws of N(μ, Σ) in two dimensions, h = 32, ε = 0.1: the root mean square error is below 15 %."""
    covariance = jnp.asarray([[1.5, 0.6], [0.6, 0.8]])
    x = 3.0 + jax.random.normal(getkey(), (1_000, 2)) @ jnp.linalg.cholesky(covariance).T
    exact = -jnp.linalg.solve(covariance, (x - 3.0).T).T
    entropy, _ = GFSFDirection(RBF(32.0), ridge=0.1)(None, x, jnp.zeros_like(x), key=KEY)
    assert ((entropy + exact) ** 2).mean() < 0.15**2 * (exact**2).mean()


@pytest.mark.slow
def test_ksd_critic_approaches_its_optimum(getkey):
    """q = N(0, Σ), p = N(m, I): 3,000 Adam steps on fresh draws reach (s_p − s_q)/(2λ) within 10 % in mean square."""
    penalty, covariance = 2.0, jnp.asarray([[0.6, 0.2], [0.2, 0.9]])
    factor = jnp.linalg.cholesky(covariance)
    direction = KSDDirection(hidden_width=30, penalty=penalty, learning_rate=5e-4)

    def draw(key):
        x = jax.random.normal(key, (200, 2)) @ factor.T
        return x, jnp.asarray([0.5, -1.0]) - x

    arrays, static = eqx.partition(direction.init(2, key=getkey(), dtype=jnp.float64), eqx.is_array)

    def step(arrays, key):
        _, state = direction(eqx.combine(arrays, static), *draw(key), key=key)
        return eqx.filter(state, eqx.is_array), None

    @jax.jit
    def train(arrays, key):
        return jax.lax.scan(step, arrays, jax.random.split(key, 3_000))[0]

    state = eqx.combine(train(arrays, getkey()), static)
    x, score = draw(getkey())
    optimum = (score + jnp.linalg.solve(covariance, x.T).T) / (2 * penalty)
    found, _ = direction(state, x, score, key=KEY)
    assert ((found - optimum) ** 2).mean() < 0.1**2 * (optimum**2).mean()


def test_ksd_moves_along_its_updated_critic(getkey):
    direction = KSDDirection(hidden_width=4, critic_steps=2)
    x, score = jax.random.normal(getkey(), (2, 5, 3))
    state = direction.init(3, key=getkey(), dtype=jnp.float64)
    others = Points(x[:2] + 1, score[:2])
    found, new = eqx.filter_jit(direction)(state, x, score, key=getkey(), at=others)
    scale = np.sqrt((score**2).mean()) / (2 * direction.penalty * ksd_module.SIZE)
    np.testing.assert_allclose(found, scale * jax.vmap(new.critic)(others.x), rtol=1e-12)
    assert not np.allclose(found, scale * jax.vmap(state.critic)(others.x))


@pytest.mark.slow
def test_ksd_without_a_size_moves_along_the_critic_itself(getkey):
    """Which climbs E[sᵀc + ∇·c] − λ E‖c‖²: the first step of Adam goes along the signs of its gradient."""
    direction = KSDDirection(hidden_width=4, size=None)
    x, score = jax.random.normal(getkey(), (2, 5, 3))
    state = direction.init(3, key=getkey(), dtype=jnp.float64)
    found, new = eqx.filter_jit(direction)(state, x, score, key=getkey())
    np.testing.assert_allclose(found, jax.vmap(new.critic)(x), rtol=1e-12)

    def gain(critic):
        c = jax.vmap(critic)(x)
        divergence = jax.vmap(lambda p: jnp.trace(jax.jacfwd(critic)(p)))(x)
        return ((score * c).sum(1) + divergence - direction.penalty * (c**2).sum(1)).mean()

    uphill = eqx.filter_grad(gain)(state.critic)
    for before, after, slope in zip(
        *(jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (state.critic, new.critic, uphill)),
        strict=True,
    ):
        step = direction.learning_rate * np.sign(slope)
        np.testing.assert_allclose(after - before, step, rtol=1e-3)


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan")])
def test_ksd_refuses_what_is_no_size(size):
    with pytest.raises(InputError, match="size of the critic"):
        KSDDirection(size=size)


@pytest.mark.parametrize("size", some_slow((1.0, 1e5), fast=(1e5,)))
def test_ksd_keeps_up_with_scores_of_any_size(getkey, size):
    """Scores that turn round are followed within 300 steps, in whatever units."""
    direction = KSDDirection(hidden_width=20, penalty=10.0, learning_rate=1e-3)
    x = jax.random.normal(getkey(), (10, 50))
    score = size * jax.random.normal(getkey(), (50,)) * jnp.ones_like(x)
    arrays, static = eqx.partition(
        direction.init(50, key=getkey(), dtype=jnp.float64), eqx.is_array
    )

    def step(arrays, both):
        sign, key = both
        _, state = direction(eqx.combine(arrays, static), x, sign * score, key=key)
        return eqx.filter(state, eqx.is_array), None

    signs = jnp.concatenate([jnp.ones(1_000), -jnp.ones(300)])
    keys = jax.random.split(getkey(), len(signs))
    arrays, _ = jax.jit(lambda a: jax.lax.scan(step, a, (signs, keys)))(arrays)
    found, _ = direction(eqx.combine(arrays, static), x, -score, key=KEY)
    cosine = -(found * score).sum() / jnp.linalg.norm(found) / jnp.linalg.norm(score)
    assert cosine > 0.5


def test_ksd_on_a_plateau(getkey):
    """Scores that are all zero have no size to measure the critic by, and do no harm."""
    direction = KSDDirection(hidden_width=4)
    x = jax.random.normal(getkey(), (5, 3), jnp.float32)
    state = direction.init(3, key=getkey(), dtype=jnp.float32)
    found, new = eqx.filter_jit(direction)(state, x, jnp.zeros_like(x), key=getkey())
    assert np.isfinite(found).all() and np.abs(found).max() > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(new, eqx.is_array)))


def test_ksd_critic_climbs_the_stein_discrepancy(getkey):
    """One critic step against E[sᵀc + ∇·c] − λE‖c‖² of c = σ/(2λr) c_w, in units of σ²/(2λr): lr·sign(gradient)."""
    direction = KSDDirection(hidden_width=4, penalty=3.0, learning_rate=1e-3)
    x, score = jax.random.normal(getkey(), (2, 5, 3))
    state = direction.init(3, key=getkey(), dtype=jnp.float64)
    params, static = eqx.partition(state.critic, eqx.is_inexact_array)
    size = jnp.sqrt((score**2).mean())
    scale = size / (6.0 * ksd_module.SIZE)

    def discrepancy(params):
        network = eqx.combine(params, static)

        def critic(point):
            return scale * network(point)

        def at(point, s):
            c, jacobian = critic(point), jax.jacobian(critic)(point)
            return s @ c + sum(jacobian[i, i] for i in range(3)) - 3.0 * c @ c

        return jax.vmap(at)(x, score).mean() / (scale * size)

    gradient = jax.jit(jax.grad(discrepancy))(params)
    _, new = eqx.filter_jit(direction)(state, x, score, key=getkey())
    moved = jax.tree.map(lambda a, b: a - b, eqx.filter(new.critic, eqx.is_inexact_array), params)
    for step, slope in zip(jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(step, 1e-3 * slope / (np.abs(slope) + 1e-8), rtol=1e-6)


def test_hutchinsons_divergence_averages_to_the_trace(getkey):
    """Over all 2³ sign vectors the average is the trace itself, not only in expectation."""
    exact, stochastic = KSDDirection(exact_dimensions=3), KSDDirection(exact_dimensions=2)
    critic = exact.init(3, key=getkey(), dtype=jnp.float64).critic
    x = jax.random.normal(getkey(), (4, 3))
    signs = jnp.stack(jnp.meshgrid(*[jnp.asarray([-1.0, 1.0])] * 3), -1).reshape(-1, 3)
    probes = jnp.broadcast_to(signs[:, None], (8, 4, 3))

    @jax.jit
    def divergences():
        estimates = jax.vmap(lambda e: stochastic.divergence(critic, x, e))(probes)
        by_hand = jax.vmap(lambda p: jnp.trace(jax.jacobian(critic)(p)))(x)
        return estimates, exact.divergence(critic, x, jnp.zeros_like(x)), by_hand

    estimates, trace, by_hand = divergences()
    np.testing.assert_allclose(trace, by_hand, rtol=1e-12)
    np.testing.assert_allclose(estimates.mean(0), trace, rtol=1e-10, atol=1e-14)
    assert (estimates.std(0) > 1e-6).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GFSFDirection(ridge=0.0), r"ridge \(ε\) is 0.0"),
        (lambda: KSDDirection(penalty=-1.0), r"penalty \(λ\) is -1.0"),
        (lambda: KSDDirection(critic_steps=1.5), "critic_steps is 1.5"),  # pyright: ignore
        (lambda: KSDDirection(hidden_width=-3), "hidden_width of the critic is -3"),
        (lambda: KSDDirection(hidden_layers=-1), "hidden_layers is -1"),
        (lambda: KSDDirection(learning_rate=0.0), "learning_rate of the critic is 0.0"),
        (lambda: KSDDirection(critic_steps=0), "critic_steps is 0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
