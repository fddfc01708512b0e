"""Which weights the inputs of a network meet first, read off its program.

The order of the arrays does not say it, as dictionaries are in order of their names. In the traced program each value
is followed from where it comes: weights through reshapes and the like, inputs through whatever is done to them, up to
the first product, convolution or look-up in which an input meets a weight. There may be several, as of the gates of a
recurrent cell or the projections of attention.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

MEETINGS = frozenset({"dot_general", "conv_general_dilated", "gather"})


class Origin(NamedTuple):
    """Where a value comes from: the weights it is made of, or the inputs, before or after they have met weights."""

    weights: frozenset[int] = frozenset()
    inputs: bool = False
    met: bool = False


def entered(
    apply: Callable, parameters: Sequence[jax.ShapeDtypeStruct], x: jax.ShapeDtypeStruct
) -> frozenset[int]:
    """The numbers of the parameters that x meets first in apply(parameters, x); none where that cannot be told."""
    program = jax.make_jaxpr(apply)(list(parameters), x)
    origins = [Origin(frozenset({i})) for i in range(len(parameters))]
    found: set[int] = set()
    _follow(program.jaxpr, [*origins, Origin(inputs=True)], found)
    return frozenset(found)


def _follow(program: Jaxpr, given: Sequence[Origin], found: set[int]) -> list[Origin]:
    """The origins of a program's results; what is met on the way is added to `found`."""
    known: dict[Any, Origin] = dict(zip(program.invars, given, strict=True))

    def origin(of: Any) -> Origin:
        return Origin() if isinstance(of, Literal) else known.get(of, Origin())

    for step in program.eqns:
        operands = [origin(each) for each in step.invars]
        joined = _joined(operands)
        if step.primitive.name in MEETINGS:
            weights = frozenset().union(*(each.weights for each in operands if not each.inputs))
            if joined.inputs and weights:
                found |= frozenset() if joined.met else weights
                joined = joined._replace(met=True)
        results = [joined] * len(step.outvars)
        bodies = {name: option for name, option in step.params.items() if name != "cond_jaxpr"}
        for inner in jaxprs_in_params(bodies):  # its arguments are the last ones of the step
            if len(inner.invars) <= len(operands):
                own = _follow(inner, operands[len(operands) - len(inner.invars) :], found)
                results = own if len(own) == len(results) else results
        known.update(zip(step.outvars, results, strict=True))
    return [origin(each) for each in program.outvars]


def _joined(origins: Sequence[Origin]) -> Origin:
    weights = frozenset().union(*(each.weights for each in origins))
    inputs, met = (any(each[place] for each in origins) for place in (1, 2))
    return Origin(frozenset() if inputs else weights, inputs, met)
