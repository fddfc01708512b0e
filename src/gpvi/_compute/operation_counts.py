"""The number of operations of a function, counted from its jaxpr. Unlike a time, it is the same on every machine.

A matrix product or a factorisation counts its multiplications and additions. Any other equation counts the numbers in
the largest array that it reads or writes. A loop of known length counts its body for every iteration. A loop of unknown
length counts its body once, and a callback counts as one equation, so that the total is a lower bound.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

EXPENSIVE = 2**20
"""With more operations than this, log p and its gradient take most of the time of a step, not the generator."""
LEAST = 16
"""The least operations of an equation: even one of a few numbers takes some time in a loop."""
MOVES = {"gather", "slice", "dynamic_slice"}
"""Equations that read only the numbers they return."""
WRITES = {"scatter": 2, "scatter-add": 2, "scatter_add": 2, "dynamic_update_slice": 1}
"""Equations that touch only the numbers they write, and the argument that holds these."""
FACTORS = {
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "geqrf": 4 / 3,
    "householder_product": 4 / 3,
    "qr": 8 / 3,
    "eigh": 9.0,
    "svd": 20.0,
    "eig": 25.0,
    "schur": 25.0,
    "hessenberg": 10 / 3,
}
"""The operations of factorising an n × n matrix, divided by n³."""


def operations(function: Callable, *arguments: Any) -> float:
    """The operations of one call. The arguments may be `jax.ShapeDtypeStruct`."""
    return counted(jax.make_jaxpr(function)(*arguments).jaxpr)


def counted(jaxpr: Jaxpr, *, rounds: int = 1) -> float:
    """The operations of a jaxpr, whose loops of unknown length go round `rounds` times."""
    return math.fsum(_of_equation(equation, rounds) for equation in jaxpr.eqns)


def _of_equation(equation: Any, rounds: int) -> float:
    inside = [counted(one, rounds=rounds) for one in jaxprs_in_params(equation.params)]
    if not inside:
        return _of_primitive(equation)
    name = equation.primitive.name
    if name == "cond":
        return max(inside)
    times = {"scan": equation.params.get("length"), "while": rounds}
    return sum(inside) * times.get(name, 1)


def _of_primitive(equation: Any) -> float:
    """The operations of an equation without inner jaxprs."""
    name, options = equation.primitive.name, equation.params
    read = [_shape(variable) for variable in equation.invars]
    written = [_shape(variable) for variable in equation.outvars]
    if name == "dot_general":
        (contracted, _), _ = options["dimension_numbers"]
        return 2.0 * math.prod(written[0]) * math.prod(read[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        channels = read[1][options["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(written[0]) * math.prod(read[1]) / channels
    if name == "triangular_solve":
        return float(math.prod(written[0]) * read[0][-1])
    if name in FACTORS:
        return FACTORS[name] * math.prod(read[0]) * min(read[0][-2:])
    if name in MOVES:
        read = []
    if name in WRITES:
        read, written = [read[WRITES[name]]], []
    return float(max(LEAST, *map(math.prod, read + written)))


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(getattr(variable.aval, "shape", ()))
