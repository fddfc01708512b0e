"""How many operations a function takes, counted in what JAX traces of it: the same on every machine, unlike a time.

An equation counts as many operations as it reads or writes numbers, a product or a factorisation of matrices its
multiplications and additions, and a loop of known length its body as often as it runs. A loop of unknown length counts
once, and so does what a callback does outside JAX: the count is a lower bound there.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

EXPENSIVE = 2**20
"""Operations of log p and its gradient from which they, and not the generator, take most of the time of a step."""
LEAST = 16
"""An equation between a few numbers counts as one between so many: as a loop over such equations takes its time."""
MOVES = {"gather", "slice", "dynamic_slice"}
"""They read only what they return."""
WRITES = {"scatter": 2, "scatter-add": 2, "scatter_add": 2, "dynamic_update_slice": 1}
"""They touch only what they write: which argument that is."""
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
"""Operations of a factorisation of an n × n matrix, over n³."""


def operations(function: Callable, *arguments: Any) -> float:
    """The operations of one call; arguments may be `jax.ShapeDtypeStruct`."""
    return counted(jax.make_jaxpr(function)(*arguments).jaxpr)


def counted(jaxpr: Jaxpr) -> float:
    """The operations of what was traced."""
    return math.fsum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> float:
    inside = [counted(one) for one in jaxprs_in_params(equation.params)]
    if not inside:
        return _of_primitive(equation)
    if equation.primitive.name == "cond":
        return max(inside)
    return sum(inside) * (equation.params["length"] if equation.primitive.name == "scan" else 1)


def _of_primitive(equation: Any) -> float:
    """One that holds no further equations."""
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
