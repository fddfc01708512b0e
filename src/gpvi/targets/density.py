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
    """What a method needs of a target.

    dim, dtype: of its points.
    size, stream: N of the mini-batch form, and the data where they are streamed; None where there are none.
    draws_its_start, starting_points: whether it has a distribution of starting points, and n points to start from.
    log_density, log_densities: log p at a point, by `batch` where one is given; and at the rows of x, by all data.
    batch: the data with these indices.
    local_log_density: an estimate of E log p(x), x ~ N(mean, scale²), in which each datum has an x of its own.
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


class Evaluation(NamedTuple):
    """log p and scores of a set of draws; draws where either is not finite are masked out."""

    log_density: Float[Array, " n"]
    score: Float[Array, "n d"]
    finite: Bool[Array, " n"]

    def mean(self, values: Float[Array, " n"]) -> Scalar:
        """The mean over the finite draws; NaN when more than half are not, which stops the run."""
        share = self.finite.mean()
        total = jnp.where(self.finite, values, 0.0).mean() / jnp.maximum(share, 0.5)
        return jnp.where(share >= 0.5, total, jnp.nan)

    @property
    def weight(self) -> Float[Array, " n"]:
        """1/m for each of the m finite draws, 0 for the others."""
        return self.finite / jnp.maximum(self.finite.sum(), 1)

    @property
    def rejected(self) -> Scalar:
        """The share of draws that were masked out."""
        return 1.0 - self.finite.mean()


def at_once(dim: int) -> int:
    """How many points are evaluated side by side where only their values are wanted: about 10⁶ numbers."""
    return max(1, min(1_000, 1_000_000 // dim))


def expensive(target: Density) -> bool:
    """Whether log p of all data and its gradient take more than `EXPENSIVE` operations at one point.

    Streamed data count as cheap, as log p waits for the disk there, and so does a log-density that cannot be traced.
    """
    if target.stream is not None:
        return False
    point = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    try:
        return operations(jax.value_and_grad(target.log_density), point) > EXPENSIVE
    except Exception:  # the check of a target says what is wrong with it
        return False


def scores(target: Density, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """∇ log p at the rows of x; one pass over streamed data."""
    if target.stream is None:
        return jax.lax.map(jax.grad(target.log_density), x, batch_size=at_once(target.dim))
    return jax.grad(lambda x: target.log_densities(x).sum())(x)


def evaluate(target: Density, x: Float[Array, "n d"], batch: PyTree = None) -> Evaluation:
    """log p and scores at the rows of x; a draw with a non-finite value or score is masked out."""
    value_and_score = jax.vmap(jax.value_and_grad(target.log_density), (0, None))
    log_density, score = rows(value_and_score(rows(x), batch))
    finite = jnp.isfinite(log_density) & jnp.isfinite(score).all(1)
    return Evaluation(
        jnp.where(finite, log_density, 0.0), jnp.where(finite[:, None], score, 0.0), finite
    )
