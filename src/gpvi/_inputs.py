"""Arrays and labels passed by a user: converted, checked for range and finiteness, or refused."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from gpvi.errors import InputError


def precision(dtype: DTypeLike) -> AbstractContextManager[None]:
    """A context in which JAX computes in 64 bits if the dtype is float64, else in 32 bits."""
    return jax.enable_x64(np.dtype(dtype) == np.dtype("float64"))


def device_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that JAX gives to arrays of this dtype under its present x64 setting."""
    return np.dtype(jnp.asarray(np.empty(0, dtype)).dtype)


def format_point(point: Any) -> str:
    """A point as text for a message: three digits, and the first and last coordinates of many."""
    return np.array2string(np.asarray(point), precision=3, threshold=6)


def as_array(value: Any, name: str) -> np.ndarray:
    """Convert anything array-like, such as NumPy, JAX or pandas objects and lists, to a NumPy array."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} cannot be read as an array: {error}.") from error
    except RuntimeError as error:
        raise InputError(
            f"{name} is {type(value).__name__}, which cannot be read as an array: {error} If it is a tensor with "
            f"gradients, pass {name}.detach().numpy()."
        ) from error


def as_numbers(value: Any, name: str) -> np.ndarray:
    """Convert anything array-like to a NumPy array of numbers."""
    array = as_array(value, name)
    if array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if array.dtype.kind == "c":
        raise InputError(f"{name} holds complex numbers; pass real ones.")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}.") from error


def require_finite(array: np.ndarray, name: str, rows: np.ndarray | None = None) -> None:
    """Refuse arrays that contain NaN, infinity or anything but numbers.

    If `array` is a selection of rows, `rows` are their numbers in the original data, for the message.
    """
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
    """Cast an array to a dtype. Values may be rounded, but one outside the range of the dtype is refused."""
    if array.dtype == dtype or array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        outside = (array < bounds.min) | (array > bounds.max)
    else:
        with np.errstate(over="ignore"):
            outside = ~np.isfinite(array.astype(dtype))
    if outside.any():
        raise InputError(
            f"{name} holds {array[outside][0]}, which {dtype} cannot represent: use other units, floats instead of "
            "integers, or 64 bits with dtype='float64'."
        )
    return array.astype(dtype)


def on_device(data: PyTree[Any]) -> PyTree[jax.Array]:
    """Convert finite NumPy arrays to JAX arrays under the present x64 setting."""

    def put(path: Any, leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return jnp.asarray(leaf)
        array = np.asarray(leaf)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        name = "data" + jax.tree_util.keystr(path)
        return jnp.asarray(cast_in_range(native, device_dtype(native.dtype), name))

    return jax.tree.map_with_path(put, data)


def class_probabilities(probabilities: Float[Array, "*n c"]) -> Float[Array, "*n k"]:
    """Probabilities of each class. A single column p is P(y = 1), as of a Bernoulli, and becomes (1 − p, p)."""
    if probabilities.shape[-1] != 1:
        return probabilities
    return jnp.concatenate([1 - probabilities, probabilities], -1)


def as_labels(labels: Any, classes: int) -> Int[Array, "*n"]:
    """Convert labels to integers. Labels outside 0…classes − 1 are refused, unless they are being traced."""
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
