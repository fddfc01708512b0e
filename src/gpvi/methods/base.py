"""The interface of a method: `init` makes a state, `step` improves it, and the model inside it gives the draws.

A method knows nothing of loops, files or screens; `gpvi.fit` compiles `step` and repeats it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.outer_products import added_up, norm
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator, Generator
from gpvi.methods.carriers import Particles
from gpvi.methods.schedules import decaying_adam
from gpvi.specs import is_whole
from gpvi.targets.density import Density

Model = AbstractGenerator | Particles


class Learner(NamedTuple):
    """A model that an optimiser trains.

    Parameters
    ----------
    model
        The generator or the particles.
    moments
        The optimiser's state.
    damping
        A factor on every update; `gpvi.fit` lowers it after a step that was not finite.

    Examples
    --------
    >>> import optax
    >>> sgd = optax.sgd(0.5)
    >>> learner = gpvi.methods.Learner.start(jnp.ones(2), sgd, "float32")
    >>> learner.descend(sgd, jnp.array([1.0, 2.0])).model.tolist()
    [0.5, 0.0]
    """

    model: Any
    moments: PyTree
    damping: Scalar

    @classmethod
    def start(cls, model: PyTree, optimizer: optax.GradientTransformation, dtype: Any) -> "Learner":
        """Make a learner with a fresh optimiser state and undamped steps.

        Parameters
        ----------
        model
            Any PyTree; its floating-point arrays are the parameters.
        optimizer
            The optimiser that `descend` will be called with.
        dtype
            The dtype of the target.

        Returns
        -------
        Learner
            The learner before its first step.
        """
        moments = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return cls(model, moments, jnp.ones((), dtype))

    def descend(self, optimizer: optax.GradientTransformation, gradient: PyTree) -> "Learner":
        """Update the parameters once, against `gradient`. Where the gradient is not finite, they stay as they are.

        The update waits for the norm of the whole gradient, so that everything that reads the parameters runs before
        they change; otherwise the compiler would copy them in every step.

        Parameters
        ----------
        optimizer
            The optimiser that the learner was started with.
        gradient
            A PyTree like the model's parameters. Leaves may be unevaluated sums of outer products, as
            `gpvi.methods.pullback.Pull.products` returns them.

        Returns
        -------
        Learner
            The learner after the step.
        """
        params = eqx.filter(self.model, eqx.is_inexact_array)
        update, moments = optimizer.update(added_up(gradient), self.moments, params)
        length = jnp.where(jnp.isfinite(norm(gradient)), self.damping, 0.0)
        update = jax.tree.map(lambda u: length * u, update)
        return Learner(eqx.apply_updates(self.model, update), moments, self.damping)


@brief(calls=1)
def built(
    generator: Generator, dim: int, dtype: np.dtype, *, key: PRNGKeyArray
) -> AbstractGenerator:
    """Build a generator for a target of `dim` dimensions; compiled, since it takes dozens of small operations."""
    return generator.build(dim, key=key, dtype=dtype)


class State(NamedTuple):
    """Everything that the next step needs.

    Parameters
    ----------
    learner
        The model and its optimiser state.
    auxiliary
        What a solver, critic or sampler has learned; None if there is nothing.

    Examples
    --------
    >>> import optax
    >>> model = gpvi.methods.Particles(jnp.zeros((10, 2)))
    >>> state = gpvi.methods.State(
    ...     gpvi.methods.Learner.start(model, optax.sgd(0.1), "float32"), None
    ... )
    >>> state.learner.model.positions.shape
    (10, 2)
    """

    learner: Learner
    auxiliary: PyTree


Info = dict[str, Scalar]
"""Values that one step reports, by name; a non-finite value names the term that failed."""


class About(NamedTuple):
    """What a user needs to know to choose a method.

    Parameters
    ----------
    purpose
        What it is for.
    cost
        The cost of a step, for n draws, dimension d and k head coordinates; G is one gradient of log p.
    citation
        Who published it.

    Examples
    --------
    >>> gpvi.SVGD.about.cost
    'n G + n² d'
    """

    purpose: str
    cost: str
    citation: str


class Method(ABC):
    """A way to approximate a posterior: subclass it and decorate the subclass with `gpvi.specs.spec`.

    A subclass must define `init` and `step`, and have a field `learning_rate` or define `default_optimizer`. Both are
    traced: they must be pure functions of their arguments, and the state that `step` returns must have the shapes and
    dtypes of the one it was given. A subclass may change the class attributes below.

    Attributes
    ----------
    generative
        Whether the model is a generator, so that new draws can be made after training; otherwise it is a set of
        `Particles`. True by default.
    density
        Whether log q of the draws is known. True by default.
    headline
        The reported value that a progress bar shows. "elbo" by default.
    coordinates
        How `gpvi.fit` may whiten the posterior: "dense" (the default), or "diagonal", since only a diagonal scale
        keeps a factorised approximation factorised.
    full_data
        Whether every step needs all data, so that mini-batches are refused and the number of steps is the method's own.
        False by default.
    independent
        Whether particles never interact, so that each can stay on one device. False by default.
    sequential
        Whether a step has nothing that could be distributed over devices. False by default.
    about
        Purpose, cost and citation, for the library's table of methods.

    Examples
    --------
    >>> method = gpvi.SVGD(particles=20)
    >>> isinstance(method, gpvi.methods.Method), method.generative, method.default_steps()
    (True, False, 5000)
    """

    generative: ClassVar[bool] = True
    density: ClassVar[bool] = True
    headline: ClassVar[str] = "elbo"
    coordinates: ClassVar[Literal["dense", "diagonal"]] = "dense"
    full_data: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    about: ClassVar[About]
    learning_rate: float

    @abstractmethod
    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Make the state in which training starts.

        `gpvi.load` calls it with another target of the same `dim` and `dtype`, to learn the shapes of what a file
        holds: these must not depend on anything else of the target.

        Parameters
        ----------
        target
            The posterior to approximate, in whitened coordinates.
        optimizer
            The optimiser, for `Learner.start`.
        key
            A JAX key.

        Returns
        -------
        State
            Its `learner.model` is an `AbstractGenerator` if the method is generative, else `Particles`.
        """

    @abstractmethod
    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Take one step of training.

        Parameters
        ----------
        target
            The posterior, in whitened coordinates; `gpvi.targets.density.evaluate(target, x, batch)` gives log p and
            the scores at the rows of x.
        optimizer
            The optimiser, for `Learner.descend`.
        state
            The state that `init` or the last step returned.
        batch
            The mini-batch, or None for all data.
        key
            A JAX key, another in each step.

        Returns
        -------
        State
            The next state.
        Info
            Scalars to report, by name: always the same names. A step with a non-finite value is undone.
        """

    def default_steps(self) -> int:
        """Return the number of steps if none is given: 5,000, in which the default schedule settles."""
        return 5_000

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Make the optimiser if none is given: Adam at `learning_rate`, decaying to zero in each round.

        Parameters
        ----------
        *rounds
            The number of steps of each round; one number if training has a given length.

        Returns
        -------
        optax.GradientTransformation
            The optimiser, the same object for equal arguments.
        """
        return decaying_adam(self.learning_rate, *rounds)

    def rounds(self, dim: int) -> tuple[int, ...]:
        """Return the steps of each round if training may stop by itself; by default there are no rounds.

        After a round the draws are weighed against the posterior, and training stops where they fit. This needs exact
        densities.
        """
        return ()

    def choices(self, dim: int) -> str:
        """Describe what the method chooses by itself in this dimension, for the progress bar; "" if nothing."""
        return ""

    def gradients(self, history: Mapping[str, np.ndarray], dim: int) -> int | None:
        """Return how many gradients of log p the steps of this history took; None, the default, if unknown."""
        return None

    def concerns(self, state: State, history: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """Return what is wrong with a finished run that no single step shows, each with its remedy; nothing by default.

        `gpvi.fit` warns with each, and keeps it in the notes of the training.

        Parameters
        ----------
        state
            The last state.
        history
            Every reported term, one value per step.

        Returns
        -------
        tuple of str
            The notes.
        """
        return ()

    @property
    def fixed_draws(self) -> int | None:
        """The number of draws that a trained posterior consists of; None if it can make any number."""
        return None

    def check_run(self, steps: int, batch_size: int | None) -> None:
        """Refuse a run that the method cannot do, before anything is compiled.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method needs all data and there is a batch size.
        """
        if self.full_data and batch_size is not None:
            raise NotAvailableError(
                f"batch_size is {batch_size}, but {type(self).__name__} needs all data in every step: omit batch_size, "
                "or use GPVI, SVGD or DeepEnsemble, which accept mini-batches."
            )


class Suggestion(NamedTuple):
    """The method that a target recommends for itself, with an optional note for the user."""

    method: Method
    note: str = ""


def require_batches(value: Any) -> None:
    """Refuse anything but one or two sets of draws."""
    if not is_whole(value) or value not in (1, 2):
        raise InputError(
            f"batches is {value!r}; it must be 1 (one set of draws) or 2 (a separate set for the expectation)."
        )
