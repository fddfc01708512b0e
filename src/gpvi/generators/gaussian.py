r"""Gaussians q = N(b, LLᵀ) as generators x = b + Lz, by the form of L: diagonal, triangular, or any matrix.

The first two are triangular generators with an affine head of all coordinates (k = d): log|det J| = Σ log L_ii. The
third is the generator of the paper's density and linear-regression tasks (with λ = 0).

A Gaussian copula is a Gaussian with each coordinate bent by itself, x = b + D T(D⁻¹Lz), where D = diag(LLᵀ)^{1/2} and T
is monotone in each coordinate. In the coordinates u = L⁻¹(x − b) in which the Gaussian is standard normal,

    f(z) = S⁻¹ T(S z),   J = S⁻¹ diag(T′) S,   log|det J| = Σ log T′,   S = D⁻¹L,

since the determinants of S cancel. Only T is trained, with four numbers for a coordinate, and it begins as the
identity, so that in thousands of dimensions hundreds of steps are enough.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import lineax as lx
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.precision import product
from gpvi.generators.base import AbstractGenerator, Generator
from gpvi.generators.bijections import AffineHead, BentHead, LowerTriangularHead, TailedHead
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_instance, require_positive, spec


@dataclass(frozen=True)
class _Scaled(Generator):
    """A Gaussian that starts at N(0, scale² I)."""

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")

    def _log_scale(self, dim: int, dtype: DTypeLike) -> Float[Array, " d"]:
        return jnp.full(dim, math.log(self.scale), dtype)


@spec
class Diagonal(_Scaled):
    """q = N(b, diag σ²).

    Parameters
    ----------
    scale
        The initial σ; b starts at 0.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Diagonal(scale=0.5))
    """

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        return TriangularMap(AffineHead(jnp.zeros(dim, dtype), self._log_scale(dim, dtype)), None)


@spec
class FullRank(_Scaled):
    """q = N(b, LLᵀ) with a lower-triangular L of positive diagonal.

    Parameters
    ----------
    scale
        L starts at `scale` · I; b starts at 0.
    tails
        Whether x = b + L h(z), where h gives each coordinate tails of a learned weight, from nearly Gaussian ones to
        those of a Cauchy distribution.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.FullRank(), gradient="l2")
    """

    tails: bool = False

    def __post_init__(self):
        super().__post_init__()
        require_instance("tails", self.tails, bool)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        shift, lower = jnp.zeros(dim, dtype), jnp.zeros((dim, dim), dtype)
        head = LowerTriangularHead(shift, self._log_scale(dim, dtype), lower)
        return TriangularMap(TailedHead.light(head, dtype) if self.tails else head, None)


class LinearMap(AbstractGenerator):
    """x = b + W z, so q = N(b, WWᵀ)."""

    weight: Float[Array, "d d"]
    bias: Float[Array, " d"]

    @property
    def injective(self) -> bool:
        """True: W is invertible almost everywhere, and stays so while log|det W| is finite."""
        return True

    @property
    def dim(self) -> int:
        """d."""
        return self.bias.shape[0]

    @property
    def constant_head(self) -> bool:
        """True: A = W."""
        return True

    def head(self, z_head):
        """Return b + W z."""
        return product(self.weight, z_head) + self.bias

    def head_jacobian(self, z_head):
        """Return W."""
        return lx.MatrixLinearOperator(self.weight)

    def inverse(self, x):
        """Return W^{-1}(x − b)."""
        return jnp.linalg.solve(self.weight, x - self.bias)


@spec
class Linear(Generator):
    """q = N(b, WWᵀ) with any matrix W, from W = I and b = 0.

    It is injective wherever W is invertible, which is almost everywhere.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Linear(), gradient="functional")
    """

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> LinearMap:
        """Build the map for a target of `dim` dimensions."""
        return LinearMap(jnp.eye(dim, dtype=dtype), jnp.zeros(dim, dtype))


class CopulaMap(AbstractGenerator):
    """f(z) = S⁻¹ T(S z)."""

    marginals: BentHead
    """T."""
    factor: Float[Array, "d d"]
    """S, lower-triangular; it is not trained."""

    @property
    def injective(self) -> bool:
        """True, by construction."""
        return True

    @property
    def dim(self) -> int:
        """d."""
        return self.marginals.dim

    def around(self, scale: Float[Array, "d d"]) -> "CopulaMap":
        """The same map for a posterior in coordinates x = b + Lu, L = `scale`."""
        factor = scale / jnp.linalg.norm(scale, axis=1, keepdims=True)
        return CopulaMap(self.marginals, factor)

    def head(self, z_head):
        """Return f(z)."""
        return self._spread(self.marginals(self._joined(z_head)))

    def head_jacobian(self, z_head):
        """Return S⁻¹ diag(T′) S."""
        slopes = jnp.exp(self.marginals.log_slopes(self._joined(z_head)))
        return lx.MatrixLinearOperator(self._spread(slopes[:, None] * self._fixed))

    def head_log_det(self, z_head):
        """Return 1, and Σ log T′."""
        log_det = self.marginals.log_slopes(self._joined(z_head)).sum()
        return jnp.ones_like(log_det), log_det

    def transform_and_log_det(self, z):
        """Return f(z), 1 and Σ log T′, in one pass."""
        bent, log_det = self.marginals.transform_and_log_det(self._joined(z))
        return self._spread(bent), jnp.ones_like(log_det), log_det

    def inverse(self, x):
        """Return S⁻¹ T⁻¹(S x)."""
        return self._spread(self.marginals.inverse(self._joined(x)))

    def solve_transposed(self, z: Float[Array, " d"], v: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return J⁻ᵀ v = Sᵀ diag(T′)⁻¹ S⁻ᵀ v."""
        at_x = solve_triangular(self._fixed, v, trans=1, lower=True)
        return product(at_x * jnp.exp(-self.marginals.log_slopes(self._joined(z))), self._fixed)

    @property
    def _fixed(self) -> Float[Array, "d d"]:
        return jnp.tril(jax.lax.stop_gradient(self.factor))

    def _joined(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return S z."""
        return product(self._fixed, z)

    def _spread(self, y: Float[Array, "d *n"]) -> Float[Array, "d *n"]:
        """Return S⁻¹ y."""
        return solve_triangular(self._fixed, y, lower=True)


@spec
class Copula(Generator):
    """A Gaussian copula: the Gaussian that training starts from, with each coordinate of x bent by itself.

    Each coordinate gets a skewness and tails of its own, by the sinh-arcsinh transformation; correlations stay those of
    the Gaussian. `gpvi.fit` uses it in more than 128 dimensions where it should remove a quarter or more of what the
    Gaussian misses.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Copula(), learning_rate=0.01)
    """

    def choices(self, dim: int) -> str:
        """Describe the generator."""
        return "a Gaussian copula with marginals that bend"

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> CopulaMap:
        """Build the map for a target of `dim` dimensions, around the standard normal."""
        return CopulaMap(BentHead.straight(dim, dtype), jnp.eye(dim, dtype=dtype))
