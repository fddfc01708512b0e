r"""The exact solver by block elimination of Jᵀ = [Aᵀ Bᵀ; 0 diag σ].

For Eq. 6 and a kernel on all of z, the mean over z′ needs no array of size n×m×d. With ∇k_ji = 2κ′_ji (z′_j − z_i),
u = z_tail/σ, the layers h before the last and its rows W₂ of the tail,

    y_tail = 2κ′_ji (u′_j − u_i),    Bᵀy_tail = 2κ′_ji ∂h_jᵀ (W₂ᵀu′_j − W₂ᵀu_i):

the tail's mean is a product of the n×m matrix κ′ with u′, and W₂ is applied once to each draw, not to each pair.
"""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from gpvi._compute.inverses import inverse, solve_transposed
from gpvi._compute.precision import product
from gpvi.generators import Preconditioned
from gpvi.generators.gaussian import CopulaMap
from gpvi.generators.residual import ResidualMap
from gpvi.kernels import Gram, squared_distances
from gpvi.solvers.base import (
    ExactSolver,
    InverseProduct,
    fits,
    largest_ratio,
    largest_root_ratio,
)
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
        if isinstance(generator, CopulaMap):
            return jax.vmap(lambda row: generator.solve_transposed(z, row))(v)
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
        if isinstance(generator, ResidualMap) and _takes_products(generator, gram):
            return _residual_mean_product(generator, gram), state
        varying_head = generator.latent == generator.dim and not generator.constant_head
        if not (varying_head and fits(gram) and _is_dense(generator.head_jacobian(gram.x[0]))):
            return ExactSolver.mean_product(self, state, generator, gram)
        inverted = jax.vmap(lambda z: inverse(generator.head_jacobian(z).as_matrix()))(gram.x)
        v = gram.gradients()
        y = product(v, inverted)
        zero = jnp.zeros((), v.dtype)
        return InverseProduct(y.mean(0), zero, largest_ratio(y, v), inverted), state


def _takes_products(generator: ResidualMap, gram: Gram) -> bool:
    """Return whether there is a tail, and one vector of the last layer's width for each pair fits in memory."""
    widest = max(generator.latent, generator.weight.shape[1])
    return generator.latent < generator.dim and fits(gram, widest)


def _residual_mean_product(generator: ResidualMap, gram: Gram) -> InverseProduct:
    """Return the entropy term for Eq. 6 and a kernel on all of z (see the module's text)."""
    k, number = generator.latent, len(gram.x)
    sigma = generator.tail_scale(gram.x[0, :k])
    tail = gram._replace(x=gram.x[:, k:] / sigma, y=gram.y[:, k:] / sigma)
    at_x, at_y = (product(u, generator.weight[k:]) for u in (tail.x, tail.y))

    def head_inverse(z_head: Array) -> tuple[Array, Array]:
        slopes = jax.jacfwd(generator.trunk)(z_head)
        scale = generator.scale(generator.trunk(z_head))[:k]
        return slopes, inverse(generator.weight[:k] @ slopes + jnp.diag(scale))

    slopes, inverted = jax.vmap(head_inverse)(gram.x[:, :k])
    head = gram._replace(x=gram.x[:, :k], y=gram.y[:, :k]).gradients()
    through_tail = gram._replace(x=at_x, y=at_y).gradients()
    y_head = product(head - product(through_tail, slopes), inverted)
    factor = 4 * gram.slope**2
    images = (y_head**2).sum(-1) + factor * squared_distances(tail.x, tail.y)
    stretch = largest_root_ratio(images, factor * squared_distances(gram.x, gram.y))
    value = jnp.concatenate([y_head.mean(0), tail.gradient_sum() / number], axis=1)
    return InverseProduct(value, jnp.zeros((), value.dtype), stretch, inverted)


def _is_dense(block: lx.AbstractLinearOperator) -> bool:
    """Return whether the block has no structure, diagonal or triangular, that a solver could use."""
    return isinstance(block, lx.MatrixLinearOperator) and not lx.is_lower_triangular(block)
