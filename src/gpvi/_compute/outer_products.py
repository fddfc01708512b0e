r"""A last layer that holds nearly all parameters: its product, and its gradient as the sum of products that it is.

Of n draws x_i = W h_i + …, the gradient in W is Σ_i φ_i h_iᵀ: d·w entries that n·(d + w) numbers determine. Added up by
a matrix product it is written to memory and read again by whoever uses it; here it stays open until the optimiser adds
it up entry by entry within its own pass, so that it never lies in memory. For n of ten and a layer of 63 million
weights that saves 3 of the 11 times that a step goes through as many numbers (docs/speed.md). Its norm needs no
entries at all: ‖Σ_i φ_i h_iᵀ‖² = Σ_ij (φ_i·φ_j)(h_i·h_j).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from gpvi._compute.precision import product

FEW, WIDE = 16, 256
"""Draws up to which, and features from which on, a sum is left open: adding up costs 2n operations to an entry, which
hide behind the optimiser's reads and writes while n is small, and rows shorter than this make poor loops."""


LONG = 4_096
"""Numbers in a vector of parameters from which on the gradients of few draws are added up by a product."""


LARGE, PARTS = 2**22, range(20, 129)
"""Entries of a matrix from which on a GPU multiplies it in parts, and how many those may be."""


def tall(weight: Float[Array, "n w"], h: Float[Array, " w"]) -> Float[Array, " n"]:
    """W h, for a W of many more rows than columns.

    The way back, Wᵀ g, is a sum over all rows with a short result. To share it out on a GPU, XLA cuts it into
    parts and, where their number does not divide n, pads W: written and read once more, which nearly doubles the time
    of both ways. Here each of as many parts as divide n has its own copy of h; adding up their answers is little.
    """
    parts = _parts(weight)
    if parts == 1:
        return weight @ h
    cut = weight.reshape(parts, -1, weight.shape[1])
    return jnp.einsum("pnw,pw->pn", cut, jnp.broadcast_to(h, (parts, len(h)))).reshape(-1)


def _parts(weight: Float[Array, "n w"]) -> int:
    """A divisor of n near 32, where there is one and the matrix is large, whole, and on a GPU."""
    whole = jax.sharding.get_abstract_mesh().empty
    if jax.default_backend() != "gpu" or weight.size < LARGE or not whole:
        return 1
    divisors = [parts for parts in PARTS if len(weight) % parts == 0]
    return min(divisors, key=lambda parts: abs(math.log(parts / 32)), default=1)


class Products:
    """Σ_i l_i r_iᵀ; a leaf of a tree of gradients."""

    def __init__(self, left: Float[Array, "n d"], right: Float[Array, "n w"]):
        self.left, self.right = left, right

    def added_up(self) -> Float[Array, "d w"]:
        """Entry by entry, in a form that the compiler puts into the loop of whoever reads it."""
        terms = [a[:, None] * b[None, :] for a, b in zip(self.left, self.right, strict=True)]
        return functools.reduce(jnp.add, terms)

    def square(self) -> Scalar:
        """The sum of the squares of its entries."""
        left, right = (product(a, a.T) for a in (self.left, self.right))
        return jnp.maximum((left * right).sum(), 0.0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def copies(vector: Float[Array, " d"], n: int) -> Float[Array, "n d"]:
    """n times the same row; the gradients of the rows are added up by a product with ones."""
    return jnp.broadcast_to(vector, (n, *vector.shape))


def _copies_forward(vector: Float[Array, " d"], n: int) -> tuple[Float[Array, "n d"], None]:
    return copies(vector, n), None


def _copies_back(n: int, _: None, given: Float[Array, "n d"]) -> tuple[Float[Array, " d"]]:
    return (product(jnp.ones(n, given.dtype), given),)


copies.defvjp(_copies_forward, _copies_back)


def added_up(gradient: PyTree) -> PyTree:
    """The gradient as arrays alone."""
    return jax.tree.map(lambda g: g.added_up() if isinstance(g, Products) else g, gradient)


def norm(gradient: PyTree) -> Scalar:
    """The Euclidean norm over all leaves."""
    squares = [
        leaf.square() if isinstance(leaf, Products) else (leaf**2).sum()
        for leaf in jax.tree.leaves(gradient)
    ]
    return jnp.sqrt(sum(squares))
