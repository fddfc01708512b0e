"""The networks inside generators: hidden layers, the scale of the tail, and checks of their options."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi.errors import InputError
from gpvi.specs import is_whole, require_choice

ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "identity": lambda x: x,
}


class Trunk(eqx.Module):
    """The hidden layers of g_θ, z_head ↦ features; the identity if there are none.

    With a `rank` r the features are r linear combinations of those of the last layer, so that the output layer after
    them is W = U V with r columns in U.
    """

    layers: tuple[eqx.nn.Linear, ...]
    factor: Float[Array, "r w"] | None
    inputs: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        activation: str,
        rank: int | None = None,
        *,
        key: PRNGKeyArray,
        dtype: DTypeLike,
    ):
        widths = (inputs, *hidden)
        keys = jax.random.split(key, max(len(hidden), 1))
        self.factor = None
        if rank is not None:
            factor_key = jax.random.fold_in(key, len(hidden))
            normal = jax.random.normal(factor_key, (rank, widths[-1]), dtype)
            self.factor = normal / jnp.sqrt(widths[-1]).astype(dtype)
        self.layers = tuple(
            eqx.nn.Linear(a, b, key=k, dtype=dtype)
            for a, b, k in zip(widths, widths[1:], keys, strict=False)
        )
        self.inputs = inputs
        self.activation = activation

    def __call__(self, z_head: Float[Array, " k"]) -> Float[Array, " w"]:
        for layer in self.layers:
            z_head = ACTIVATIONS[self.activation](layer(z_head))
        return z_head if self.factor is None else self.factor @ z_head

    @property
    def linear(self) -> bool:
        """Whether the features are linear in z_head."""
        return not self.layers or self.activation == "identity"

    @property
    def width(self) -> int:
        """The number of features."""
        if self.factor is not None:
            return self.factor.shape[0]
        return self.layers[-1].weight.shape[0] if self.layers else self.inputs


class FixedScale(eqx.Module):
    """σ = λ, the hyper-parameter of Eq. 6."""

    value: float = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __call__(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        return jnp.full(self.size, self.value, features.dtype)


class LearnedScale(eqx.Module):
    """σ = exp(c), one learned c per coordinate; with a fixed λ, no coordinate's sd could fall below λ."""

    log_scale: Float[Array, " t"]

    def __call__(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        return jnp.exp(self.log_scale)


class ConditionalScale(eqx.Module):
    """σ(z_head) = exp(c + V features): the tail's spread may depend on the head, as in a funnel."""

    log_scale: Float[Array, " t"]
    weight: Float[Array, "t w"]

    def __call__(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        return jnp.exp(self.log_scale + self.weight @ features)


def check_network(hidden: object, activation: object) -> None:
    """Refuse invalid hidden widths and activations."""
    if not isinstance(hidden, tuple) or any(not is_whole(width) or width < 1 for width in hidden):
        raise InputError(
            f"hidden is {hidden!r}; it must be a tuple of widths ≥ 1, such as (64, 64)."
        )
    require_choice(activation, tuple(ACTIVATIONS), "activation")


def latent_size(latent: int | None, dim: int, default: int) -> int:
    """Return k: `latent` after a check against d, or the default, at most d."""
    if latent is None:
        return min(dim, default)
    if not is_whole(latent) or not 1 <= latent <= dim:
        raise InputError(f"latent is {latent!r}; it must be between 1 and the target's dim, {dim}.")
    return int(latent)
