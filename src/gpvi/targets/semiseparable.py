r"""The Cholesky factor of a covariance that is diagonal plus low rank, in O(dr) numbers and operations.

For Σ = D (I + W J Wᵀ) D, with W of r columns and J a diagonal of signs, the lower-triangular factor is semiseparable
[1],

    L = D (diag c + stril(W Pᵀ)),

where stril is the part below the diagonal. With S₀ = J and Sᵢ⁻¹ = Sᵢ₋₁⁻¹ + wᵢwᵢᵀ the rows of W, c and P are

    cᵢ² = 1 + wᵢᵀ Sᵢ₋₁ wᵢ,    pᵢ = Sᵢ₋₁ wᵢ / cᵢ.

Substituting forwards, the sum Σ_{j<i} p_j u_j that row i of L u = y needs is Sᵢ₋₁ Σ_{j<i} w_j y_j / D_j. So the inverse
has the same form with W and P exchanged,

    L⁻¹ = (diag c⁻¹ − stril(P Wᵀ)) D⁻¹,

and L, L⁻¹ and their transposes are running sums over the coordinates, without any recursion.

[1] Vandebril, Van Barel, Mastronardi: Matrix computations and semiseparable matrices (2008).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

from gpvi._compute.precision import product

BLOCK = 64
"""Rows that are multiplied as a small dense triangle; sums run over the blocks before."""


class Semiseparable(eqx.Module):
    """The matrix L = diag(unit) (diag(diagonal) + stril(left rightᵀ)), lower-triangular.

    Parameters
    ----------
    unit
        D, the unit of each coordinate, positive.
    diagonal
        c, positive.
    left, right
        W and P.
    signs
        The diagonal of J.

    Examples
    --------
    >>> factor = np.array([[1.0], [2.0], [-1.0]])
    >>> L = gpvi.targets.Semiseparable.of(np.ones(3), factor, np.ones(1))
    >>> covariance = np.asarray(L.dense() @ L.dense().T)
    >>> np.allclose(covariance, np.eye(3) + factor @ factor.T, atol=1e-5)
    True
    """

    unit: Float[Array, " d"]
    diagonal: Float[Array, " d"]
    left: Float[Array, "d r"]
    right: Float[Array, "d r"]
    signs: Float[Array, " r"]

    @classmethod
    def of(
        cls,
        unit: Float[np.ndarray, " d"],
        factor: Float[np.ndarray, "d r"],
        signs: Float[np.ndarray, " r"],
        dtype: DTypeLike = np.float32,
    ) -> "Semiseparable":
        """Factor D (I + W J Wᵀ) D, which must be positive definite, in float64.

        Parameters
        ----------
        unit
            D.
        factor
            W.
        signs
            The diagonal of J, each 1 or −1.
        dtype
            The float type of the result.

        Returns
        -------
        Semiseparable
            The Cholesky factor.
        """
        inner = np.diag(np.asarray(signs, np.float64))
        diagonal, right = np.empty(len(factor)), np.empty(factor.shape)
        for i, row in enumerate(np.asarray(factor, np.float64)):
            image = inner @ row
            diagonal[i] = np.sqrt(1 + row @ image)
            right[i] = image / diagonal[i]
            inner -= np.outer(right[i], right[i])
        if not np.isfinite(diagonal).all():
            raise np.linalg.LinAlgError("the matrix is not positive definite")
        arrays = unit, diagonal, factor, right, signs
        return cls(*(jnp.asarray(each, dtype) for each in arrays))

    @classmethod
    def identity(cls, dim: int, rank: int, dtype: DTypeLike) -> "Semiseparable":
        """The identity, of this many columns."""
        one, none = jnp.ones(dim, dtype), jnp.zeros((dim, rank), dtype)
        return cls(one, one, none, none, jnp.ones(rank, dtype))

    def __matmul__(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """L u."""
        return self.unit * (self.diagonal * u + _below(self.left, self.right, u))

    def solve(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector u with L u = y."""
        y = y / self.unit
        return y / self.diagonal - _below(self.right, self.left, y)

    def solve_transposed(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector y with Lᵀy = v: the part above the diagonal is the part below it, backwards."""
        above = _below(self.left[::-1], self.right[::-1], v[::-1])[::-1]
        return (v / self.diagonal - above) / self.unit

    def leading(self, k: int) -> "Semiseparable":
        """The first k rows and columns."""
        return Semiseparable(
            self.unit[:k], self.diagonal[:k], self.left[:k], self.right[:k], self.signs
        )

    def dense(self) -> Float[Array, "d d"]:
        """L as a matrix."""
        below = jnp.tril(product(self.left, self.right.T), -1)
        return self.unit[:, None] * (below + jnp.diag(self.diagonal))

    def deviations(self) -> Float[Array, " d"]:
        """The norm of each row of L, which is a standard deviation: D √(1 + wᵀJw)."""
        return self.unit * jnp.sqrt(1 + product(self.left**2, self.signs))

    def conditional_deviations(self) -> Float[Array, " d"]:
        """The standard deviation of each coordinate given the others: D / √(1 − wᵀ(J + WᵀW)⁻¹w)."""
        inner = jnp.linalg.inv(jnp.diag(self.signs) + product(self.left.T, self.left))
        return self.unit / jnp.sqrt(1 - (product(self.left, inner) * self.left).sum(1))


def _below(
    left: Float[Array, "d r"], right: Float[Array, "d r"], u: Float[Array, " d"]
) -> Float[Array, " d"]:
    """stril(left rightᵀ) u: within blocks by small dense triangles, and by running sums over the blocks before."""
    dim = len(u)
    blocks = -(-dim // BLOCK)

    def blocked(rows: Array) -> Array:
        padding = [(0, blocks * BLOCK - dim)] + [(0, 0)] * (rows.ndim - 1)
        return jnp.pad(rows, padding).reshape(blocks, BLOCK, *rows.shape[1:])

    left, right, u = blocked(left), blocked(right), blocked(u)
    triangles = jnp.tril(jnp.einsum("bir,bjr->bij", left, right, precision="highest"), -1)
    sums = jnp.einsum("bjr,bj->br", right, u, precision="highest")
    before = jnp.cumsum(sums, 0) - sums
    within = jnp.einsum("bij,bj->bi", triangles, u, precision="highest")
    return (within + jnp.einsum("bir,br->bi", left, before, precision="highest")).reshape(-1)[:dim]
