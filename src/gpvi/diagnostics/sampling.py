"""Draws of a generator and their densities, as compiled programs."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.targets.density import Density


@eqx.filter_jit
def draw(generator: AbstractGenerator, n: int, key: PRNGKeyArray) -> Float[Array, "n d"]:
    """Return n draws x = f(z), z ~ N(0, I)."""
    return jax.vmap(generator)(standard_normal(generator, n, key=key))


@eqx.filter_jit
def draw_with_density(
    generator: AbstractGenerator, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"]]:
    """Return n draws, log q of each (Eq. 1), and the sign of det J there."""
    z = standard_normal(generator, n, key=key)
    x, sign, log_det = jax.vmap(generator.transform_and_log_det)(z)
    return x, jax.vmap(log_standard_normal)(z) - log_det, sign


@eqx.filter_jit
def log_prob(generator: AbstractGenerator, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return log q at the rows of x, for a generator with an exact inverse."""
    z = jax.vmap(generator.inverse)(x)
    return jax.vmap(log_standard_normal)(z) - jax.vmap(generator.log_det)(z)[1]


@eqx.filter_jit
def log_densities(density: Density, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return log p at the rows of x."""
    return density.log_densities(x)
