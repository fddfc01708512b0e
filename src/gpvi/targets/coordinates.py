"""The coordinates of training: x = location + L u, and a target expressed in u."""

from functools import cached_property
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.precision import product
from gpvi.targets.density import gradient_operations
from gpvi.targets.semiseparable import Semiseparable
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target

Kind = Literal["diagonal", "dense", "semiseparable"]


class Affine(eqx.Module):
    """The map x = location + L u, with L diagonal or lower-triangular.

    Parameters
    ----------
    location
        The image of u = 0, (d,).
    scale
        The diagonal of L, (d,), or L itself, (d, d) or `gpvi.targets.Semiseparable`.

    Examples
    --------
    >>> affine = gpvi.targets.Affine(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    >>> print(affine(jnp.ones(2)))
    [4. 6.]
    >>> print(affine.inverse(jnp.array([4.0, 6.0])))
    [1. 1.]
    """

    location: Float[Array, " d"]
    scale: Float[Array, " d"] | Float[Array, "d d"] | Semiseparable

    @classmethod
    def identity(cls, dim: int, dtype: DTypeLike) -> "Affine":
        """The identity map on R^dim."""
        return cls(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))

    @classmethod
    def form(cls, kind: Kind, dim: int, *, rank: int = 0, dtype: DTypeLike = float) -> "Affine":
        """The identity map with L of this structure; `rank` is that of a semiseparable L."""
        location = jnp.zeros(dim, dtype)
        if kind == "semiseparable":
            return cls(location, Semiseparable.identity(dim, rank, location.dtype))
        return cls(
            location, jnp.ones(dim, dtype) if kind == "diagonal" else jnp.eye(dim, dtype=dtype)
        )

    @property
    def kind(self) -> Kind:
        """The structure of L."""
        if isinstance(self.scale, Semiseparable):
            return "semiseparable"
        return "diagonal" if self.scale.ndim == 1 else "dense"

    @property
    def diagonal(self) -> Float[Array, " d"]:
        """The diagonal of L."""
        if isinstance(self.scale, Semiseparable):
            return self.scale.unit * self.scale.diagonal
        return self.scale if self.scale.ndim == 1 else jnp.diagonal(self.scale)

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """L in full."""
        if isinstance(self.scale, Semiseparable):
            return self.scale.dense()
        return self.scale if self.scale.ndim == 2 else jnp.diag(self.scale)

    @property
    def deviations(self) -> Float[Array, " d"]:
        """The standard deviation of each coordinate of x if u is standard normal: the norms of the rows of L."""
        if isinstance(self.scale, Semiseparable):
            return self.scale.deviations()
        return jnp.abs(self.scale) if self.scale.ndim == 1 else jnp.linalg.norm(self.scale, axis=1)

    def leading(self, k: int) -> "Affine":
        """The map of the first k coordinates, which depend on no others."""
        if isinstance(self.scale, Semiseparable):
            return Affine(self.location[:k], self.scale.leading(k))
        scale = self.scale[:k] if self.scale.ndim == 1 else self.scale[:k, :k]
        return Affine(self.location[:k], scale)

    def __call__(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point x = location + L u."""
        if isinstance(self.scale, Semiseparable):
            return self.location + self.scale @ u
        return self.location + (self.scale * u if self.scale.ndim == 1 else product(self.scale, u))

    def inverse(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point u with x = location + L u."""
        centred = x - self.location
        if isinstance(self.scale, Semiseparable):
            return self.scale.solve(centred)
        if self.scale.ndim == 1:
            return centred / self.scale
        return solve_triangular(self.scale, centred, lower=True)

    def solve_transposed(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector y with Lᵀy = v."""
        if isinstance(self.scale, Semiseparable):
            return self.scale.solve_transposed(v)
        return (
            v / self.scale
            if self.scale.ndim == 1
            else solve_triangular(self.scale, v, trans=1, lower=True)
        )

    def log_det(self) -> Scalar:
        """log|det L|."""
        return jnp.log(jnp.abs(self.diagonal)).sum()


@brief
def images(affine: Affine, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The points x of the rows u, by one program."""
    return jax.vmap(affine)(u)


@brief
def log_volume(affine: Affine) -> Scalar:
    """log|det L|, by one program."""
    return affine.log_det()


@brief
def preimages(affine: Affine, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The points u of the rows x, by one program."""
    return jax.vmap(affine.inverse)(x)


class Whitened(eqx.Module):
    """A target in the coordinates u of an affine map: log p(u) = log p(x(u)) + log|det L|.

    A score is a covector, so that the pulled-back gradients of GPVI are the same in x and in u. Step sizes, kernels and
    networks see a posterior of scale one.

    Parameters
    ----------
    target
        The target in the coordinates x.
    affine
        The map u ↦ x.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * ((x - 5.0) ** 2 / 4.0).sum(), dim=1)
    >>> affine = gpvi.targets.Affine(jnp.array([5.0]), jnp.array([2.0]))
    >>> density = gpvi.targets.Whitened(target, affine)
    >>> print(jax.grad(density.log_density)(jnp.array([1.0])))
    [-1.]
    """

    target: Target
    affine: Affine

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.target.dim

    @property
    def dtype(self) -> np.dtype:
        """The float type of the target."""
        return self.target.dtype

    @property
    def size(self) -> int | None:
        """N, the number of data; None for a target made of a log-density."""
        return self.target.size

    @property
    def stream(self) -> Stream | None:
        """The data if they are streamed, else None."""
        return self.target.stream

    @property
    def draws_its_start(self) -> bool:
        """Whether the target has a distribution of starting points."""
        return self.target.draws_its_start

    def batch(self, indices: Int[Array, " b"]) -> PyTree:
        """The data with these indices."""
        return self.target.batch(indices)

    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """Draws from the target's distribution of starting points if it has one, else standard normal draws of u."""
        if not self.target.draws_its_start:
            return jax.random.normal(key, (n, self.dim), self.dtype)
        return jax.vmap(self.affine.inverse)(self.target.starting_points(n, key=key))

    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar:
        """log p(u), where `x` is the point u."""
        return self.target.log_density(self.affine(x), batch) + self.affine.log_det()

    def log_densities(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p of all data at many points u."""
        return self.target.log_densities(jax.vmap(self.affine)(x)) + self.affine.log_det()

    def local_log_density(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> Scalar:
        """As `Target.local_log_density`, for u ~ N(mean, scale²); the affine map must be diagonal."""
        stretched = self.affine.deviations * scale
        value = self.target.local_log_density(self.affine(mean), stretched, batch, key=key)
        return value + self.affine.log_det()

    def operations(self) -> float:
        """The operations of one evaluation of log p and its gradient on all data, counted once for each density."""
        return self._operations

    @cached_property
    def _operations(self) -> float:
        return gradient_operations(self)
