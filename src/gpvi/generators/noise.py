"""The noise z ~ N(0, I) that generators turn into draws."""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi._compute.noise import normal
from gpvi.parallel.mesh import rows


@runtime_checkable
class Dimensional(Protocol):
    """Anything with parameters and a dimension."""

    @property
    def dim(self) -> int: ...


def standard_normal(generator: Dimensional, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
    """Draw n rows of noise for a generator, in the dtype of its parameters."""
    dtype = jax.tree.leaves(eqx.filter(generator, eqx.is_inexact_array))[0].dtype
    return rows(normal(key, (n, generator.dim), dtype))


def log_standard_normal(z: Float[Array, " d"]) -> Scalar:
    """log N(z; 0, I), the log-density of one row of noise."""
    return -0.5 * (z**2).sum() - 0.5 * z.size * jnp.log(2 * jnp.pi)
