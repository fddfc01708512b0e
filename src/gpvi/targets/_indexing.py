"""Detects a function that reads beyond the end of its argument.

JAX clamps such an index without an error: `x[2]` of a point with two coordinates is x[1], and a wrong `dim` gives a
wrong posterior.

The index checks of `jax.experimental.checkify` would find more such indices, those of loops and index arrays. But they
also refuse indices that are meant, with `mode="clip"`, `mode="fill"` or masked afterwards, and they compile and run the
function once more.
"""

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import DTypeLike

_OPERATORS = ("add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv")


def index_out_of_range(function: Callable[[Any], Any], dim: int, dtype: DTypeLike) -> int | None:
    """The first index beyond the end of a vector of `dim` coordinates that `function` reads; None if it reads none.

    Only integers known while tracing are seen: those of a loop over traced indices are not.
    """

    def traced(x):
        function(_Bounded(x))

    try:
        jax.eval_shape(traced, jax.ShapeDtypeStruct((dim,), dtype))
    except _OutOfRangeError as error:
        return error.index
    except Exception:
        pass
    return None


class _OutOfRangeError(Exception):
    def __init__(self, index: int):
        self.index = index


class _Bounded:
    """A stand-in for a traced vector that refuses integer indices beyond its end."""

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
