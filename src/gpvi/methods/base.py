"""What a method is: `init` makes a state, `step` improves it, and the model inside it gives the draws.

A method knows nothing of loops, files or screens; `gpvi.fit` scans `step` and knows nothing else.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi.carriers import Particles
from gpvi.generators import AbstractGenerator
from gpvi.target import Density

Model = AbstractGenerator | Particles


class Learner(NamedTuple):
    """A model and its optimiser; `damping` shrinks every update after a step that was not finite."""

    model: Any
    moments: PyTree
    damping: Scalar

    @classmethod
    def start(cls, model: PyTree, optimizer: optax.GradientTransformation, dtype: Any) -> "Learner":
        """Fresh moments and full steps."""
        moments = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return cls(model, moments, jnp.ones((), dtype))

    def descend(self, optimizer: optax.GradientTransformation, gradient: PyTree) -> "Learner":
        """One update of the parameters against `gradient`."""
        params = eqx.filter(self.model, eqx.is_inexact_array)
        update, moments = optimizer.update(gradient, self.moments, params)
        update = jax.tree.map(lambda u: self.damping * u, update)
        return Learner(eqx.apply_updates(self.model, update), moments, self.damping)


class State(NamedTuple):
    """All that the next step needs: the learner, and what a solver or critic has learned."""

    learner: Learner
    auxiliary: PyTree


Info = dict[str, Scalar]
"""What one step reports, by name; a value that is not finite names the term that failed."""


class About(NamedTuple):
    """What a user who chooses a method wants to know of it."""

    purpose: str
    cost: str
    """Of a step: n draws, dimension d, k head coordinates; G is one gradient of log p."""
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
    """How far the coordinates may be whitened: a factorised posterior stays so under a diagonal scale only."""
    about: ClassVar[About]

    def default_steps(self, dim: int) -> int:
        """How long to train when nobody says."""
        ...

    def default_optimizer(self, steps: int) -> optax.GradientTransformation:
        """A decaying schedule: at a constant rate every method sits on its optimiser's noise floor."""
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


def log_standard_normal(z: Float[Array, " d"]) -> Scalar:
    """log N(z; 0, I)."""
    return -0.5 * (z**2).sum() - 0.5 * z.size * jnp.log(2 * jnp.pi)


def norm(tree: PyTree) -> Scalar:
    """The Euclidean norm over all leaves."""
    return optax.tree.norm(tree)


def decaying_adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Adam with a short warm-up and cosine decay to zero."""
    warm_up = max(1, steps // 50)
    length = max(steps, warm_up + 1)
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, learning_rate, warm_up, length))
