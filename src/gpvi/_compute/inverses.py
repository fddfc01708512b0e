"""Inverses, determinants and solutions with the k×k blocks of a Jacobian; a step needs one block for each draw.

They are computed from LU factors, except for float32 on an NVIDIA GPU. There a library factorises one pivot after the
other, at some microseconds each, and kernels of our own are faster (`gpvi._compute.gauss_jordan`).
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Float, Scalar

from gpvi._compute import nvidia

LARGEST = 512
"""The largest k for which our own kernels are used on an NVIDIA GPU."""
AMPERE = 8
"""The first generation of NVIDIA GPUs on which they are used. They were timed on the ninth."""


@jax.custom_jvp
def inverse(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The inverse A⁻¹."""
    return solve_transposed(a, jnp.eye(len(a), dtype=a.dtype))


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    (a,), (moved,) = primals, tangents
    x = inverse(a)
    return x, -x @ moved @ x


@jax.custom_jvp
def log_det(a: Float[Array, "k k"]) -> tuple[Scalar, Scalar]:
    """The sign of det A, and log|det A|, whose derivative is tr(A⁻¹ dA)."""
    sign, value = jnp.linalg.slogdet(a)
    return sign, value


@log_det.defjvp
def _log_det_jvp(primals, tangents):
    (a,), (moved,) = primals, tangents
    sign, value = log_det(a)
    return (sign, value), (jnp.zeros_like(sign), (inverse(a).T * moved).sum())


@jax.custom_jvp
def solve_transposed(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """The rows y with Aᵀy = v for each row of v, by the faster algorithm for the device and the size of A."""
    if takes_kernels(a):
        return jax.lax.platform_dependent(a, v, cuda=_by_exchanges, default=by_factors)
    return by_factors(a, v)


@solve_transposed.defjvp
def _solve_transposed_jvp(primals, tangents):
    (a, v), (moved, v_moved) = primals, tangents
    y = solve_transposed(a, v)
    return y, (v_moved - y @ moved) @ inverse(a)


def takes_kernels(a: Float[Array, "k k"]) -> bool:
    """Whether to use our own kernels: A is small and in float32, and there is one NVIDIA GPU, Ampere or later.

    These kernels cannot be partitioned over a mesh of several devices.
    """
    return len(a) <= LARGEST and a.dtype == jnp.float32 and nvidia.generation() >= AMPERE


def by_factors(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """The rows y with Aᵀy = v, from LU factors."""
    return lu_solve(lu_factor(a), v.T, trans=1).T


def _by_exchanges(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    from gpvi._compute import gauss_jordan

    return gauss_jordan.solve_transposed(a, v)
