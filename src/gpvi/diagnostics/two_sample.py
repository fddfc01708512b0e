"""Two sets of draws compared with each other, such as a posterior's with reference draws."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from gpvi.errors import InputError
from gpvi.kernels import RBF, median, squared_distances


@jax.jit
def maximum_mean_discrepancy(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Scalar:
    """Unbiased MMD² = E k(x, x′) + E k(y, y′) − 2 E k(x, y) between two sets of draws (Gretton et al. 2012).

    k is the RBF kernel whose bandwidth is the median squared distance between the two sets, or 1 if that is 0.

    Parameters
    ----------
    x, y
        The two sets, one draw in each row; at least two draws each.

    Returns
    -------
    Scalar
        About 0, with either sign, if both sets come from one distribution.

    Raises
    ------
    gpvi.errors.InputError
        If a set has fewer than two draws.

    Examples
    --------
    >>> x, y = jax.random.normal(key, (2, 500, 3))
    >>> bool(abs(gpvi.diagnostics.maximum_mean_discrepancy(x, y)) < 0.01)
    True
    """
    if min(len(x), len(y)) < 2:
        raise InputError(f"there are {len(x)} and {len(y)} draws; both sets need at least two.")
    kernel, typical = RBF(1.0), median(squared_distances(x, y))
    unit = jax.lax.rsqrt(jnp.where(typical > 0, typical, 1.0))

    def mean_of_pairs(draws: Float[Array, "n d"]) -> Scalar:
        value = kernel(unit * draws, unit * draws).value
        return (value.sum() - jnp.trace(value)) / (len(draws) * (len(draws) - 1))

    across = kernel(unit * x, unit * y).value.mean()
    return mean_of_pairs(x) + mean_of_pairs(y) - 2 * across
