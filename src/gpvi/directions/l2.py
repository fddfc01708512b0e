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
    """Return s_q = ∇ log q at the draws x = f(z).

    Parameters
    ----------
    generator
        f.
    solver
        Solves Jᵀy = v.
    z
        The noise of the draws, (n, d).

    Returns
    -------
    Array
        The scores of the model, (n, d).

    Examples
    --------
    >>> generator = gpvi.generators.Diagonal().build(2, key=key, dtype="float32")
    >>> z = jnp.ones((3, 2))
    >>> gpvi.directions.model_score(generator, gpvi.solvers.Block(), z)[0].tolist()
    [-1.0, -1.0]
    """

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
    """Return φ(z) = s_p(f(z)) − s_q(f(z)).

    Parameters
    ----------
    generator
        f.
    solver
        Solves Jᵀy = v.
    z
        The noise of the draws, (n, d).
    score
        s_p, the posterior's scores at the draws f(z), (n, d).

    Returns
    -------
    Array
        φ, (n, d).

    Examples
    --------
    >>> generator = gpvi.generators.Diagonal().build(2, key=key, dtype="float32")
    >>> z = jnp.ones((3, 2))
    >>> bool((gpvi.directions.l2_direction(generator, gpvi.solvers.Block(), z, -z) == 0).all())
    True
    """
    return score - model_score(generator, solver, z)
