"""Faults of a log-density that tracing shows: nothing is compiled or evaluated to find them.

`Target.check` raises them, and `Target.debug` lists them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from gpvi.errors import GPVIError
from gpvi.targets._indexing import index_out_of_range


class Fault(NamedTuple):
    """What is wrong, and what to do about it."""

    what: str
    remedy: str
    cause: Exception | None = None
    """The error of the user's function, whose traceback names the line."""

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


def traced_output(
    log_density: Callable[..., Any], dim: int, dtype: np.dtype
) -> jax.ShapeDtypeStruct | Fault:
    """The form of what a log-density returns at one point, or why it cannot be used as a log-density."""
    try:
        out = jax.eval_shape(log_density, jax.ShapeDtypeStruct((dim,), dtype))
    except GPVIError:
        raise
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        return Fault(
            "the log-density turns a traced value into a NumPy array or a Python number: "
            + str(error).strip().split("\n")[0].rstrip("."),
            "Use jax.numpy instead of numpy, math, float(), int() and .item(), jax.scipy instead of scipy, and "
            "jnp.where or jax.lax.cond instead of if, while and x[x > 0].",
            error,
        )
    except Exception as error:  # whatever the user's function raises
        return Fault(
            f"the log-density fails on a vector of shape ({dim},): {type(error).__name__}: {error}",
            _remedy(error, dim),
            error,
        )
    index = index_out_of_range(log_density, dim, dtype)
    if index is not None:
        return Fault(
            f"the log-density reads coordinate {index} of a point with {dim}, which JAX would take for the last one",
            f"Check dim={dim}.",
        )
    if not isinstance(out, jax.ShapeDtypeStruct) or out.shape != ():
        return Fault(
            f"the log-density returns {_form(out)} at one point; it must return a scalar",
            "Sum over data inside it; evaluating it at many points is done for you.",
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return Fault(f"the log-density returns dtype {out.dtype}", "It must return a float.")
    return _gradient_fault(log_density, dim, dtype) or out


def _form(out: Any) -> Any:
    """What a log-density returned: the shape of an array, or what else it is."""
    if out is None or isinstance(out, jax.ShapeDtypeStruct):
        return getattr(out, "shape", out)
    return f"a {type(out).__name__}"


def _gradient_fault(log_density: Callable[..., Any], dim: int, dtype: np.dtype) -> Fault | None:
    """Why JAX cannot differentiate a log-density at many points together, as training does."""
    try:
        jax.eval_shape(jax.vmap(jax.grad(log_density)), jax.ShapeDtypeStruct((2, dim), dtype))
    except GPVIError:
        raise
    except Exception as error:  # of JAX, or of rules of differentiation that the user wrote
        return Fault(
            "JAX cannot differentiate the log-density at many points: "
            f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}",
            "A callback needs jax.custom_jvp and vmap_method=; a loop whose length depends on x needs jax.lax.scan.",
            error,
        )
    return None


def _remedy(error: Exception, dim: int) -> str:
    """Say what to do about an error of the user's function, by its kind."""
    if isinstance(error, NameError | AttributeError | ImportError | SyntaxError):
        return "Correct the function; its traceback names the line."
    return f"Check dim={dim}, and that the function takes one point."


def paired_data(
    log_likelihood: Callable[..., Any], data: PyTree, dim: int, dtype: np.dtype
) -> Fault | None:
    """The fault of a log-likelihood that compares every datum with every other one.

    Subtracting shape (N,) from (N, 1) gives (N, N), whose sum looks like any other. Several values for each datum,
    (N, K), are allowed: they are summed.
    """
    count = jax.tree.leaves(data)[0].shape[0]

    def terms(x: Array) -> Array:
        return jnp.asarray(log_likelihood(x, data))

    shape = jax.eval_shape(terms, jax.ShapeDtypeStruct((dim,), dtype)).shape
    if count == 1 or shape.count(count) < 2:
        return None
    return Fault(
        f"log_likelihood returns shape {shape} for {count} data; it must return ({count},), a value for each, or "
        "their sum",
        f"({count}, 1) against ({count},) broadcasts to ({count}, {count}): compare the shapes inside it.",
    )
