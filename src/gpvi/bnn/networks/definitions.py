"""What a network is made from: how its parameters are drawn, and how they are applied to inputs."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from gpvi.errors import InputError
from gpvi.targets.coordinate_names import path_name


@runtime_checkable
class Definition(Protocol):
    """What `Network.from_definition` takes: parameters as a pytree, and what the network does with them."""

    def init(self, key: PRNGKeyArray, /) -> PyTree[Array]:
        """Draw fresh parameters."""
        ...

    def apply(self, parameters: PyTree[Array], x: Real[Array, "b ..."], /) -> Float[Array, "b o"]:
        """Return the outputs for a batch."""
        ...

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """Return the number of inputs that a unit of this weight array sums over; not called for biases."""
        ...

    def is_scale(self, path: tuple[Any, ...]) -> bool:
        """Return whether this array, of any shape, scales the entries of a normalised layer."""
        ...


@runtime_checkable
class LocalDefinition(Definition, Protocol):
    """A definition that supports the local reparameterisation: it can draw pre-activations instead of weights."""

    def apply_local(
        self,
        mean: PyTree[Array],
        scale: PyTree[Array],
        x: Real[Array, "b ..."],
        /,
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "b o"]:
        """Return outputs for a batch in which each row has its own network, with weights N(mean, scale²)."""
        ...


class OutputsLast:
    """Base of definitions whose weight arrays have their outputs on the last axis, as in `x @ w`."""

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """Return the product of all axes but the last."""
        return math.prod(shape[:-1])

    def is_scale(self, path: tuple[Any, ...]) -> bool:
        """Return whether the array is called "scale", as in Flax."""
        return bool(path) and path_name(path[-1:]) == "scale"


@dataclasses.dataclass(frozen=True)
class Functions(OutputsLast):
    """A definition made of two functions."""

    init: Callable[[PRNGKeyArray], PyTree[Array]]
    apply: Callable[[PyTree[Array], Array], Array]


def require_takes(function: Any, name: str, *arguments: str) -> None:
    """Refuse a function that cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # built-in functions may have no signature
        return
    except TypeError as error:
        raise InputError(
            f"{name} is {function!r}, but is called as {name}({', '.join(arguments)}): {error}. Give a function of "
            "that form."
        ) from error
