"""Inverses of the k×k blocks of a Jacobian, of which a step needs one to a draw, and what is made of them.

They come from LU factors, but on an NVIDIA GPU, which takes the k pivots of a library's factors one after the other,
some microseconds to each: blocks in single precision have kernels of their own there (`gpvi._compute.gauss_jordan`).
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Float, Scalar

from gpvi._compute import nvidia

LARGEST = 512
"""k up to which an NVIDIA GPU is given kernels of our own."""
AMPERE = 8
"""The first generation of NVIDIA GPUs that is given them; they were timed on the ninth."""


@jax.custom_jvp
def inverse(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """A⁻¹."""
    return solve_transposed(a, jnp.eye(len(a), dtype=a.dtype))


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    (a,), (moved,) = primals, tangents
    x = inverse(a)
    return x, -x @ moved @ x


@jax.custom_jvp
def log_det(a: Float[Array, "k k"]) -> tuple[Scalar, Scalar]:
    """The sign of det A and log|det A|, whose derivative is tr(A⁻¹ dA)."""
    sign, value = jnp.linalg.slogdet(a)
    return sign, value


@log_det.defjvp
def _log_det_jvp(primals, tangents):
    (a,), (moved,) = primals, tangents
    sign, value = log_det(a)
    return (sign, value), (jnp.zeros_like(sign), (inverse(a).T * moved).sum())


@jax.custom_jvp
def solve_transposed(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """The rows y with Aᵀy = v, in the way that suits the device and the size of A."""
    if takes_kernels(a):
        return jax.lax.platform_dependent(a, v, cuda=_by_exchanges, default=by_factors)
    return by_factors(a, v)


@solve_transposed.defjvp
def _solve_transposed_jvp(primals, tangents):
    (a, v), (moved, v_moved) = primals, tangents
    y = solve_transposed(a, v)
    return y, (v_moved - y @ moved) @ inverse(a)


def takes_kernels(a: Float[Array, "k k"]) -> bool:
    """Whether A is small, in single precision, and there is one NVIDIA GPU from Ampere on.

    A kernel of our own is not cut along a mesh of several.
    """
    return len(a) <= LARGEST and a.dtype == jnp.float32 and nvidia.generation() >= AMPERE


def by_factors(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """The same from LU factors."""
    return lu_solve(lu_factor(a), v.T, trans=1).T


def _by_exchanges(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    from gpvi._compute import gauss_jordan

    return gauss_jordan.solve_transposed(a, v)
