"""What carries the draws: a set of particles that are their own parameters, or a generator.

A carrier gives noise and turns it into particles; `gpvi.pullback.push` differentiates that. With a direction it makes
a method: SVGD, GFSD, GFSF and KSD on `Particles`, and the same four amortised on a generator.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.generators import AbstractGenerator


class Particles(eqx.Module):
    """n particles: the "table generator" x_i = θ_i, whose pullback is φ itself (Eq. 12)."""

    positions: Float[Array, "n d"]

    def noise(self, n: int, *, key: PRNGKeyArray) -> None:
        """No noise: the particles are the parameters."""

    def particles(self, z: None) -> Float[Array, "n d"]:
        """x_i = θ_i."""
        return self.positions


class Sampler(eqx.Module):
    """A generator and its noise: x_i = f_θ(z_i), z_i ~ N(0, I)."""

    generator: AbstractGenerator

    def noise(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """n rows of N(0, I)."""
        return standard_normal(self.generator, n, key=key)

    def particles(self, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """x_i = f(z_i)."""
        return jax.vmap(self.generator)(z)


def standard_normal(
    generator: AbstractGenerator, n: int, *, key: PRNGKeyArray
) -> Float[Array, "n d"]:
    """n rows of noise for a generator, in the dtype of its parameters."""
    dtype = jax.tree.leaves(eqx.filter(generator, eqx.is_inexact_array))[0].dtype
    return jax.random.normal(key, (n, generator.dim), dtype)
