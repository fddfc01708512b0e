"""The functional gradient of the KL divergence in an RKHS (Thm 3.1, Eq. 5): the paper's direction."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from gpvi.generators import AbstractGenerator, Head
from gpvi.kernels import OnNoise
from gpvi.parallel.mesh import rows
from gpvi.solvers import AbstractSolver


class FunctionalDirection(NamedTuple):
    """φ at the rows of z, what the solver learned, how well it solved, and how far the inverse stretched."""

    direction: Float[Array, "m d"]
    solver_state: PyTree
    residual: Scalar
    stretch: Scalar
    inverse: Float[Array, "n k k"] | None
    """A⁻¹ at every z′, where the solver formed it."""


def restricted(generator: AbstractGenerator, kernel: OnNoise) -> AbstractGenerator:
    """The generator the kernel sees: its head on R^k, or the whole of it."""
    return Head(generator) if kernel.coordinates == "head" else generator


def functional_direction(
    generator: AbstractGenerator,
    kernel: OnNoise,
    solver: AbstractSolver,
    solver_state: PyTree,
    z_prime: Float[Array, "n d"],
    score: Float[Array, "n d"],
    z: Float[Array, "m d"],
) -> FunctionalDirection:
    r"""φ(z) = E_{z′}[ s(f(z′)) k(z′, z) + J(z′)^{-T} ∇_{z′} k(z′, z) ], with `score` = s(f(z′)).

    A kernel on z_head has ∇k = (∇_head k, 0), so y_tail = 0 and the second term is the head's alone: Aᵀ y = ∇_head k.
    """
    part = restricted(generator, kernel)
    gram = kernel.kernel(z_prime[:, : part.dim], z[:, : part.dim])
    attraction = rows(gram.smooth(score) / len(z_prime))
    entropy, solver_state = solver.mean_product(solver_state, part, gram._replace(x=rows(gram.x)))
    direction = rows(attraction.at[:, : part.dim].add(rows(entropy.value)))
    return FunctionalDirection(
        direction, solver_state, jnp.asarray(entropy.residual), entropy.stretch, entropy.inverse
    )
