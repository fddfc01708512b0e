"""The log-density of the search: compiled, evaluated in batches of one size, and in float64 if possible."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from gpvi._compute.operation_counts import EXPENSIVE, counted
from gpvi.initialization._gaussians import Matrix, Points, Values, Vector

LogDensity = Callable[[Float[Array, " d"]], Scalar]

BATCH = 128
"""The number of points evaluated at once. A multiple of it wastes no evaluation."""
BLOCK = 32 * BATCH
"""The number of points in one call of the compiled log-density: a call costs more than a simple density."""

THRIFT = 8
"""For an expensive log-density, the search divides its numbers of scores and candidates by this."""


class HostDensity:
    """A log-density that takes and returns float64 arrays of NumPy, with −inf instead of NaN and infinities.

    Attributes
    ----------
    scored
        The number of scores ∇log p evaluated so far.
    thrift
        The search divides its numbers of scores and candidates by this: 1, or `THRIFT` if log p is expensive.
    """

    def __init__(self, log_density: LogDensity, dim: int):
        self.scored = 0
        self._log_density = log_density
        self._in_float64, operations = _compiles_in_float64(log_density, dim)
        self.thrift = THRIFT if operations > EXPENSIVE else 1

    def values(self, x: Points) -> Values:
        """log p at the rows of x."""
        blocks = len(x) // BLOCK * BLOCK if self.thrift == 1 else 0
        parts = [x[i : i + BLOCK] for i in range(0, blocks, BLOCK)] + _batches(x[blocks:])
        values = np.concatenate([self._call(_values, part) for part in parts])[: len(x)]
        return np.where(np.isfinite(values), values, -np.inf)

    def scores(self, x: Points) -> tuple[Values, Points]:
        """log p and ∇log p at the rows of x. log p is −inf where its gradient is not finite."""
        self.scored += len(x)
        pairs = [self._call(_scores, rows) for rows in _batches(x)]
        values, scores = (np.concatenate(parts)[: len(x)] for parts in zip(*pairs, strict=True))
        finite = np.isfinite(values) & np.isfinite(scores).all(1)
        return np.where(finite, values, -np.inf), scores

    def curvature(self, x: Vector) -> tuple[Vector, Matrix]:
        """∇log p and −∇²log p at x."""
        score, hessian = self._call(_curvature, x)
        return score, 0.5 * (hessian + hessian.T)

    def mean_curvature(
        self, x: Points, vectors: Float[np.ndarray, "p d"]
    ) -> Float[np.ndarray, "p d"]:
        """The mean of −∇²log p over the rows of x, times each of the vectors."""
        self.scored += len(x) * len(vectors)
        return self._call(_mean_curvature, x, vectors)

    def _call(self, function: Callable[..., Any], *x: np.ndarray) -> Any:
        """Call a compiled function of the log-density at x; the result is in float64 arrays of NumPy."""
        with jax.enable_x64(True) if self._in_float64 else nullcontext():
            result = function(self._log_density, *x)
            return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result)


@eqx.filter_jit
def _values(log_density: LogDensity, x: Float[Array | np.ndarray, "n d"]) -> Float[Array, " n"]:
    return jax.lax.map(log_density, jnp.asarray(x), batch_size=BATCH)


@eqx.filter_jit
def _scores(
    log_density: LogDensity, x: Float[Array | np.ndarray, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    return jax.vmap(jax.value_and_grad(log_density))(jnp.asarray(x))


@eqx.filter_jit
def _curvature(
    log_density: LogDensity, x: Float[Array | np.ndarray, " d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    score, pull = jax.vjp(jax.grad(log_density), jnp.asarray(x))
    rows = jnp.eye(len(x), dtype=score.dtype)
    return score, -jax.lax.map(lambda row: pull(row)[0], rows, batch_size=BATCH)


@eqx.filter_jit
def _mean_curvature(
    log_density: LogDensity,
    x: Float[Array | np.ndarray, "n d"],
    vectors: Float[Array | np.ndarray, "p d"],
) -> Float[Array, "p d"]:
    def at(point: Float[Array, " d"]) -> Float[Array, "p d"]:
        _, push = jax.linearize(jax.grad(log_density), point)
        return jax.lax.map(push, jnp.asarray(vectors))

    return -jax.lax.map(at, jnp.asarray(x)).mean(0)


def _batches(x: Points) -> list[Float[np.ndarray, "b d"]]:
    """The rows of x in batches of one size. Copies of the last row fill up the last batch."""
    padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % BATCH, axis=0)])
    return [padded[i : i + BATCH] for i in range(0, len(padded), BATCH)]


def _compiles_in_float64(log_density: LogDensity, dim: int) -> tuple[bool, float]:
    """Whether the function can be compiled in float64, and the number of operations it takes with its gradient.

    A function that fixes float32, in the carry of a scan or by an assertion, cannot be compiled in float64. Nor can a
    function that closes over NumPy arrays of float64 and has also been traced in float32: while JAX's float32 copies of
    these arrays live, JAX 0.10 mistakes them for the arrays. The copies are kept alive here, so that the answer does
    not depend on what was traced before. An error in the session's own precision is raised; an error in float64 means
    that the function cannot be compiled there.
    """
    function = jax.jit(jax.value_and_grad(log_density))
    copies = function.trace(jax.ShapeDtypeStruct((dim,), jnp.result_type(float)))
    operations = counted(copies.jaxpr.jaxpr)
    with jax.enable_x64(True):
        try:
            function.lower(jax.ShapeDtypeStruct((dim,), np.dtype("float64")))
        except Exception:
            return False, operations
        finally:
            del copies
    return True, operations
