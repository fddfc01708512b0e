r"""A last layer that contains nearly all parameters: its product, and its gradient as an unevaluated sum.

For n draws x_i = W h_i + …, the gradient in W is Σ_i φ_i h_iᵀ: d·w entries, determined by n·(d + w) numbers. A matrix
product would write it to memory, to be read again by its user. Here the sum is left unevaluated until the optimiser
computes it entry by entry within its own pass, so that it is never in memory. For n = 10 and a layer of 63 million
weights this saves 3 of the 11 passes of a step over as many numbers (docs/speed.md). The norm needs no entries at all:
‖Σ_i φ_i h_iᵀ‖² = Σ_ij (φ_i·φ_j)(h_i·h_j).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from gpvi._compute.precision import product

FEW, WIDE = 16, 256
"""A sum is left unevaluated for at most FEW draws and at least WIDE features. Each entry costs 2n operations, which are
hidden by the optimiser's memory traffic if n is small; and loops over shorter rows are inefficient."""


LONG = 4_096
"""For a vector of parameters of at least this length, the gradients of few draws are summed by a matrix product."""


LARGE, PARTS = 2**22, range(20, 129)
"""A GPU multiplies a matrix with at least LARGE entries in parts, and the possible numbers of parts."""


def tall(weight: Float[Array, "n w"], h: Float[Array, " w"]) -> Float[Array, " n"]:
    """The product W h, for a matrix W with many more rows than columns.

    Its gradient Wᵀ g is a sum over all rows with a short result. To distribute the sum on a GPU, XLA cuts it into parts
    and pads W if their number does not divide n. W is then written and read once more, which nearly doubles the time of
    the product and its gradient. Here the number of parts divides n, and each part has its own copy of h. Summing their
    results takes little time.
    """
    parts = _parts(weight)
    if parts == 1:
        return weight @ h
    cut = weight.reshape(parts, -1, weight.shape[1])
    return jnp.einsum("pnw,pw->pn", cut, jnp.broadcast_to(h, (parts, len(h)))).reshape(-1)


def _parts(weight: Float[Array, "n w"]) -> int:
    """A divisor of n near 32, if there is one and the matrix is large and on a single GPU; else 1."""
    unsharded = jax.sharding.get_abstract_mesh().empty
    if jax.default_backend() != "gpu" or weight.size < LARGE or not unsharded:
        return 1
    divisors = [parts for parts in PARTS if len(weight) % parts == 0]
    return min(divisors, key=lambda parts: abs(math.log(parts / 32)), default=1)


class Products:
    """The unevaluated sum Σ_i l_i r_iᵀ, a leaf in a tree of gradients."""

    def __init__(self, left: Float[Array, "n d"], right: Float[Array, "n w"]):
        self.left, self.right = left, right

    def added_up(self) -> Float[Array, "d w"]:
        """The sum, in a form that the compiler fuses into the loop that reads it."""
        terms = [a[:, None] * b[None, :] for a, b in zip(self.left, self.right, strict=True)]
        return functools.reduce(jnp.add, terms)

    def square(self) -> Scalar:
        """The sum of the squares of its entries."""
        left, right = (product(a, a.T) for a in (self.left, self.right))
        return jnp.maximum((left * right).sum(), 0.0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def copies(vector: Float[Array, " d"], n: int) -> Float[Array, "n d"]:
    """The vector repeated n times. The gradients of the rows are summed by a product with a vector of ones."""
    return jnp.broadcast_to(vector, (n, *vector.shape))


def _copies_forward(vector: Float[Array, " d"], n: int) -> tuple[Float[Array, "n d"], None]:
    return copies(vector, n), None


def _copies_back(n: int, _: None, given: Float[Array, "n d"]) -> tuple[Float[Array, " d"]]:
    return (product(jnp.ones(n, given.dtype), given),)


copies.defvjp(_copies_forward, _copies_back)


def added_up(gradient: PyTree) -> PyTree:
    """The gradient with every unevaluated sum computed."""
    return jax.tree.map(lambda g: g.added_up() if isinstance(g, Products) else g, gradient)


def norm(gradient: PyTree) -> Scalar:
    """The Euclidean norm over all leaves."""
    squares = [
        leaf.square() if isinstance(leaf, Products) else (leaf**2).sum()
        for leaf in jax.tree.leaves(gradient)
    ]
    return jnp.sqrt(sum(squares))
