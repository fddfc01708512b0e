"""Whether a generator folds, and how well its head block A is conditioned.

Where det J changes sign the map folds: several z share an x, and log q of Eq. 1 is wrong there.
"""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PyTree, Scalar

from gpvi._compute.brief import brief
from gpvi.generators import AbstractGenerator


@brief
def fold_fraction(signs: Float[Array, " n"]) -> Scalar:
    """Return the share of draws whose sign of det J differs from that of the majority.

    The sign itself is only an orientation. Where it changes, J is singular in between and f folds. A fraction of zero
    is necessary for injectivity, not sufficient: a map can wrap around with det J > 0 everywhere. A singular J (sign 0
    or NaN) has no orientation and always counts as different.
    """
    return 1 - jnp.maximum((signs > 0).mean(), (signs < 0).mean())


@brief(calls=1)
def conditioning(generator: AbstractGenerator, z: PyTree[Array]) -> Scalar:
    """Return the largest condition number of the head block A over the rows of z."""

    def condition_number(point: PyTree[Array]) -> Scalar:
        block = generator.head_jacobian(generator.split(point)[0])
        if isinstance(block, lx.DiagonalLinearOperator):
            values = jnp.abs(lx.diagonal(block))
        else:
            values = jnp.linalg.svd(block.as_matrix(), compute_uv=False)
        return values.max() / values.min()

    return jax.vmap(condition_number)(z).max()
