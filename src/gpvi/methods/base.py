"""The interface of a method: `init` makes a state, `step` improves it, and the model inside it gives the draws.

A method knows nothing of loops, files or screens; `gpvi.fit` only scans `step`.
"""

import functools
import itertools
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.outer_products import added_up, norm
from gpvi.errors import InputError
from gpvi.generators import AbstractGenerator, Generator
from gpvi.methods.carriers import Particles
from gpvi.specs import is_whole
from gpvi.targets.density import Density

Model = AbstractGenerator | Particles


class Learner(NamedTuple):
    """A model and its optimiser state; `damping` shrinks every update after a non-finite step."""

    model: Any
    moments: PyTree
    damping: Scalar

    @classmethod
    def start(cls, model: PyTree, optimizer: optax.GradientTransformation, dtype: Any) -> "Learner":
        """Fresh moments and full steps."""
        moments = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return cls(model, moments, jnp.ones((), dtype))

    def descend(self, optimizer: optax.GradientTransformation, gradient: PyTree) -> "Learner":
        """One update of the parameters against `gradient`, parts of which may be unevaluated sums of products.

        It waits for the norm of the whole gradient, so that everything that reads the parameters runs before they
        change; otherwise the compiler would copy them in every step.
        """
        params = eqx.filter(self.model, eqx.is_inexact_array)
        update, moments = optimizer.update(added_up(gradient), self.moments, params)
        length = jnp.where(jnp.isfinite(norm(gradient)), self.damping, 0.0)
        update = jax.tree.map(lambda u: length * u, update)
        return Learner(eqx.apply_updates(self.model, update), moments, self.damping)


@eqx.filter_jit
def built(
    generator: Generator, dim: int, dtype: np.dtype, *, key: PRNGKeyArray
) -> AbstractGenerator:
    """A generator for a target of `dim` dimensions; compiled, since building it takes dozens of small operations."""
    return generator.build(dim, key=key, dtype=dtype)


class State(NamedTuple):
    """Everything the next step needs: the learner, and what a solver or critic has learned."""

    learner: Learner
    auxiliary: PyTree


Info = dict[str, Scalar]
"""Values that one step reports, by name; a non-finite value names the term that failed."""


class About(NamedTuple):
    """What a user needs to know to choose a method."""

    purpose: str
    cost: str
    """Cost of a step: n draws, dimension d, k head coordinates; G is one gradient of log p."""
    citation: str


@runtime_checkable
class Method(Protocol):
    """The contract of every method."""

    generative: ClassVar[bool]
    """Whether new draws can be made after training."""
    density: ClassVar[bool]
    """Whether log q of the draws is known."""
    headline: ClassVar[str]
    """The reported term that a progress bar shows."""
    coordinates: ClassVar[Literal["dense", "diagonal"]]
    """How the coordinates may be whitened: only a diagonal scale keeps a factorised posterior factorised."""
    about: ClassVar[About]

    def default_steps(self, dim: int) -> int:
        """The default number of steps."""
        ...

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """A schedule that decays over each round: at a constant rate every method stays at a noise floor."""
        ...

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Where training starts."""
        ...

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """One step."""
        ...


class Suggestion(NamedTuple):
    """The method that a target recommends for itself, with an optional note for the user."""

    method: Method
    note: str = ""


@runtime_checkable
class Selective(Protocol):
    """Optional part of the contract: a method that accepts only some numbers of steps or batch sizes."""

    def check_run(self, steps: int, batch_size: int | None) -> None:
        """Refuse an unsuitable run before any long compilation."""
        ...


@runtime_checkable
class Independent(Protocol):
    """Optional part of the contract: particles never interact, so each can stay on one device."""

    independent: ClassVar[Literal[True]]


@runtime_checkable
class Sequential(Protocol):
    """Optional part of the contract: nothing in a step can be distributed over devices."""

    sequential: ClassVar[Literal[True]]


def require_batches(value: Any) -> None:
    """Refuse anything but one or two sets of draws."""
    if not is_whole(value) or value not in (1, 2):
        raise InputError(
            f"batches is {value!r}; it must be 1 (one set of draws) or 2 (a separate set for the expectation)."
        )


def log_standard_normal(z: Float[Array, " d"]) -> Scalar:
    """log N(z; 0, I)."""
    return -0.5 * (z**2).sum() - 0.5 * z.size * jnp.log(2 * jnp.pi)


OPTIMIZERS = {"adam": optax.adam, "rmsprop": optax.rmsprop}


@functools.lru_cache(maxsize=64)
def decaying(algorithm: str, learning_rate: float, *rounds: int) -> optax.GradientTransformation:
    """One of `OPTIMIZERS`; each round, given by its number of steps, has a short warm-up and cosine decay to zero."""

    def one(steps: int) -> optax.Schedule:
        warm_up = max(1, steps // 50)
        length = max(steps, warm_up + 1)
        first = learning_rate / (warm_up + 1)
        return optax.warmup_cosine_decay_schedule(first, learning_rate, warm_up, length)

    ends = list(itertools.accumulate(rounds))
    return OPTIMIZERS[algorithm](optax.join_schedules([one(r) for r in rounds], ends[:-1]))


def decaying_adam(learning_rate: float, *rounds: int) -> optax.GradientTransformation:
    """Adam, warmed up and decayed to zero in each round."""
    return decaying("adam", learning_rate, *rounds)
