r"""From a direction φ on draws to the gradient of the parameters that made them.

J(f) = KL(q‖p) is a functional of f (Eq. 2), and through f_θ a function of θ (Eq. 3).
Eq. 4: ∇_θ J = −E_z[(∂f/∂θ)ᵀ φ(z)] with φ held fixed takes one vjp, whatever made φ.
The pathwise gradient, that of Eq. 3, E_z[−log p(f(z)) − log|det J(z)|], takes one vjp as well: its cotangents are the
score for x and 1 for log|det J|.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from gpvi._compute.outer_products import FEW, LONG, WIDE, Products, added_up, copies
from gpvi.generators import AbstractGenerator
from gpvi.generators.base import LastLayer
from gpvi.methods.carriers import Sampler
from gpvi.parallel.mesh import rows

Carrier = TypeVar("Carrier", bound=eqx.Module)


class Pull(Generic[Carrier]):
    """The linear map from cotangents of the draws to the gradient of the parameters."""

    def __init__(self, back: Callable[..., Carrier]):
        self._back = back

    def __call__(self, *cotangents: Array) -> Carrier:
        """Return the gradient."""
        return added_up(self._back(*cotangents))

    def products(self, *cotangents: Array) -> Carrier:
        """Return the gradient, in which that of a last layer may be unevaluated outer products (`Products`)."""
        return self._back(*cotangents)


def push(carrier: Carrier, z: PyTree) -> tuple[Float[Array, "n d"], Pull[Carrier]]:
    """Return the draws x, and the map φ ↦ −Σ_i (∂x_i/∂θ)ᵀ φ_i back to the carrier's parameters."""
    apart = None
    if isinstance(carrier, Sampler):
        apart = _apart(carrier.generator, carrier.generator.last_layer, z, lambda c: c.generator)
    params, static = _parted(carrier, eqx.is_inexact_array, apart)
    if isinstance(carrier, Sampler):
        x, vjp = jax.vjp(
            lambda p: rows(_each(lambda own, z: own.generator(z), p, static, z)), params
        )
    else:
        x, vjp = jax.vjp(lambda p: eqx.combine(p, static).particles(z), params)
    return x, Pull(lambda direction: _joined(vjp(-direction)[0], apart, direction))


def push_with_log_det(
    generator: AbstractGenerator, z: Float[Array, "n d"], learned: PyTree = eqx.is_inexact_array
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"], Pull[Any]]:
    """Return the draws x, sign and log|det J|, and the map (φ, w) ↦ −Σ_i (∂x_i/∂θ)ᵀ φ_i − Σ_i w_i ∂ log|det J_i|/∂θ.

    `learned` restricts θ to some of the parameters; the gradient of the others is None.
    """
    last = generator.last_layer
    if learned is not eqx.is_inexact_array or (last is not None and last.in_log_det):
        last = None
    apart = _apart(generator, last, z, lambda g: g)
    params, static = _parted(generator, learned, apart)

    def forward(p):
        x, sign, log_det = _each(lambda own, z: own.transform_and_log_det(z), p, static, z)
        return (x, log_det), sign

    (x, log_det), vjp, sign = jax.vjp(forward, params, has_aux=True)

    def back(direction: Float[Array, "n d"], weight: Float[Array, " n"]) -> Any:
        return _joined(vjp((-direction, -weight))[0], apart, direction)

    return x, sign, log_det, Pull(back)


def scale_gradient(
    generator: AbstractGenerator,
    z: Float[Array, "n d"],
    direction: Float[Array, "n d"],
    weight: Float[Array, " n"],
    inverse: Float[Array, "n k k"] | None,
) -> Any:
    """Return the gradient of `push_with_log_det` for the parameters of σ alone; a given A⁻¹ saves factorisations."""
    scales = generator.scale_parameters()
    if inverse is None:
        return push_with_log_det(generator, z, scales)[-1](direction, weight)
    params, static = eqx.partition(generator, scales)

    def one(p: PyTree, z: Float[Array, " d"], inverse: Float[Array, "k k"]) -> tuple[Array, Array]:
        own = eqx.combine(p, static)
        z_head, _ = own.split(z)
        log_det = own.head_log_det_given(z_head, inverse) + jnp.log(own.tail_scale(z_head)).sum()
        return own(z), log_det

    _, vjp = jax.vjp(lambda p: jax.vmap(one, (None, 0, 0))(p, z, inverse), params)
    return vjp((-direction, -weight))[0]


def _each(of: Callable, params: PyTree, static: PyTree, z: Float[Array, "n d"]) -> Any:
    """Return `of(model, z_i)` for every draw. If draws are few, each gets its own copy of long parameter vectors.

    The gradient of a shared parameter is the sum over the draws. On a CPU, XLA computes it by a reduction that is slow
    over so short an axis; the gradients of copies are summed by a matrix product instead
    (`gpvi._compute.outer_products.copies`).
    """
    few = len(z) <= FEW and jax.sharding.get_abstract_mesh().empty
    long = jax.tree.map(lambda leaf: few and leaf.ndim == 1 and leaf.size >= LONG, params)
    own = jax.tree.map(lambda yes, leaf: copies(leaf, len(z)) if yes else leaf, long, params)
    axes = jax.tree.map(lambda yes: 0 if yes else None, long)
    return jax.vmap(lambda own, z: of(eqx.combine(own, static), z), (axes, 0))(own, z)


class _Apart(NamedTuple):
    """A last layer whose gradient is formed from outer products and not by the vjp."""

    where: Callable[[Any], Any]
    features: Float[Array, "n w"]
    first: int


def _apart(
    generator: AbstractGenerator,
    last: LastLayer | None,
    z: Float[Array, "n d"],
    inside: Callable[[Any], AbstractGenerator],
) -> _Apart | None:
    """Return the parts of the last layer's gradient if draws are few and on one device; otherwise None."""
    if last is None or len(z) > FEW or not jax.sharding.get_abstract_mesh().empty:
        return None
    if last.weight(generator).shape[1] < WIDE:
        return None
    features = jax.vmap(last.features)(z[:, : generator.latent])
    return _Apart(lambda tree: last.weight(inside(tree)), features, last.first)


def _parted(tree: PyTree, learned: PyTree, apart: _Apart | None) -> tuple[PyTree, PyTree]:
    """Split a tree into the parameters that the vjp differentiates, and the rest."""
    params, static = eqx.partition(tree, learned)
    if apart is None:
        return params, static
    weight = apart.where(params)
    static = eqx.tree_at(apart.where, static, weight, is_leaf=lambda leaf: leaf is None)
    return eqx.tree_at(apart.where, params, None), static


def _joined(gradient: PyTree, apart: _Apart | None, direction: Float[Array, "n d"]) -> PyTree:
    """Put the gradient of the last layer, as outer products, into that of the other parameters."""
    if apart is None:
        return gradient
    products = Products(-direction[:, apart.first :], apart.features)
    return eqx.tree_at(apart.where, gradient, products, is_leaf=lambda leaf: leaf is None)
