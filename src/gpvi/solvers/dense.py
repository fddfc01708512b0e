"""The exact solver by LU of the whole Jacobian: the oracle of the others."""

import jax
import lineax as lx
from jaxtyping import Array, Float

from gpvi.solvers.base import ExactSolver
from gpvi.specs import spec


@spec
class Dense(ExactSolver):
    """Exact, by LU of the whole Jacobian: O(d³) per z′, an oracle for small d."""

    def solve(self, generator, z, v):
        """LU of Jᵀ."""
        return solve_each(lx.MatrixLinearOperator(jax.jacfwd(generator)(z).T), v)


def solve_each(operator: lx.AbstractLinearOperator, v: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Factor once, solve for every row."""
    solver = lx.AutoLinearSolver(well_posed=True)
    state = solver.init(operator, {})
    return jax.vmap(lambda row: solver.compute(state, row, {})[0])(v)
