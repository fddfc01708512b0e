r"""From a direction φ on draws to the gradient of the parameters that made them.

Eq. 4: ∇_θ J = −E_z[(∂f/∂θ)ᵀ φ(z)], φ held fixed: one vjp, whatever made φ.
Beside it the pathwise gradient of Eq. 3, E_z[−log p(f(z)) − log|det J(z)|], whose cotangents are
the score on x and 1 on log|det J|; the same vjp takes both.
"""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from gpvi.generators import AbstractGenerator

Carrier = TypeVar("Carrier", bound=eqx.Module)


def push(
    carrier: Carrier, z: PyTree
) -> tuple[Float[Array, "n d"], Callable[[Float[Array, "n d"]], Carrier]]:
    """The draws x, and the map φ ↦ −Σ_i (∂x_i/∂θ)ᵀ φ_i back to the carrier's parameters."""
    params, static = eqx.partition(carrier, eqx.is_inexact_array)
    x, vjp = jax.vjp(lambda p: eqx.combine(p, static).particles(z), params)
    return x, lambda direction: vjp(-direction)[0]


def push_with_log_det(
    generator: AbstractGenerator, z: Float[Array, "n d"], learned: PyTree = eqx.is_inexact_array
) -> tuple[
    Float[Array, "n d"],
    Float[Array, " n"],
    Float[Array, " n"],
    Callable[[Float[Array, "n d"], Float[Array, " n"]], PyTree],
]:
    """The draws x with sign and log|det J|, and (φ, w) ↦ −Σ_i (∂x_i/∂θ)ᵀ φ_i − Σ_i w_i ∂ log|det J_i|/∂θ.

    `learned` restricts θ to some of the parameters; the others are held fixed and get None.
    """
    params, static = eqx.partition(generator, learned)

    def forward(p):
        x, sign, log_det = jax.vmap(eqx.combine(p, static).transform_and_log_det)(z)
        return (x, log_det), sign

    (x, log_det), vjp, sign = jax.vjp(forward, params, has_aux=True)
    return x, sign, log_det, lambda direction, weight: vjp((-direction, -weight))[0]
