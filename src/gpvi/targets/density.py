"""What a method asks of a posterior: log p at points, and the scores of a set of draws."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.operation_counts import EXPENSIVE, operations
from gpvi.parallel.mesh import rows
from gpvi.targets.stream import Stream


@runtime_checkable
class Density(Protocol):
    """What a method needs to know of a posterior: `gpvi.Target` and `gpvi.targets.Whitened` provide it.

    Parameters
    ----------
    dim, dtype
        The dimension and the float type of its points.
    size
        The number of data; None if the posterior has no mini-batch form.
    stream
        The data if they are streamed, else None.
    draws_its_start
        Whether it has a distribution of starting points.

    Notes
    -----
    `log_density(x, batch)` is log p at one point, estimated from a batch if one is given, and `log_densities(x)` is
    log p of all data at the rows of x. `batch(indices)` returns the data with these indices, and `starting_points(n,
    key=key)` draws points to start from. `local_log_density` estimates E log p(x) under x ~ N(mean, scale²) with a
    separate x for each datum. `operations()` counts the operations of log p and its gradient.

    Examples
    --------
    >>> isinstance(gpvi.Target(lambda x: -x @ x, dim=2), gpvi.targets.Density)
    True
    """

    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def size(self) -> int | None: ...
    @property
    def stream(self) -> Stream | None: ...
    @property
    def draws_its_start(self) -> bool: ...
    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar: ...
    def log_densities(self, x: Float[Array, "n d"]) -> Float[Array, " n"]: ...
    def batch(self, indices: Int[Array, " b"]) -> PyTree: ...
    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]: ...
    def local_log_density(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> Scalar: ...
    def operations(self) -> float: ...


class Evaluation(NamedTuple):
    """log p and its scores at a set of draws.

    Parameters
    ----------
    log_density
        log p at each draw, 0 where it or the score is not finite.
    score
        ∇ log p at each draw, 0 where it or log p is not finite.
    finite
        Whether both are finite.
    """

    log_density: Float[Array, " n"]
    score: Float[Array, "n d"]
    finite: Bool[Array, " n"]

    def mean(self, values: Float[Array, " n"]) -> Scalar:
        """The mean over the finite draws; NaN if more than half of the draws are not finite, which stops the run."""
        share = self.finite.mean()
        total = jnp.where(self.finite, values, 0.0).mean() / jnp.maximum(share, 0.5)
        return jnp.where(share >= 0.5, total, jnp.nan)

    @property
    def weight(self) -> Float[Array, " n"]:
        """1/m for each of the m finite draws, 0 for the others."""
        return self.finite / jnp.maximum(self.finite.sum(), 1)

    @property
    def rejected(self) -> Scalar:
        """The share of draws that are not finite."""
        return (~self.finite).mean()


def at_once(dim: int) -> int:
    """How many points of this dimension are evaluated together: about 10⁶ numbers, and at most 1,000 points."""
    return max(1, min(1_000, 1_000_000 // dim))


def gradient_operations(target: Density) -> float:
    """The operations of one evaluation of log p and its gradient on all data."""
    point = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    return operations(jax.value_and_grad(target.log_density), point)


def expensive(target: Density) -> bool:
    """Whether log p of all data and its gradient at one point take more than `EXPENSIVE` operations.

    Streamed data count as cheap, because log p then waits for the disk. A log-density that cannot be traced counts as
    cheap, too: `Target.check` will say what is wrong with it.
    """
    if target.stream is not None:
        return False
    try:
        return target.operations() > EXPENSIVE
    except Exception:  # whatever the user's function raises
        return False


def scores(target: Density, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """∇ log p of all data at the rows of x. Streamed data are read once."""
    if target.stream is None:
        return jax.lax.map(jax.grad(target.log_density), x, batch_size=at_once(target.dim))
    return jax.grad(lambda x: target.log_densities(x).sum())(x)


def evaluate(target: Density, x: Float[Array, "n d"], batch: PyTree = None) -> Evaluation:
    """log p and its scores at the rows of x."""
    value_and_score = jax.vmap(jax.value_and_grad(target.log_density), (0, None))
    log_density, score = rows(value_and_score(rows(x), batch))
    finite = jnp.isfinite(log_density) & jnp.isfinite(score).all(1)
    return Evaluation(
        jnp.where(finite, log_density, 0.0), jnp.where(finite[:, None], score, 0.0), finite
    )
