"""The coordinates of training: x = location + L u, and a target expressed in u."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.precision import product
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target


class Affine(eqx.Module):
    """x = location + L u, with L diagonal (`scale` of shape (d,)) or lower-triangular (shape (d, d))."""

    location: Float[Array, " d"]
    scale: Float[Array, " d"] | Float[Array, "d d"]

    @classmethod
    def identity(cls, dim: int, dtype: DTypeLike) -> "Affine":
        """The coordinates as they are."""
        return cls(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))

    @property
    def diagonal(self) -> Float[Array, " d"]:
        """diag L, in either form."""
        return self.scale if self.scale.ndim == 1 else jnp.diagonal(self.scale)

    def __call__(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """u ↦ x."""
        return self.location + (self.scale * u if self.scale.ndim == 1 else product(self.scale, u))

    def inverse(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """x ↦ u."""
        centred = x - self.location
        if self.scale.ndim == 1:
            return centred / self.scale
        return solve_triangular(self.scale, centred, lower=True)

    def solve_transposed(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        """The y with Lᵀy = v."""
        return (
            v / self.scale
            if self.scale.ndim == 1
            else solve_triangular(self.scale, v, trans=1, lower=True)
        )

    def log_det(self) -> Scalar:
        """log|det L|."""
        return jnp.log(jnp.abs(self.diagonal)).sum()


class Whitened(eqx.Module):
    """The same posterior in coordinates u, x = location + L u: log p(u) = log p(x(u)) + log|det L|.

    A score is a covector, so pulled-back GPVI gradients are the same in x and in u; step sizes, kernels and
    networks all see a posterior of scale one.
    """

    target: Target
    affine: Affine

    @property
    def dim(self) -> int:
        """d."""
        return self.target.dim

    @property
    def dtype(self) -> np.dtype:
        """The target's."""
        return self.target.dtype

    @property
    def size(self) -> int | None:
        """N of the mini-batch form."""
        return self.target.size

    @property
    def stream(self) -> Stream | None:
        """The data, where they are streamed."""
        return self.target.stream

    @property
    def draws_its_start(self) -> bool:
        """Whether the starting points are the target's own."""
        return self.target.draws_its_start

    def batch(self, indices: Int[Array, " b"]) -> PyTree:
        """The data with these indices."""
        return self.target.batch(indices)

    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """The target's own, where it draws them; standard normal, the starting Gaussian, otherwise."""
        if not self.target.draws_its_start:
            return jax.random.normal(key, (n, self.dim), self.dtype)
        return jax.vmap(self.affine.inverse)(self.target.starting_points(n, key=key))

    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar:
        """log p(u)."""
        return self.target.log_density(self.affine(x), batch) + self.affine.log_det()

    def log_densities(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p at many points."""
        return self.target.log_densities(jax.vmap(self.affine)(x)) + self.affine.log_det()

    def local_log_density(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> Scalar:
        """The target's, of u ~ N(mean, scale²) in coordinates of diagonal scale."""
        stretched = jnp.abs(self.affine.scale) * scale
        value = self.target.local_log_density(self.affine(mean), stretched, batch, key=key)
        return value + self.affine.log_det()
