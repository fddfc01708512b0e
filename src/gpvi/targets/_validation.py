"""The arguments of `gpvi.Target`, checked and converted one by one."""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike, Float, PyTree

from gpvi._inputs import as_numbers, cast_in_range, on_device, require_finite
from gpvi.errors import InputError, brief
from gpvi.parallel.hosts import local_parts
from gpvi.specs import MOST, is_number, is_whole
from gpvi.targets.stream import Stream


def check_functions(
    log_density: Callable | None,
    log_likelihood: Callable | None,
    log_prior: Callable | None,
    data: PyTree,
) -> None:
    """Require either a log-density, or a log-likelihood with data and perhaps a log-prior."""
    given = {"log_density": log_density, "log_likelihood": log_likelihood, "log_prior": log_prior}
    for name, function in given.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} is {brief(function)}; pass a function of x.")
    if (log_density is None) == (log_likelihood is None):
        raise InputError(
            "give either log_density, or log_likelihood with data (and log_prior): "
            f"got log_density={log_density!r}, log_likelihood={log_likelihood!r}."
        )
    if log_density is not None and (data is not None or log_prior is not None):
        raise InputError(
            "data and log_prior belong to the mini-batch form: pass log_likelihood instead of log_density."
        )
    if log_likelihood is not None and data is None:
        raise InputError(
            "log_likelihood needs data: a pytree of arrays whose first axes have one length N."
        )


def checked_dim(dim: Any) -> int:
    """The dimension as an int."""
    if dim is None:
        raise InputError(
            "dim is missing: pass dim=d, the length of the vector x, or initial=, a point."
        )
    if not is_whole(dim) or dim < 1:
        raise InputError(f"dim is {brief(dim)}; it must be a whole number ≥ 1.")
    if dim > MOST:
        raise InputError(
            f"dim is {brief(dim)}; it may be {MOST:,} at most, as coordinates are numbered in 32 bits."
        )
    return int(dim)


def checked_temperature(temperature: Any) -> float:
    """The temperature as a float."""
    if not is_number(temperature) or not 0 < temperature <= sys.float_info.max:
        raise InputError(
            f"temperature is {brief(temperature)}; it must be finite and > 0 (1 is the posterior)."
        )
    return float(temperature)


def checked_dtype(dtype: DTypeLike | None) -> np.dtype:
    """float32 or float64; by default what JAX uses for floats."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of names that NumPy no longer likes
            checked = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    except Exception as error:  # of NumPy, or of an object's own class
        raise InputError(f"dtype is {brief(dtype)}; use float32 or float64.") from error
    if checked not in (np.dtype("float32"), np.dtype("float64")):
        raise InputError(f"dtype is {checked}; use float32 or float64.")
    return checked


def drawn_initial(draw: Callable) -> Any:
    """A starting point that the user's function draws."""
    try:
        return draw(jax.random.key(0))
    except Exception as error:  # whatever the user's function raises
        raise InputError(
            f"initial fails when it is called with a key: {type(error).__name__}: {error}. "
            "Pass a point, or a function key → point."
        ) from error


def checked_initial(initial: Any, dim: int, dtype: np.dtype) -> Float[np.ndarray, " d"]:
    """The starting point, in the range of the dtype; the origin by default."""
    point = np.zeros(dim) if initial is None else as_numbers(initial, "initial")
    if point.shape != (dim,):
        raise InputError(f"initial has shape {point.shape}; it must be ({dim},), as dim={dim}.")
    if not np.isfinite(point).all():
        raise InputError(
            "initial holds NaN or infinity; give a point where the log-density is finite."
        )
    return cast_in_range(point.astype(np.float64), dtype, "initial")


def checked_names(names: Any, dim: int) -> tuple[str, ...]:
    """One distinct name for each coordinate."""
    checked = tuple(names) if isinstance(names, Iterable) else (names,)
    if isinstance(names, str) or not all(isinstance(name, str) for name in checked):
        raise InputError(
            f"names is {brief(names)}; give a list of strings, one for each coordinate."
        )
    try:
        "".join(checked).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"names holds {error.object[error.start]!r}, which no file can hold. Leave it out."
        ) from error
    if len(checked) != dim:
        raise InputError(f"{len(checked)} names for dim={dim}: give one name for each coordinate.")
    if len(set(checked)) < dim:
        twice = next(name for name, times in Counter(checked).items() if times > 1)
        raise InputError(
            f"names holds {twice!r} twice; draws by name would lose a coordinate. Give each its own."
        )
    return tuple(map(str, checked))  # not NumPy's


def checked_batch_size(batch_size: int | None, size: int) -> int | None:
    """A batch size between 1 and the number of data, or None for all data."""
    if batch_size is not None and not (is_whole(batch_size) and 1 <= batch_size <= size):
        raise InputError(
            f"batch_size is {brief(batch_size)}; it must be between 1 and the number of data, {size}."
        )
    return batch_size


def checked_data(data: PyTree) -> PyTree:
    """Finite arrays of one length N, on the device; None and a stream are returned as they are."""
    if data is None or isinstance(data, Stream):
        return data
    lengths = set()
    for path, leaf in jax.tree.leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(path)
        for array in local_parts(leaf):
            if array.ndim == 0:
                raise InputError(
                    f"{name} is a single number; each array of data needs a first axis of length N."
                )
            require_finite(array, name)
        lengths.add(np.shape(leaf)[0])
    if len(lengths) > 1:
        raise InputError(
            f"the arrays of data have different lengths {sorted(lengths)} along their first axis."
        )
    if not lengths:
        raise InputError(f"data is {brief(data)}, which holds no array; pass arrays of N rows.")
    if lengths == {0}:
        raise InputError("data is empty: N = 0.")
    return on_device(data)
