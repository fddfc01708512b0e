r"""Microcanonical Langevin chains, the last stage of training for small networks and tables.

A chain moves at constant speed along the flow of

    dx = u dt,    du = (I − u uᵀ) ∇log p(x) / (d − 1) dt  +  noise,    |u| = 1,

whose stationary distribution of x is p itself (Robnik et al. 2023; Robnik & Seljak 2023). The noise turns the direction
u by a random angle over a length L. BlackJAX's `mclmc` has the integrator; there is no accept/reject step, so the
step ε decides how far the draws are from p. Its error shows in the energy, which the exact flow conserves: the
variance of its change in one step grows as ε⁶. During the warm-up each chain adapts ε until this variance, divided by
d, is v = `energy_variance`:

    log ε  ←  log ε + κ (1 − min(ΔE²/(d v), K)),

whose fixed point has the right mean, and which no single large ΔE² throws off: a chain that starts in a narrow mode
makes many. What follows the warm-up uses the average of log ε.

Started at networks that fit the data already, such chains are the best known approximation of predictions for tables
of a few thousand rows (Sommer et al. 2024, 2025, whose energy variances are of the same size). A density that
factorises over the weights has to be narrow where the posterior is: what it misses is taken for noise.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi.errors import InputError
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.methods.carriers import Chains
from gpvi.specs import is_whole, require_count, require_positive, spec
from gpvi.targets.density import Density

FIRST_STEP = 1e-3
"""ε of the first step of the warm-up, divided by √dim."""
GAIN, OUTLIER = 0.05, 5.0
"""κ and K of the adaptation."""
AVERAGED = 0.02
"""The share of each step in the average of log ε."""
SHORTEST = 75
"""The shortest warm-up: ε has to find its value, and its average to follow."""


class Tuning(NamedTuple):
    """ε of each chain, and the average of its logarithm."""

    step_size: Float[Array, " c"]
    average: Float[Array, " c"]


class Progress(NamedTuple):
    """The number of steps so far, and everything else that the next one needs."""

    done: Int[Array, ""]
    position: Float[Array, "c d"]
    direction: Float[Array, "c d"]
    log_density: Float[Array, " c"]
    score: Float[Array, "c d"]
    tuning: Tuning


@spec
class MCLMC(Method):
    """Microcanonical Langevin Monte Carlo, without an accept/reject step (Robnik et al. 2023).

    Parameters
    ----------
    chains
        Number of chains, run in parallel.
    draws
        Draws kept per chain.
    warmup
        Steps before the first draw, in which the step size adapts. Each takes two gradients.
    thin
        Steps per kept draw.
    energy_variance
        The variance of the energy change of a step, per dimension, that the step size adapts to. Less is closer to the
        posterior, and slower.
    length
        The length over which the direction is forgotten, divided by √dim: about the standard deviation of a weight.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=5)
    >>> method = gpvi.bnn.MCLMC(chains=2, draws=50, warmup=100, thin=4)
    >>> posterior = gpvi.fit(target, method, key=key, init=None, progress=False)
    >>> posterior.particles.shape
    (100, 5)
    """

    chains: int = 4
    draws: int = 100
    warmup: int = 1_000
    thin: int = 20
    energy_variance: float = 0.1
    length: float = 0.3

    generative: ClassVar[bool] = False
    density: ClassVar[bool] = False
    headline: ClassVar[str] = "log_density"
    full_data: ClassVar[bool] = True
    about: ClassVar[About] = About(
        "networks for tables, from starts that fit the data already; full data, no accept/reject step",
        "2 chains G",
        "Robnik et al. 2023; Sommer et al. 2025",
    )

    def __post_init__(self):
        require_count("chains", self.chains, "R̂ needs 2 or more; 4 is usual.")
        require_count("draws", self.draws, "100 draws of each chain are usual.")
        require_count("thin", self.thin, "1 keeps the position after every step.")
        require_positive("energy_variance", self.energy_variance, "0.1 suits networks.")
        require_positive("length", self.length, "Try 0.3.")
        if not is_whole(self.warmup) or self.warmup < SHORTEST:
            raise InputError(
                f"warmup is {self.warmup!r}; adapting the step size takes at least {SHORTEST} steps. Try 1000."
            )

    @property
    def fixed_draws(self) -> int:
        """chains · draws."""
        return self.chains * self.draws

    def default_steps(self) -> int:
        """Return the total number of steps, warmup + draws · thin."""
        return self.warmup + self.draws * self.thin

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Return the identity, since the chains move by themselves."""
        return optax.identity()

    def check_run(self, steps: int, batch_size: int | None) -> None:
        """Refuse mini-batches, whose noise heats the chains, and steps that do not fill the table of draws."""
        super().check_run(steps, batch_size)
        if steps != self.default_steps():
            raise InputError(
                f"steps is {steps}, but {self.warmup} of warm-up and {self.draws} draws of {self.thin} steps make "
                f"{self.default_steps()}. Omit steps, and set MCLMC(warmup=…, draws=…, thin=…)."
            )

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Put the chains at the target's starting points, with random directions and an empty table of draws."""
        start_key, key = jax.random.split(key)
        position = jnp.asarray(target.starting_points(self.chains, key=start_key), target.dtype)
        direction = jax.random.normal(key, position.shape, target.dtype)
        direction = direction / jnp.linalg.norm(direction, axis=1, keepdims=True)
        log_density, score = _evaluated(target, position)
        first = jnp.full(self.chains, FIRST_STEP * target.dim**0.5, target.dtype)
        tuning = Tuning(first, jnp.log(first))
        progress = Progress(
            jnp.zeros((), jnp.int32), position, direction, log_density, score, tuning
        )
        table = Chains.empty(self.chains, self.draws, target.dim, target.dtype)
        return State(Learner.start(table, optimizer, target.dtype), progress)

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Move every chain by one step; then tune it (during warm-up) or write the draws (after it)."""
        learner, before = state
        log_density, score = jax.lax.cond(
            before.done == 0,
            lambda: _evaluated(target, before.position),
            lambda: (before.log_density, before.score),
        )  # a continued run may have other data
        before = before._replace(log_density=log_density, score=score)
        after, change, finite = self._moved(target, before, learner.damping, key)
        number = before.done - self.warmup
        table = learner.model.write(
            jnp.maximum(number, 0) // self.thin,
            after.position,
            ~finite,
            begins=number % self.thin == 0,
            ends=(number >= 0) & (number % self.thin == self.thin - 1),
        )
        failed = jnp.where(finite, change, jnp.nan)
        tuning = self._tuned(before, failed, target.dim)
        done = (before.done + 1) % self.default_steps()
        info = {
            "log_density": after.log_density.mean(),
            "energy_variance": (change**2).mean() / target.dim,
            "step_size": before.tuning.step_size.mean(),
            "divergent": (~finite).mean(dtype=target.dtype),
        }
        progress = after._replace(done=done, tuning=tuning)
        return State(learner._replace(model=table), progress), info

    def _moved(
        self, target: Density, before: Progress, damping: Scalar, key: PRNGKeyArray
    ) -> tuple[Progress, Float[Array, " c"], Bool[Array, " c"]]:
        """Return the chains after one step, the change of their energies, and whether each could move."""
        from blackjax.mcmc.integrators import IntegratorState
        from blackjax.mcmc.mclmc import build_kernel

        kernel, length = build_kernel(), self.length * target.dim**0.5

        def move(key: PRNGKeyArray, *chain: Any) -> tuple[Any, Any]:
            *at, step_size = chain
            state = IntegratorState._make(at)
            return kernel(key, state, target.log_density, 1.0, length, step_size)

        keys = jax.random.split(key, self.chains)
        at = (before.position, before.direction, before.log_density, before.score)
        moved, info = jax.vmap(move)(keys, *at, damping * before.tuning.step_size)
        after = before._replace(
            position=moved.position,
            direction=moved.momentum,
            log_density=moved.logdensity,
            score=moved.logdensity_grad,
        )
        return after, info.energy_change, info.nonans

    def _tuned(self, before: Progress, change: Float[Array, " c"], dim: int) -> Tuning:
        """Return ε after a step of the warm-up, and its average after the last; a step that failed counts as K."""
        step_size, average = before.tuning
        excess = jnp.nan_to_num(change**2 / (dim * self.energy_variance), nan=OUTLIER)
        next_size = step_size * jnp.exp(GAIN * (1 - jnp.minimum(excess, OUTLIER)))
        average = average + AVERAGED * (jnp.log(next_size) - average)
        last = before.done == self.warmup - 1
        tuned = Tuning(jnp.where(last, jnp.exp(average), next_size), average)
        warming = before.done < self.warmup
        return jax.tree.map(lambda new, old: jnp.where(warming, new, old), tuned, before.tuning)


def _evaluated(
    target: Density, position: Float[Array, "c d"]
) -> tuple[Float[Array, " c"], Float[Array, "c d"]]:
    """Return log p and its score at each chain."""
    return jax.vmap(jax.value_and_grad(target.log_density))(position)
