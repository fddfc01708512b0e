"""The exact solver by LU of the full Jacobian: the oracle of the others."""

import jax
import lineax as lx
from jaxtyping import Array, Float

from gpvi.solvers.base import ExactSolver
from gpvi.specs import spec


@spec
class Dense(ExactSolver):
    """Exact, by LU of the full Jacobian, for any generator: O(d³) per z′, an oracle for small d.

    Examples
    --------
    >>> method = gpvi.GPVI(
    ...     gradient="functional", solver="dense"
    ... )  # the same as gpvi.solvers.Dense()
    """

    def solve(self, generator, z, v):
        """Factor Jᵀ by LU and solve for every row of v."""
        return solve_each(lx.MatrixLinearOperator(jax.jacfwd(generator)(z).T), v)


def solve_each(operator: lx.AbstractLinearOperator, v: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Factor the operator once and solve for every row of v."""
    solver = lx.AutoLinearSolver(well_posed=True)
    state = solver.init(operator, {})
    return jax.vmap(lambda row: solver.compute(state, row, {})[0])(v)
