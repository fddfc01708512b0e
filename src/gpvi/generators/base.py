r"""The interface of every generator x = f_θ(z), for one point; use `jax.vmap` for batches.

The noise z ∈ R^d is split in z_head ∈ R^k, which drives the networks, and z_tail. Every generator here has
the block-triangular Jacobian

    J = ∂f/∂z = [ A  0 ; B  diag σ ],   A = ∂x_head/∂z_head,  B = ∂x_tail/∂z_head,

(Eq. 7 of the paper, and the injective forms that go past it), so that
log|det J| = log|det A| + Σ log σ, and Jᵀy = v is one k×k solve and one vjp (`gpvi.solvers`).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree, Scalar

from gpvi._compute import inverses
from gpvi.errors import InputError, NotAvailableError
from gpvi.specs import is_whole, require_choice

ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "identity": lambda x: x,
}


class LastLayer(NamedTuple):
    """x_i = W h_i + … for the coordinates from `first` on, W nearly all of the parameters."""

    weight: Callable[[Any], Float[Array, "t w"]]
    """Where W is in the generator."""
    features: Callable[[Float[Array, " k"]], Float[Array, " w"]]
    """h as a function of z_head."""
    first: int
    in_log_det: bool
    """Whether log|det J| also depends on W."""


class AbstractGenerator(eqx.Module):
    """A map f: R^d → R^d with block-triangular Jacobian; subclasses are final."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """d."""

    @property
    @abstractmethod
    def latent(self) -> int:
        """k."""

    @property
    @abstractmethod
    def injective(self) -> bool:
        """Whether f is injective for every value of its parameters."""

    @abstractmethod
    def head(self, z_head: Float[Array, " k"]) -> Float[Array, " k"]:
        """x_head, a function of z_head alone."""

    @abstractmethod
    def tail(self, z_head: Float[Array, " k"], z_tail: Float[Array, " t"]) -> Float[Array, " t"]:
        """x_tail, affine in z_tail with slope σ."""

    @abstractmethod
    def tail_scale(self, z_head: Float[Array, " k"]) -> Float[Array, " t"]:
        """σ = ∂x_tail/∂z_tail, positive."""

    @property
    @abstractmethod
    def constant_head(self) -> bool:
        """Whether A is the same for every z, so that one factor serves all."""

    @property
    def last_layer(self) -> LastLayer | None:
        """The layer that holds nearly all parameters, if there is one."""
        return None

    def scale_parameters(self) -> PyTree[bool]:
        """Which parameters set σ of the tail: a kernel on z_head gives them no gradient."""
        return jax.tree.map(lambda _: False, self)

    def inverse(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The z with f(z) = x, if it has a closed form."""
        raise no_inverse(type(self).__name__)

    def __call__(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """x = f(z)."""
        z_head, z_tail = self.split(z)
        return jnp.concatenate([self.head(z_head), self.tail(z_head, z_tail)])

    def split(self, z: Float[Array, " d"]) -> tuple[Float[Array, " k"], Float[Array, " t"]]:
        """z_head, z_tail."""
        return z[: self.latent], z[self.latent :]

    def head_jacobian(self, z_head: Float[Array, " k"]) -> lx.AbstractLinearOperator:
        """A, with the structure a solver may exploit."""
        return lx.MatrixLinearOperator(jax.jacfwd(self.head)(z_head))

    def head_log_det(self, z_head: Float[Array, " k"]) -> tuple[Scalar, Scalar]:
        """Sign and log|det A|."""
        return inverses.log_det(self.head_jacobian(z_head).as_matrix())

    def head_log_det_given(
        self, z_head: Float[Array, " k"], inverse: Float[Array, "k k"]
    ) -> Scalar:
        """tr(A⁻¹A) with A⁻¹ held fixed, only to be differentiated: its gradient is that of log|det A|."""
        return (inverse.T * self.head_jacobian(z_head).as_matrix()).sum()

    def tail_transposed_product(
        self, z: Float[Array, " d"], y_tail: Float[Array, " t"]
    ) -> Float[Array, " k"]:
        """Bᵀ y_tail, one vjp."""
        z_head, z_tail = self.split(z)
        _, vjp = jax.vjp(lambda head: self.tail(head, z_tail), z_head)
        return vjp(y_tail)[0]

    def log_det(self, z: Float[Array, " d"]) -> tuple[Scalar, Scalar]:
        """Sign of det J and log|det J| (Eq. 1 needs the latter, the fold fraction the former)."""
        z_head, _ = self.split(z)
        sign, log_det = self.head_log_det(z_head)
        return sign, log_det + jnp.log(self.tail_scale(z_head)).sum()

    def transform_and_log_det(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Scalar, Scalar]:
        """x = f(z), sign of det J and log|det J|."""
        return self(z), *self.log_det(z)


class Head(AbstractGenerator):
    """The head of a generator as a separate generator on R^k, whose Jacobian is A."""

    generator: AbstractGenerator

    @property
    def injective(self) -> bool:
        """False: a map can be injective while its head is not."""
        return False

    @property
    def dim(self) -> int:
        """k."""
        return self.generator.latent

    @property
    def latent(self) -> int:
        """k."""
        return self.generator.latent

    @property
    def constant_head(self) -> bool:
        """As the generator's."""
        return self.generator.constant_head

    def head(self, z_head):
        """x_head."""
        return self.generator.head(z_head)

    def tail(self, z_head, z_tail):
        """Empty."""
        return z_tail

    def tail_scale(self, z_head):
        """Empty."""
        return z_head[:0]

    def head_jacobian(self, z_head):
        """A."""
        return self.generator.head_jacobian(z_head)

    def head_log_det(self, z_head):
        """Sign and log|det A|."""
        return self.generator.head_log_det(z_head)


class Trunk(eqx.Module):
    """The hidden layers of g_θ: z_head ↦ features; the identity when there are none.

    With a `rank` r the features are r linear combinations of the last layer's: the output layer after them is then
    W = U V, U of r columns.
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
    """σ = exp(c), one learned c per coordinate: with λ fixed, no coordinate's sd could fall below λ."""

    log_scale: Float[Array, " t"]

    def __call__(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        return jnp.exp(self.log_scale)


class ConditionalScale(eqx.Module):
    """σ(z_head) = exp(c + V features): the tail's spread may depend on the head, as in a funnel."""

    log_scale: Float[Array, " t"]
    weight: Float[Array, "t w"]

    def __call__(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        return jnp.exp(self.log_scale + self.weight @ features)


def no_inverse(name: str) -> NotAvailableError:
    """The error if f^{-1} is requested but has no exact form."""
    return NotAvailableError(
        f"{name} has no exact inverse, so log q(x) at a given x is not available. "
        "Use sample_and_log_prob for the density of its own draws, or the generators Linear or Triangular."
    )


def check_network(hidden: object, activation: object) -> None:
    """Refuse invalid hidden widths and activations."""
    if not isinstance(hidden, tuple) or any(not is_whole(width) or width < 1 for width in hidden):
        raise InputError(
            f"hidden is {hidden!r}; it must be a tuple of widths ≥ 1, such as (64, 64)."
        )
    require_choice(activation, tuple(ACTIVATIONS), "activation")


def latent_size(latent: int | None, dim: int, default: int) -> int:
    """k, checked against d."""
    if latent is None:
        return min(dim, default)
    if not is_whole(latent) or not 1 <= latent <= dim:
        raise InputError(f"latent is {latent!r}; it must be between 1 and the target's dim, {dim}.")
    return int(latent)
