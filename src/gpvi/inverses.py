r"""Inverses of the k×k blocks of a Jacobian, of which a step needs one to a draw, and what is made of them.

On a CPU they come from LU factors. An accelerator takes the k pivots one after the other, some microseconds to each.
Small blocks have a kernel of their own on an NVIDIA GPU (`gpvi.gauss_jordan`). For wide ones, matrix products alone
give the same by Newton's iteration X ← 2X − XAX, which squares I − XA (Schulz 1933). From
X = Aᵀ/(‖A‖₁‖A‖_∞) the eigenvalues of XA lie in (0, 1], and each pass at first doubles the small ones. With X scaled by
α = 2/(l + u) before it, where they lie in [l, u], it multiplies them by four: Chebyshev's polynomial of degree two in
I − XA (Pan, Schreiber 1991). A pass corrects what rounding did to the one before, so that all but the last may be rough
(TF32 on an NVIDIA GPU).

What is left of I − AX before the last pass is looked at: blocks that so many passes do not invert get more of them, and
then the factors after all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Bool, Float, Scalar

Attempt = tuple[Float[Array, "k k"], Bool[Array, ""]]
"""What stands for an inverse, and whether it may be off."""
SMALL = 64
"""k to which an NVIDIA GPU holds a block in registers."""
AMPERE = 8
"""The first generation of NVIDIA GPUs that is given that kernel; it was timed on the ninth."""
WIDE = 128
"""k from which on an accelerator is given products instead of factors."""


class Effort(NamedTuple):
    """How many passes are made, so many of them in full precision, and what they are made for."""

    passes: int
    full: int
    lowest: float
    """The least eigenvalue of AᵀA/(‖A‖₁‖A‖_∞) that they invert."""


EFFORTS = Effort(15, 3, 1e-6), Effort(24, 4, 1e-10)
"""For condition numbers to about 200, as a generator has at its start, and to 30,000; then come the factors."""
FRESH = 4
"""Rough passes after which AX is formed anew; their number is a multiple of it."""
MARGIN = 0.05
"""How far above u rough products may put an eigenvalue: beyond 2/α the iteration would diverge."""
TOLERANCE = 0.03
"""Of ‖I − AX‖ before the last pass, which squares it."""


@jax.custom_jvp
def inverse(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """A⁻¹, in the way that suits the device and the size of A."""
    if jax.default_backend() == "cpu" or a.dtype != jnp.float32:
        return _by_factors(a)
    return on_an_accelerator(a)


def on_an_accelerator(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Exchanges, factors or products by the size of A."""
    if len(a) >= WIDE:
        return jax.lax.platform_dependent(a, cpu=_by_factors, default=_by_products)
    if len(a) <= SMALL and takes_kernels():
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


def _by_products(a: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Newton's iteration with little effort, where that does not do with more, and where that does not, the factors.

    Loops of at most one round: over a batch of blocks they run only where some block needs it.
    """
    first, second = EFFORTS
    found = newton(a, first)
    for attempt in (lambda: newton(a, second), lambda: (_by_factors(a), jnp.zeros((), bool))):
        found = _once_more(found, attempt)
    return found[0]


def _once_more(found: Attempt, attempt: Callable[[], Attempt]) -> Attempt:
    """The attempt in place of what was found, where that may be off."""
    x, unsolved = found
    x, unsolved, _ = jax.lax.while_loop(
        lambda carry: carry[2], lambda _: (*attempt(), jnp.zeros((), bool)), (x, unsolved, unsolved)
    )
    return x, unsolved


def newton(a: Float[Array, "k k"], effort: Effort) -> Attempt:
    """X after all passes, and whether it may be off.

    X is kept without its scale t: a pass is X ← X − (αt/2) X AX, t ← 2αt. While passes are rough, AX goes along by
    the same rule, both in one product.
    """
    k, sizes = len(a), jnp.abs(a)
    rough = effort.passes - effort.full
    alphas = jnp.asarray(scalings(effort), a.dtype)

    def rough_pass(carry: tuple[Array, Array], alpha: Array) -> tuple[tuple[Array, Array], None]:
        both, scale = carry
        moved = jnp.matmul(both, both[k:], precision="high")
        return (both - 0.5 * alpha * scale * moved, 2 * alpha * scale), None

    def rough_passes(carry: tuple[Array, Array], some: Array) -> tuple[tuple[Array, Array], None]:
        x, scale = carry
        both = jnp.concatenate([x, jnp.matmul(a, x, precision="high")])
        (both, scale), _ = jax.lax.scan(rough_pass, (both, scale), some)
        return (both[:k], scale), None

    def full_pass(carry: tuple[Array, Array], alpha: Array) -> tuple[tuple[Array, Array], None]:
        x, _ = carry
        left = jnp.eye(k, dtype=a.dtype) - alpha * jnp.matmul(a, x, precision="highest")
        return (alpha * (x + jnp.matmul(x, left, precision="highest")), left), None

    start = a.T / (sizes.sum(0).max() * sizes.sum(1).max()), jnp.ones((), a.dtype)
    (x, scale), _ = jax.lax.scan(rough_passes, start, alphas[:rough].reshape(-1, FRESH))
    (x, left), _ = jax.lax.scan(full_pass, (scale * x, jnp.zeros_like(a)), alphas[rough:])
    return x, ~(jnp.linalg.norm(left) <= TOLERANCE)


def scalings(effort: Effort) -> list[float]:
    """α of each pass, for eigenvalues that begin in [l, 1] and lie in [1 − (1 − αl)², 1] after it."""
    found, lowest = [], effort.lowest
    for _ in range(effort.passes):
        margin = MARGIN if lowest < 0.5 else 0.0
        found.append(2 / (1 + margin + lowest))
        lowest = 1 - (1 - found[-1] * lowest) ** 2
    return found
