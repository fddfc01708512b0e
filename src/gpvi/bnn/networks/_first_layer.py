"""Find the weights that the inputs of a network meet first, by following values through its traced program.

The order of the weight arrays does not tell, since dictionaries are sorted by name. Weights are followed through
reshapes and the like, inputs through any operation, up to the first product, convolution or lookup in which an input
meets a weight. There may be several such weights, as in the gates of a recurrent cell or the projections of attention.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

MEETINGS = frozenset({"dot_general", "conv_general_dilated", "gather"})
"""Operations in which an input can meet a weight."""


class Origin(NamedTuple):
    """What a value is computed from."""

    weights: frozenset[int] = frozenset()
    """The weights, by number, if it is computed from weights alone."""
    inputs: bool = False
    """Whether it depends on the inputs."""
    met: bool = False
    """Whether these inputs have met a weight already."""


def first_layer_parameters(
    apply: Callable, parameters: Sequence[jax.ShapeDtypeStruct], x: jax.ShapeDtypeStruct
) -> frozenset[int]:
    """Return the positions of the parameters that x meets first in apply(parameters, x).

    The set is empty if the program does not tell.
    """
    program = jax.make_jaxpr(apply)(list(parameters), x)
    origins = [Origin(frozenset({i})) for i in range(len(parameters))]
    first: set[int] = set()
    _follow(program.jaxpr, [*origins, Origin(inputs=True)], first)
    return frozenset(first)


def _follow(program: Jaxpr, arguments: Sequence[Origin], first: set[int]) -> list[Origin]:
    """Return the origins of a program's results, and add the weights that inputs meet first to `first`."""
    known: dict[Any, Origin] = dict(zip(program.invars, arguments, strict=True))

    def origin(variable: Any) -> Origin:
        return Origin() if isinstance(variable, Literal) else known.get(variable, Origin())

    for step in program.eqns:
        operands = [origin(each) for each in step.invars]
        combined = _combined(operands)
        if step.primitive.name in MEETINGS:
            weights = frozenset().union(*(each.weights for each in operands if not each.inputs))
            if combined.inputs and weights:
                first |= frozenset() if combined.met else weights
                combined = combined._replace(met=True)
        results = [combined] * len(step.outvars)
        bodies = {name: option for name, option in step.params.items() if name != "cond_jaxpr"}
        for inner in jaxprs_in_params(bodies):  # its arguments are the last ones of the step
            if len(inner.invars) <= len(operands):
                own = _follow(inner, operands[len(operands) - len(inner.invars) :], first)
                results = own if len(own) == len(results) else results
        known.update(zip(step.outvars, results, strict=True))
    return [origin(each) for each in program.outvars]


def _combined(origins: Sequence[Origin]) -> Origin:
    """Return the origin of a value that is computed from values of these origins."""
    weights = frozenset().union(*(each.weights for each in origins))
    inputs, met = any(each.inputs for each in origins), any(each.met for each in origins)
    return Origin(frozenset() if inputs else weights, inputs, met)
