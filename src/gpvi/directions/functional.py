"""The functional gradient of the KL divergence in an RKHS (Thm 3.1, Eq. 5): the paper's direction."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from gpvi.generators import AbstractGenerator, Head
from gpvi.kernels import OnNoise
from gpvi.parallel.mesh import rows
from gpvi.solvers import Solver


class FunctionalDirection(NamedTuple):
    """What `functional_direction` returns.

    Parameters
    ----------
    direction
        φ at the rows of z, (m, d).
    solver_state
        The solver's next state.
    residual
        How well the systems Jᵀy = v were solved: E‖Jᵀy − v‖² / E‖v‖².
    stretch
        The largest ‖y‖/‖v‖: it grows without bound where J comes near to being singular.
    inverse
        A⁻¹ at every z′, (n, k, k), if the solver formed it; otherwise None.

    Examples
    --------
    >>> gpvi.directions.FunctionalDirection._fields
    ('direction', 'solver_state', 'residual', 'stretch', 'inverse')
    """

    direction: Float[Array, "m d"]
    solver_state: PyTree
    residual: Scalar
    stretch: Scalar
    inverse: Float[Array, "n k k"] | None


def restricted(generator: AbstractGenerator, kernel: OnNoise) -> AbstractGenerator:
    """Return the part of the generator that the kernel acts on: its head on R^k, or all of it."""
    return Head(generator) if kernel.coordinates == "head" else generator


def functional_direction(
    generator: AbstractGenerator,
    kernel: OnNoise,
    solver: Solver,
    solver_state: PyTree,
    z_prime: Float[Array, "n d"],
    score: Float[Array, "n d"],
    z: Float[Array, "m d"],
) -> FunctionalDirection:
    r"""φ(z) = E_{z′}[ s(f(z′)) k(z′, z) + J(z′)^{-T} ∇_{z′} k(z′, z) ], with `score` = s(f(z′)).

    A kernel on z_head has ∇k = (∇_head k, 0), so y_tail = 0 and the second term is the head's alone: Aᵀ y = ∇_head k.

    Parameters
    ----------
    generator
        f.
    kernel
        k, on the head of the noise or on all of it.
    solver, solver_state
        The solver for J^{-T}∇k, and its state.
    z_prime
        The noise z′ of the expectation, (n, d).
    score
        s(f(z′)), the posterior's scores at its draws, (n, d).
    z
        The noise at which φ is wanted, (m, d).

    Returns
    -------
    FunctionalDirection
        φ and the solver's next state.

    Examples
    --------
    >>> generator = gpvi.generators.Linear().build(2, key=key, dtype="float32")
    >>> z = jax.random.normal(key, (10, 2))
    >>> kernel, solver = gpvi.kernels.OnNoise(), gpvi.solvers.Block()
    >>> gpvi.directions.functional_direction(
    ...     generator, kernel, solver, None, z, -z, z
    ... ).direction.shape
    (10, 2)
    """
    part = restricted(generator, kernel)
    gram = kernel.kernel(z_prime[:, : part.dim], z[:, : part.dim])
    attraction = rows(gram.smooth(score) / len(z_prime))
    entropy, solver_state = solver.mean_product(solver_state, part, gram._replace(x=rows(gram.x)))
    width = entropy.value.shape[1]
    direction = rows(attraction.at[:, :width].add(rows(entropy.value)))
    return FunctionalDirection(
        direction, solver_state, jnp.asarray(entropy.residual), entropy.stretch, entropy.inverse
    )
