"""The model behind a target: it turns a flat vector x ∈ R^d into what the user named and constrained."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

ATTEMPTS = 100
"""The most points that are tried in search of one with a finite log-density."""


@runtime_checkable
class Model(Protocol):
    """What a target knows of the model it was made from; each method takes one point x, (d,).

    Parameters
    ----------
    dims
        For each site, the names of its axes.
    coords
        For some of these names, the labels along the axis.
    observed
        The data of each observed site.
    constants
        Other data that the model knows by name.

    Notes
    -----
    `constrain(x, key=…)` returns the unknowns in their own supports; `key` draws those that x does not determine, as
    the states that were summed out of a log-density. `predict(x, key=…)` draws new data, and `log_likelihood(x)`
    returns the log-likelihood of each observed value, by site. `predictor(args, kwargs)` returns a function (x, key=…)
    that draws from the model at other arguments.

    `finite_in_double` is None if the coordinates are the user's own. If the model has made them unconstrained, it is a
    function of points that says whether log p and its gradient are finite in float64 at each, or returns None if that
    cannot be computed.
    """

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def coords(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def observed(self) -> Mapping[str, np.ndarray]: ...
    @property
    def constants(self) -> Mapping[str, np.ndarray]: ...
    def constrain(self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None) -> PyTree: ...
    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]: ...
    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]: ...
    def predictor(
        self, args: tuple, kwargs: Mapping[str, Any]
    ) -> Callable[..., dict[str, Array]]: ...
    @property
    def finite_in_double(self) -> Callable[[np.ndarray], np.ndarray | None] | None: ...


@runtime_checkable
class DrawsItsPrior(Protocol):
    """A model whose prior can be drawn from: `prior_draws(n, key=…)` returns n unconstrained points, (n, d)."""

    def prior_draws(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]: ...


def split(x: Float[Array, " d"], shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """Cut a vector into arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [
        part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1]), shapes, strict=True)
    ]


def finite_point(
    log_density: Callable[[Float[Array, " d"]], Scalar], first: Float[Array, " d"]
) -> np.ndarray | None:
    """The first point if log p and its gradient are finite there, else the first such point of random ones.

    None if there is none among `ATTEMPTS`.
    """
    evaluate = jax.jit(jax.value_and_grad(log_density))
    point = first
    for attempt in range(ATTEMPTS):
        value, slope = evaluate(point)
        if np.isfinite(value) and np.isfinite(slope).all():
            return np.asarray(point, np.float64)
        key = jax.random.fold_in(jax.random.key(0), attempt)
        radius = 2.0 * 0.9**attempt
        point = jax.random.uniform(key, first.shape, first.dtype, -radius, radius)
    return None


def described(error: Exception) -> str:
    """An error as its kind and its first line, for a message of one line."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """The first line of what an error says, without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".: ")
