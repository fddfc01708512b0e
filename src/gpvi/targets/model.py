"""The model behind a target: it turns a flat vector x ∈ R^d into what the user named and constrained."""

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree


@runtime_checkable
class Model(Protocol):
    """What a target knows of the model it was made from; each method takes one point x, (d,).

    Parameters
    ----------
    dims
        For each site, the names of its axes.
    observed
        The data of each observed site.

    Notes
    -----
    `constrain(x)` returns the unknowns in their own supports, `predict(x, key=…)` draws new data, and
    `log_likelihood(x)` returns the log-likelihood of each observed value, by site.
    """

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def observed(self) -> Mapping[str, np.ndarray]: ...
    def constrain(self, x: Float[Array, " d"]) -> PyTree: ...
    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]: ...
    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]: ...


def split(x: Float[Array, " d"], shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """Cut a vector into arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [
        part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1]), shapes, strict=True)
    ]
