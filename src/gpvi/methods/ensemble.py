"""Deep ensembles: independent maximum-a-posteriori members (Lakshminarayanan et al. 2017)."""

from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray, PyTree

from gpvi._compute.outer_products import norm
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.methods.carriers import Particles
from gpvi.specs import require_count, require_positive, spec
from gpvi.targets.density import Density, evaluate


@spec
class DeepEnsemble(Method):
    """A deep ensemble: points that climb log p, each from a different start (Lakshminarayanan et al. 2017).

    The members are particles whose direction is the score alone, φ = s. Nothing keeps them apart, so they spread only
    over the modes that they end in; a log-concave posterior has just one. With an optimiser that acts on each
    coordinate separately, such as Adam, the members do not influence each other.

    Parameters
    ----------
    members
        Number of members. They start at points that the target's `initial` draws, as networks need it.
    learning_rate
        Of the default optimiser, before decay.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(
    ...     target, gpvi.DeepEnsemble(members=5), key=key, steps=10, progress=False
    ... )
    >>> posterior.particles.shape
    (5, 2)
    """

    members: int = 10
    learning_rate: float = 0.01

    generative: ClassVar[bool] = False
    density: ClassVar[bool] = False
    headline: ClassVar[str] = "log_density"
    independent: ClassVar[bool] = True
    about: ClassVar[About] = About(
        "predictions of networks that differ by their modes; no spread within one",
        "members G",
        "Lakshminarayanan et al. 2017",
    )

    def __post_init__(self):
        require_count("members", self.members, "5 to 10 are usual.")
        require_positive("learning_rate", self.learning_rate, "Try 0.01.")

    @property
    def particles(self) -> int:
        """The number of members, since the members are particles."""
        return self.members

    @property
    def fixed_draws(self) -> int:
        """The number of members."""
        return self.members

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Make the members at the target's starting points."""
        members = Particles(target.starting_points(self.members, key=key))
        return State(Learner.start(members, optimizer, target.dtype), None)

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Move every member one step uphill."""
        at = evaluate(target, state.learner.model.positions, batch)
        gradient = Particles(-at.score)
        info = {
            "log_density": at.mean(at.log_density),
            "best": jnp.where(at.finite, at.log_density, -jnp.finfo(target.dtype).max).max(),
            "gradient_norm": norm(gradient),
            "rejected": at.rejected,
        }
        return State(state.learner.descend(optimizer, gradient), state.auxiliary), info
