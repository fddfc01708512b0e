"""The entropy of a surface: the shortest solutions of Jᵀy = ∇k, and the volume whose derivative they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import NotAvailableError
from gpvi.generators import Head, Residual
from gpvi.kernels import RBF
from gpvi.solvers import LeastSquares

pytestmark = pytest.mark.usefixtures("x64")

DIM, LATENT = 7, 3
SMOOTH = Residual(latent=LATENT, hidden=(6,), activation="tanh", scale=1e-6)


def surface(getkey, specification=SMOOTH):
    generator = specification.build(DIM, key=getkey(), dtype="float64")
    return generator, lambda z: generator.weight @ generator.trunk(z) + generator.bias


def gram_of(getkey):
    z_prime, z = (jax.random.normal(getkey(), (n, LATENT)) for n in (5, 4))
    return RBF(1.5)(z_prime, z)


def test_solutions_are_those_of_least_squares(getkey):
    generator, g = surface(getkey)
    gram = gram_of(getkey)
    found, state = LeastSquares(floor=1e-13).mean_product(None, Head(generator), gram)
    jacobians = np.asarray(jax.vmap(jax.jacfwd(g))(gram.x))
    gradients = np.asarray(gram.gradients())
    shortest = [np.linalg.lstsq(J.T, v.T)[0].T for J, v in zip(jacobians, gradients, strict=True)]
    np.testing.assert_allclose(found.value, np.mean(shortest, 0), rtol=1e-6)
    lengths = np.linalg.norm(shortest, axis=-1) / np.linalg.norm(gradients, axis=-1)
    np.testing.assert_allclose(found.stretch, lengths.max(), rtol=1e-6)
    assert state is None and found.residual == 0


def test_it_is_the_derivative_of_the_log_volume(getkey):
    """d/dε E[½ log det (J + εΦ)ᵀ(J + εΦ)] = Σ_i a_i · y_i for φ(z) = Σ_i a_i k(z, z_i)."""
    generator, g = surface(getkey)
    gram = gram_of(getkey)
    a = jax.random.normal(getkey(), (len(gram.y), DIM))

    def log_volume(step):
        def moved(z):
            return g(z) + step * a.T @ RBF(1.5)(z[None], gram.y).value[0]

        def one(z):
            J = jax.jacfwd(moved)(z)
            return 0.5 * jnp.linalg.slogdet(J.T @ J)[1]

        return jax.vmap(one)(gram.x).mean()

    found, _ = LeastSquares(floor=1e-13).mean_product(None, Head(generator), gram)
    np.testing.assert_allclose(jax.grad(log_volume)(0.0), (a * found.value).sum(), rtol=1e-6)


def test_noise_around_a_plane_bounds_the_inverse(getkey):
    """For a linear g the entropy is ½ log det(JJᵀ + λ²I), whose gradient in J is J(JᵀJ + λ²I)^{-1}."""
    wide = dataclasses.replace(SMOOTH, hidden=(), scale=0.7)
    generator, g = surface(getkey, wide)
    gram = gram_of(getkey)
    found, _ = LeastSquares(floor=1e-13).mean_product(None, Head(generator), gram)
    J = jax.jacfwd(g)(gram.x[0])

    def entropy(J):
        return 0.5 * jnp.linalg.slogdet(J @ J.T + wide.scale**2 * jnp.eye(DIM))[1]

    expected = gram.gradients().mean(0) @ jax.grad(entropy)(J).T
    np.testing.assert_allclose(found.value, expected, rtol=1e-6)


def test_every_weight_is_moved_by_the_entropy(getkey):
    """With the scores gone, GPVI's direction is the entropy's: on the head for a block, on all for least squares."""
    generator, _ = surface(getkey)
    z_prime, z = (jax.random.normal(getkey(), (5, DIM)) for _ in range(2))
    moved = {
        name: gpvi.directions.functional_direction(
            generator,
            gpvi.kernels.OnNoise(),
            gpvi.solvers.as_solver(name),
            None,
            z_prime,
            jnp.zeros_like(z),
            z,
        ).direction
        for name in ("block", "least_squares")
    }
    assert (moved["block"][:, LATENT:] == 0).all()
    assert (jnp.abs(moved["least_squares"]).max(0) > 1e-3).all()


@pytest.mark.parametrize(
    "options",
    [
        {"generator": Residual(latent=2, learn_scale=True)},
        {"generator": Residual(latent=2), "kernel": "full"},
        {"generator": gpvi.generators.MLP()},
    ],
)
def test_other_generators_are_refused(options):
    method = gpvi.GPVI(gradient="functional", solver="least_squares", **options)
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=4)
    with pytest.raises(NotAvailableError, match="kernel='head'"):
        gpvi.fit(target, method, key=0, steps=2, progress=False)
