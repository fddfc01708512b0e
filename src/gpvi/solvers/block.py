"""The exact solver by block elimination of Jᵀ = [Aᵀ Bᵀ; 0 diag σ]."""

import jax
import jax.numpy as jnp
import lineax as lx

from gpvi._compute.inverses import inverse, solve_transposed
from gpvi._compute.precision import product
from gpvi.generators import Preconditioned
from gpvi.solvers.base import ExactSolver, InverseProduct, fits, largest_ratio
from gpvi.solvers.dense import solve_each
from gpvi.specs import spec


@spec
class Block(ExactSolver):
    """Exact, by block elimination: a k×k solve and one vjp with B.

    Examples
    --------
    >>> method = gpvi.GPVI(
    ...     gradient="functional", solver="block"
    ... )  # the same as gpvi.solvers.Block()
    """

    def solve(self, generator, z, v):
        """Solve y_tail = v_tail / σ, then Aᵀ y_head = v_head − Bᵀ y_tail."""
        if isinstance(generator, Preconditioned):
            inner = self.solve(generator.generator, z, v)
            return jax.vmap(generator.affine.solve_transposed)(inner)
        k = generator.latent
        z_head, _ = generator.split(z)
        right, y_tail = v[:, :k], v[:, k:]
        if k < generator.dim:
            y_tail = y_tail / generator.tail_scale(z_head)
            right = right - jax.vmap(lambda y: generator.tail_transposed_product(z, y))(y_tail)
        block = generator.head_jacobian(z_head)
        y_head = (
            solve_transposed(block.as_matrix(), right)
            if _is_dense(block)
            else solve_each(block.T, right)
        )
        return jnp.concatenate([y_head, y_tail], axis=1)

    def mean_product(self, state, generator, gram):
        """Return the entropy term of Thm 3.1; a dense A is inverted once, and the inverse returned for further use."""
        varying_head = generator.latent == generator.dim and not generator.constant_head
        if not (varying_head and fits(gram) and _is_dense(generator.head_jacobian(gram.x[0]))):
            return ExactSolver.mean_product(self, state, generator, gram)
        inverted = jax.vmap(lambda z: inverse(generator.head_jacobian(z).as_matrix()))(gram.x)
        v = gram.gradients()
        y = product(v, inverted)
        zero = jnp.zeros((), v.dtype)
        return InverseProduct(y.mean(0), zero, largest_ratio(y, v), inverted), state


def _is_dense(block: lx.AbstractLinearOperator) -> bool:
    """Return whether the block has no structure, diagonal or triangular, that a solver could use."""
    return isinstance(block, lx.MatrixLinearOperator) and not lx.is_lower_triangular(block)
