r"""The least-squares solver: Thm 3.1 for a generator that fills a k-dimensional surface of R^d, not R^d itself.

Eq. 6 with a negligible λ maps R^k to a surface. With J = ∂g/∂z_head, of size d × k, the density of its draws on the
surface is N(z_head) / det(JᵀJ)^{1/2}. For f + εφ the entropy changes by ε E[tr(J⁺ ∂φ/∂z_head)], and the reproducing
property ∂φ_i/∂z_l = ⟨φ_i, ∂_l k⟩ turns this into the entropy term of Thm 3.1 with (J⁺)ᵀ in place of J^{-T}:

    y = J (JᵀJ)^{-1} ∇k,  the shortest of all y with Jᵀy = ∇k.

All d weights take part in it, not the first k alone. Noise of deviation λ around the surface makes it
y = J (JᵀJ + λ²I)^{-1} ∇k, exactly so for a linear g: its draws have covariance JJᵀ + λ²I. Where JᵀJ is
nearly singular, as rectified units make it, λ² keeps y bounded.

With J = W ∂h, for the layers h before the last, JᵀJ = ∂hᵀ(WᵀW)∂h, and y is W times a vector of their width: W is read
twice in a step, and no d × k array is formed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpvi._compute.inverses import solve_transposed
from gpvi._compute.precision import product
from gpvi.errors import NotAvailableError
from gpvi.generators import AbstractGenerator, Head
from gpvi.generators.networks import FixedScale
from gpvi.generators.residual import ResidualMap
from gpvi.solvers.base import InverseProduct, Solver, largest_root_ratio
from gpvi.specs import require_positive, spec


@spec
class LeastSquares(Solver):
    """J (JᵀJ + λ²I)^{-1} ∇k with the d × k Jacobian of g, for `Residual` with a fixed λ and a kernel on the head.

    Parameters
    ----------
    floor
        The least λ² in units of the mean eigenvalue of JᵀJ: directions of less than this are not inverted.

    Examples
    --------
    >>> method = gpvi.GPVI(
    ...     generator=gpvi.generators.Residual(scale=1e-6),
    ...     gradient="functional",
    ...     solver="least_squares",
    ... )
    """

    floor: float = 1e-4

    def __post_init__(self):
        require_positive("floor of the least squares", self.floor, "The default is 1e-4.")

    def init(self, generator, *, key):
        """Return None, since there is no state; refuse any generator but `Residual`."""
        _surface(generator)

    def mean_product(self, state, generator, gram):
        """Return the entropy term of Thm 3.1 on the surface, for all d coordinates of every z.

        Its residual is 0, as for any direct solver: what the surface cannot follow is left out, not solved wrongly.
        """
        surface, noise = _surface(generator)
        gramian = surface.weight.T @ surface.weight

        def inverted(z_head: Float[Array, " k"], v: Float[Array, "m k"]):
            slopes = jax.jacfwd(surface.trunk)(z_head)
            block = product(slopes.T, product(gramian, slopes))
            size = jnp.trace(block) / len(block)
            ridge = jnp.maximum(noise**2, self.floor * size)
            u = solve_transposed(block + ridge * jnp.eye(len(block)), v)
            return product(u, slopes.T), (product(u, block) * u).sum(-1)  # ‖y‖² = uᵀ JᵀJ u

        v = gram.gradients()
        features, squares = jax.vmap(inverted)(gram.x, v)
        value = features.mean(0) @ surface.weight.T
        stretch = largest_root_ratio(squares, (v**2).sum(-1))
        return InverseProduct(value, jnp.zeros((), value.dtype), stretch), state


def _surface(part: AbstractGenerator) -> tuple[ResidualMap, float]:
    """Return the generator whose head this is, if it is Eq. 6 with a fixed λ, and λ."""
    whole = part.generator if isinstance(part, Head) else None
    if not isinstance(whole, ResidualMap) or not isinstance(whole.scale, FixedScale):
        raise NotAvailableError(
            "solver is 'least_squares', which inverts the Jacobian of g in x = g(z_head) + λz. Use it with "
            "generator=gpvi.generators.Residual(scale=…), learn_scale=False and kernel='head', or use solver='block'."
        )
    return whole, whole.scale.value
