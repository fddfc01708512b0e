r"""The functional gradient without smoothing: φ = s_p − s_q, whose variance vanishes where q = p.

With q the density of x = f(z) (Eq. 1), s_q(f(z)) = J^{-T}(∇_z log p_z(z) − ∇_z log|det J|), where
∇_z log p_z(z) = −z. Integrating by parts under p_z, Thm 3.1 is this direction smoothed:
E_{z′}[J^{-T}∇k] = −E_{z′}[k s_q]. Pulled back, it is the path-derivative ("sticking the landing") gradient of
Roeder et al. 2017, equal to the pathwise gradient in expectation.
"""

import jax
from jaxtyping import Array, Float

from gpvi.generators import AbstractGenerator
from gpvi.solvers.base import ExactSolver


def model_score(
    generator: AbstractGenerator, solver: ExactSolver, z: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """s_q at the draws f(z)."""

    def at(point: Float[Array, " d"]) -> Float[Array, " d"]:
        stretch = jax.grad(lambda z: generator.log_det(z)[1])(point)
        return solver.solve(generator, point, (-point - stretch)[None])[0]

    return jax.vmap(at)(z)


def l2_direction(
    generator: AbstractGenerator,
    solver: ExactSolver,
    z: Float[Array, "n d"],
    score: Float[Array, "n d"],
) -> Float[Array, "n d"]:
    """φ(z) = s_p(f(z)) − s_q(f(z))."""
    return score - model_score(generator, solver, z)
