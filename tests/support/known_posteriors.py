"""Posteriors known in closed form, made without training: Gaussians, particles and chains of a NumPyro model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gpvi
from gpvi import Target, generators
from gpvi.generators.gaussian import LinearMap
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine

NO_TRAINING = Training(0, 0, 0.0, {})
Y = np.random.default_rng(0).standard_normal(30) + 1.0
VARIANCE = 1 / (1 / 100 + len(Y))
MEAN = VARIANCE * Y.sum()


def normal_mean(y):
    """y ~ N(μ, 1), μ ~ N(0, 10²), so that μ | y ~ N(MEAN, VARIANCE)."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.plate("datum", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@functools.cache
def target():
    return Target.from_numpyro(normal_mean, Y, dtype="float64")


def gaussian(of, mean=MEAN, variance=VARIANCE):
    """q = N(mean, variance I) as a trained posterior of the target."""
    with jax.enable_x64(True):
        model = LinearMap(jnp.eye(of.dim), jnp.zeros(of.dim))
        affine = Affine(jnp.full(of.dim, mean), jnp.full(of.dim, np.sqrt(variance)))
    method = gpvi.GPVI(generator=generators.Linear())
    return Posterior(method, model, Start(affine), of.names, NO_TRAINING, of)


def holding(model, of=None, method=None):
    dim = model.positions.shape[1]
    with jax.enable_x64(True):
        affine = Affine(jnp.full(dim, 0.5), jnp.full(dim, 2.0))
    names = tuple(f"x[{i}]" for i in range(dim))
    return Posterior(method or gpvi.SVGD(particles=2), model, Start(affine), names, NO_TRAINING, of)


def particles(rows, of):
    with jax.enable_x64(True):
        return holding(Particles(jnp.asarray(rows)), of)
