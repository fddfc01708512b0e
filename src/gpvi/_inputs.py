"""Arrays and labels as a user passes them: converted, checked for range and finiteness, or refused."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from gpvi.errors import InputError


def precision(dtype: DTypeLike) -> AbstractContextManager[None]:
    """A context in which JAX computes in this type: in 64 bits for float64, in 32 for any other."""
    return jax.enable_x64(np.dtype(dtype) == np.dtype("float64"))


def device_dtype(dtype: np.dtype) -> np.dtype:
    """What arrays of this type become in JAX, at the precision of the moment."""
    return np.dtype(jnp.asarray(np.empty(0, dtype)).dtype)


def format_point(point: Any) -> str:
    """A point as a message shows it."""
    return np.array2string(np.asarray(point), precision=3, threshold=6)


def as_array(value: Any, name: str) -> np.ndarray:
    """An array from whatever holds one: NumPy, JAX, pandas, lists."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} cannot be read as an array: {error}.") from error
    except RuntimeError as error:
        raise InputError(
            f"{name} is {type(value).__name__}, which cannot be read as an array: {error} Of a tensor with gradients "
            f"pass {name}.detach().numpy()."
        ) from error


def as_numbers(value: Any, name: str) -> np.ndarray:
    """The same, of numbers."""
    array = as_array(value, name)
    if array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating):
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}.") from error


def require_finite(array: np.ndarray, name: str, rows: np.ndarray | None = None) -> None:
    """Refuse what is no number, NaN and infinity; `rows` has the original row numbers where `array` is a selection."""
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(f"{name} has dtype {array.dtype}, which holds no numbers: convert it.")
    finite = np.isfinite(array) if array.dtype.kind not in "biu" else np.True_
    if not finite.all():
        where = np.argwhere(~finite)[0]
        first = where[:1] if rows is None else rows[where[:1]]
        place = tuple(map(int, (*first, *where[1:])))
        raise InputError(
            f"{name} holds {array[tuple(where)]} at index {place}: remove or impute it."
        )


def cast_in_range(array: np.ndarray, dtype: np.dtype, name: str = "data") -> np.ndarray:
    """The array as `dtype`, rounded if need be; a value outside its range is refused."""
    if array.dtype == dtype or array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        beyond = (array < bounds.min) | (array > bounds.max)
    else:
        with np.errstate(over="ignore"):
            beyond = ~np.isfinite(array.astype(dtype))
    if beyond.any():
        raise InputError(
            f"{name} holds {array[beyond][0]}, which {dtype} cannot: give it in other units, as floats where it is "
            "whole, or compute in 64 bits with dtype='float64'."
        )
    return array.astype(dtype)


def on_device(data: PyTree[Any]) -> PyTree[jax.Array]:
    """Finite arrays of NumPy's as JAX's, at the precision of the moment."""

    def put(path: Any, leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return jnp.asarray(leaf)
        array = np.asarray(leaf)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        name = "data" + jax.tree_util.keystr(path)
        return jnp.asarray(cast_in_range(native, device_dtype(native.dtype), name))

    return jax.tree.map_with_path(put, data)


def class_probabilities(probabilities: Float[Array, "*n c"]) -> Float[Array, "*n k"]:
    """One column is P(y = 1), as the mean of a `Bernoulli` prediction, and becomes (1 − p, p); more are classes."""
    if probabilities.shape[-1] != 1:
        return probabilities
    return jnp.concatenate([1 - probabilities, probabilities], -1)


def as_labels(labels: Any, classes: int) -> Int[Array, "*n"]:
    """Labels as whole numbers; those outside 0…classes − 1 are refused where their values are known."""
    if isinstance(labels, Tracer):
        return labels if jnp.issubdtype(labels.dtype, jnp.integer) else labels.astype(int)
    values = as_numbers(labels, "labels")
    bad = ~((values >= 0) & (values < classes) & (values == np.floor(values)))
    if bad.any():
        row = int(np.argwhere(bad)[0, 0])
        raise InputError(
            f"labels hold {values[bad][0]} in row {row}; give whole numbers from 0 to {classes - 1}, the columns of "
            f"the {classes} classes. If they count from 1, pass labels - 1."
        )
    return jnp.asarray(values.astype(np.int32))
