"""Programs that run for a moment: compiled soon rather than well, where running them takes less time than compiling.

For a CPU, XLA by default turns every loop of a program into a module of its own and optimises it at length. With the
older code generator and without optimisation that takes a quarter of the time, and the program then runs a few times as
long (docs/speed.md). That pays for what runs once or a few times on few numbers, as judging and exploring do in few
dimensions. What decides is the number of operations, which is the same on every machine and in every run, never a time:
the two ways of compiling round differently, and a run that is resumed must go on as if it had never stopped.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gpvi._compute.operation_counts import counted

Function = TypeVar("Function", bound=Callable[..., Any])

HASTY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}
"""The options that compile soon; they are for CPUs."""
MOST_OPERATIONS = 2**31
"""A program is compiled well if its calls together take more operations. On this many, haste loses some tenths of a
second, as much as it gains on a program of middling length."""
ARRAYS = jax.Array, np.ndarray, np.generic
"""What a program takes as it runs; it is compiled for everything else."""
ROUNDS = 10
"""A loop of unknown length is taken to go round as often."""


class _Rest(eqx.Module):
    """What a program returns beside arrays."""

    value: Any = eqx.field(static=True)


@overload
def brief(function: Function) -> Function: ...
@overload
def brief(*, calls: int) -> Callable[[Function], Function]: ...
def brief(function: Any = None, *, calls: int = 4) -> Any:
    """Compile as `equinox.filter_jit` does, but soon rather than well if all calls together take few operations.

    Inside another program, and on anything but a CPU, it is compiled like everything else.

    Parameters
    ----------
    function
        The function; without it, a decorator is returned.
    calls
        How often a fit and its diagnosis call it, roughly.
    """
    return functools.partial(_brief, calls=calls) if function is None else _brief(function, calls)


def _brief(function: Function, calls: int) -> Function:
    def body(static: tuple[Any, ...], structure: Any, arrays: list[Any]) -> tuple[Any, _Rest]:
        leaves = [a if b is None else b for a, b in zip(static, arrays, strict=True)]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        returned, rest = eqx.partition(function(*args, **kwargs), eqx.is_array)
        return returned, _Rest(rest)

    body.__name__ = body.__qualname__ = function.__name__
    well = jax.jit(body, static_argnums=(0, 1))
    soon = jax.jit(body, static_argnums=(0, 1), compiler_options=HASTY)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        static = tuple(None if isinstance(leaf, ARRAYS) else leaf for leaf in leaves)
        arrays = [leaf if isinstance(leaf, ARRAYS) else None for leaf in leaves]
        given = static, structure, arrays
        hurry = _can_hurry(arrays) and calls * _operations(well.trace(*given)) <= MOST_OPERATIONS
        compiled = soon if hurry else well
        returned, rest = compiled(*given)
        return eqx.combine(returned, rest.value)

    return cast(Function, call)


def _can_hurry(arrays: list[Any]) -> bool:
    """Whether the options may be given: on a CPU whose compiler has them, and not inside another program."""
    inside = any(isinstance(each, Tracer) for each in (jnp.zeros(()), *arrays))
    return jax.default_backend() == "cpu" and not inside and _options_are_known()


@functools.cache
def _options_are_known() -> bool:
    """Whether this version of XLA has the options, which are not part of JAX's stable interface."""
    try:
        jax.jit(jnp.negative, compiler_options=HASTY)(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


_counts: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def _operations(traced: jax.stages.Traced) -> float:
    """The operations of one call, counted once."""
    jaxpr = traced.jaxpr.jaxpr
    if jaxpr not in _counts:
        _counts[jaxpr] = counted(jaxpr, rounds=ROUNDS)
    return _counts[jaxpr]
