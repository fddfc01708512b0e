"""Inverses of the k×k blocks of a Jacobian, of which a step needs one to a draw, and what is made of them.

They come from LU factors, but on an NVIDIA GPU, which takes the k pivots of a library's factors one after the other,
some microseconds to each: blocks in single precision have kernels of their own there (`gpvi.gauss_jordan`).
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Float, Scalar

LARGEST = 512
"""k up to which an NVIDIA GPU is given kernels of our own."""
AMPERE = 8
"""The first generation of NVIDIA GPUs that is given them; they were timed on the ninth."""


@jax.custom_jvp
def inverse(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """A⁻¹, in the way that suits the device and the size of A."""
    if jax.default_backend() == "cpu" or a.dtype != jnp.float32:
        return _by_factors(a)
    return on_an_accelerator(a)


def on_an_accelerator(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Exchanges where they have been tried, factors elsewhere."""
    if len(a) <= LARGEST and takes_kernels():
        return jax.lax.platform_dependent(a, cuda=_by_exchanges, default=_by_factors)
    return _by_factors(a)


def takes_kernels() -> bool:
    """Whether there is one NVIDIA GPU from Ampere on; a kernel of our own is not cut along a mesh of several."""
    major = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")[0]
    return jax.device_count() == 1 and major.isdecimal() and int(major) >= AMPERE


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


def solve_transposed(a: Float[Array, "k k"], v: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """The rows y with Aᵀy = v."""
    if jax.default_backend() == "cpu":
        return lu_solve(lu_factor(a), v.T, trans=1).T
    return jnp.matmul(v, inverse(a), precision="highest")


def _by_factors(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    return lu_solve(lu_factor(a), jnp.eye(len(a), dtype=a.dtype))


def _by_exchanges(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    from gpvi import gauss_jordan

    return gauss_jordan.inverse(a)
