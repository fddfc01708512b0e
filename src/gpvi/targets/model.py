"""Models behind a flat vector: what a user names and constrains, as x ∈ R^d and back."""

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree


@runtime_checkable
class Model(Protocol):
    """What a target knows of the model it came from; each function takes one point x, (d,)."""

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def observed(self) -> Mapping[str, np.ndarray]: ...
    def constrain(self, x: Float[Array, " d"]) -> PyTree: ...
    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]: ...
    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]: ...


def split(x: Float[Array, " d"], shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """A vector cut into arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [
        part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1]), shapes, strict=True)
    ]
