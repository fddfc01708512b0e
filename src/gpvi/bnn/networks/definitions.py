"""What makes a network: how its parameters are drawn, and what it does with them."""

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
    """What makes a network: its parameters as a pytree, and what it does with them."""

    def init(self, key: PRNGKeyArray, /) -> PyTree[Array]:
        """Fresh parameters."""
        ...

    def apply(self, parameters: PyTree[Array], x: Real[Array, "b ..."], /) -> Float[Array, "b o"]:
        """The outputs for a batch."""
        ...

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """How many inputs a unit of this array of weights sums; not asked for biases."""
        ...

    def is_scale(self, path: tuple[Any, ...]) -> bool:
        """Whether this array scales what a layer has normalised, entry by entry, whatever its shape."""
        ...


@runtime_checkable
class LocalDefinition(Definition, Protocol):
    """One whose layers can draw what enters an activation in place of the weights."""

    def apply_local(
        self,
        mean: PyTree[Array],
        scale: PyTree[Array],
        x: Real[Array, "b ..."],
        /,
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "b o"]:
        """For each datum the outputs of a network of its own, with weights N(mean, scale²)."""
        ...


class OutputsLast:
    """Arrays of weights in the convention `x @ w`: outputs on the last axis."""

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """The product of all axes but the last."""
        return math.prod(shape[:-1])

    def is_scale(self, path: tuple[Any, ...]) -> bool:
        """What is called so, as in Flax."""
        return bool(path) and path_name(path[-1:]) == "scale"


@dataclasses.dataclass(frozen=True)
class Functions(OutputsLast):
    """A plain pair of functions."""

    init: Callable[[PRNGKeyArray], PyTree[Array]]
    apply: Callable[[PyTree[Array], Array], Array]


def require_takes(function: Any, name: str, *arguments: str) -> None:
    """Refuse what cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # of a built-in function it may not be known
        return
    except TypeError as error:
        raise InputError(
            f"{name} is {function!r}, but is called as {name}({', '.join(arguments)}): {error}. Give a function of "
            "that form."
        ) from error
