"""Finds a function that reads beyond the end of its argument, which JAX does not refuse: it clamps the index.

So `x[2]` of a point with two coordinates is x[1] without a word, and a wrong `dim` gives a wrong posterior.
"""

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import DTypeLike

_OPERATORS = ("add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv")


def index_out_of_range(function: Callable[[Any], Any], dim: int, dtype: DTypeLike) -> int | None:
    """The first such index that `function` uses on a vector of `dim` coordinates; None where none is seen."""

    def traced(x):
        function(_Bounded(x))

    try:
        jax.eval_shape(traced, jax.ShapeDtypeStruct((dim,), dtype))
    except _OutOfRangeError as found:
        return found.index
    except Exception:
        pass
    return None


class _OutOfRangeError(Exception):
    def __init__(self, index: int):
        self.index = index


class _Bounded:
    """Stands in for a traced vector, and refuses whole numbers beyond its end."""

    def __init__(self, x: Any):
        self._x = x

    def __jax_array__(self) -> Any:
        return self._x

    def __getitem__(self, index: Any) -> Any:
        first: Any = index[0] if isinstance(index, tuple) and index else index
        with contextlib.suppress(TypeError):
            number = operator.index(first)
            if not -len(self._x) <= number < len(self._x):
                raise _OutOfRangeError(number)
        return self._x[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._x, name)

    def __len__(self) -> int:
        return len(self._x)

    def __iter__(self) -> Any:
        return iter(self._x)

    def __neg__(self) -> Any:
        return -self._x


def _forward(name: str) -> None:
    def left(self: _Bounded, other: Any) -> Any:
        return getattr(operator, name)(self._x, _plain(other))

    def right(self: _Bounded, other: Any) -> Any:
        return getattr(operator, name)(_plain(other), self._x)

    setattr(_Bounded, f"__{name}__", left)
    setattr(_Bounded, f"__r{name}__", right)


def _plain(value: Any) -> Any:
    return value.__jax_array__() if isinstance(value, _Bounded) else value


for _name in _OPERATORS:
    _forward(_name)
