r"""Hamiltonian Monte Carlo and the no-U-turn sampler by BlackJAX, as methods.

A step is one transition of every chain, x ↦ x′ along the Hamiltonian flow of −log p(x) + ½ vᵀM⁻¹v. The first `warmup`
steps tune the step size ε by dual averaging of the acceptance rate and M⁻¹ by the variance of the positions, in Stan's
windows of doubling length (Carpenter et al. 2017); the rest write every `thin`-th position to a table. All chains move
in one program and share ε and M, so each window uses the positions of all chains, and no chain waits for another one
with a smaller step.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi.errors import InputError
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.methods.carriers import Chains
from gpvi.specs import (
    is_number,
    is_whole,
    require_between,
    require_choice,
    require_count,
    require_positive,
    spec,
)
from gpvi.targets.density import Density

STARTS = 100
"""The largest number of times to redraw starting points at which log p or its score is not finite."""

WINDOWED = 150
"""The shortest warm-up that adapts M, 75 + 25 + 50 steps: in a shorter one ε could not adapt to the new M."""


class Walkers(NamedTuple):
    """The current position of each chain, with log p and its score there."""

    position: Float[Array, "c d"]
    log_density: Float[Array, " c"]
    score: Float[Array, "c d"]


class Tuning(NamedTuple):
    """ε and M⁻¹, and the states of BlackJAX's adaptations; None if nothing is adapted."""

    step_size: Scalar
    inverse_mass: Float[Array, " d"] | Float[Array, "d d"]
    averaging: PyTree
    moments: PyTree


class Progress(NamedTuple):
    """The number of transitions so far, and everything else that the next one needs."""

    done: Int[Array, ""]
    walkers: Walkers
    tuning: Tuning


@runtime_checkable
class Proposing(Protocol):
    """A density that also offers points from elsewhere, drawn independently of the chains, as a generator can.

    After each transition every chain then proposes to move to such a point x′ ~ q, and does so with probability
    min(1, p(x′) q(x) / p(x) q(x′)): an independence Metropolis step (Tierney 1994), exact whatever q is, by which
    chains change between modes that no trajectory connects.
    """

    def propose(
        self, n: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]: ...
    def log_proposal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]: ...


class _Transition(NamedTuple):
    walkers: Walkers
    acceptance: Float[Array, " c"]
    divergent: Bool[Array, " c"]
    leapfrogs: Int[Array, " c"]


@dataclass(frozen=True)
class MarkovChains(Method):
    """Markov chains whose transitions leave the posterior invariant: no density, and no draws beyond those kept."""

    chains: int = 4
    draws: int = 1_000
    warmup: int = 1_000
    thin: int = 1
    step_size: float | None = None
    acceptance: float = 0.8
    mass: Literal["diagonal", "dense"] = "diagonal"

    generative: ClassVar[bool] = False
    density: ClassVar[bool] = False
    headline: ClassVar[str] = "acceptance"
    full_data: ClassVar[bool] = True

    def __post_init__(self):
        require_count("chains", self.chains, "R̂ needs 2 or more; 4 is usual.")
        require_count("draws", self.draws, "1000 draws of each chain are usual.")
        require_count("thin", self.thin, "1 keeps every draw.")
        require_choice(self.mass, ("diagonal", "dense"), "mass")
        if self.step_size is not None:
            require_positive("step_size", self.step_size, "None adapts it.")
        if not is_whole(self.warmup) or self.warmup < 0:
            raise InputError(f"warmup is {self.warmup!r}; it must be a whole number ≥ 0.")
        if self.step_size is None and self.warmup < 20:
            raise InputError(
                f"warmup is {self.warmup}; adapting the step size takes at least 20 transitions. "
                "Try 1000, or give step_size=."
            )
        require_between("acceptance", self.acceptance, 0, 1)

    @abstractmethod
    def kernel(self) -> Callable[..., tuple[Any, Any]]:
        """Return BlackJAX's transition of one chain: (key, state, log_density, ε, M⁻¹) → (state, info)."""

    def jittered(self, step_size: Scalar, *, key: PRNGKeyArray) -> Scalar:
        """Return the step size of one transition."""
        return step_size

    @property
    def fixed_draws(self) -> int:
        """chains · draws."""
        return self.chains * self.draws

    @property
    def transitions(self) -> int:
        """warmup + draws · thin."""
        return self.warmup + self.draws * self.thin

    def default_steps(self) -> int:
        """Return the total number of transitions."""
        return self.transitions

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Return the identity, since a transition moves the chains by itself."""
        return optax.identity()

    def check_run(self, steps: int, batch_size: int | None) -> None:
        """Refuse mini-batches, for which a transition is not exact, and steps that do not fill the table of draws."""
        super().check_run(steps, batch_size)
        if steps != self.transitions:
            raise InputError(
                f"steps is {steps}, but {self.warmup} of warm-up and {self.draws} draws of {self.thin} transitions "
                f"make {self.transitions}. Omit steps, and set {type(self).__name__}(warmup=…, draws=…, thin=…)."
            )

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Put the chains at the target's starting points, and make an empty table of draws."""
        table = Chains.empty(self.chains, self.draws, target.dim, target.dtype)
        walkers = _start(target, self.chains, key)
        progress = Progress(jnp.zeros((), jnp.int32), walkers, self._untuned(target))
        return State(Learner.start(table, optimizer, target.dtype), progress)

    def moved(self, state: State, target: Density, x: Float[Array, "c d"]) -> State:
        """Return the first state with the chains at other points, in the coordinates of `target`."""
        walkers = _walkers_at(target, x)
        return state._replace(auxiliary=state.auxiliary._replace(walkers=walkers))

    def prolonged(self, state: State) -> State:
        """Return a state that fills an empty table with further draws, without another warm-up."""
        table = jax.tree.map(jnp.zeros_like, state.learner.model)
        progress = state.auxiliary._replace(done=jnp.asarray(self.warmup, jnp.int32))
        return State(state.learner._replace(model=table), progress)

    def gradients(self, history: Mapping[str, np.ndarray], dim: int) -> int:
        """Return the number of leapfrogs of all chains, and of proposals if there are any."""
        leapfrogs = np.rint(self.chains * np.asarray(history["leapfrogs"], np.float64))
        proposals = history["jumped"].size if "jumped" in history else 0
        return int(leapfrogs.sum()) + self.chains * proposals

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Make one transition of every chain; then tune (during warm-up) or write the draws (after it)."""
        learner, (done, walkers, tuning) = state
        walkers = jax.lax.cond(
            done == 0, lambda: _walkers_at(target, walkers.position), lambda: walkers
        )  # a continued run may have other data, so log p is computed again
        step_key, key = jax.random.split(key)
        step_size = self.jittered(learner.damping * tuning.step_size, key=step_key)
        moved = self._transition(target, walkers, step_size, tuning.inverse_mass, key)
        jumps = {}
        if isinstance(target, Proposing):
            walkers, jumped = _jump(target, moved.walkers, key=jax.random.fold_in(key, 1))
            moved, jumps = moved._replace(walkers=walkers), {"jumped": jumped}
        after = done - self.warmup
        table = learner.model.write(
            jnp.maximum(after, 0) // self.thin,
            moved.walkers.position,
            moved.divergent,
            begins=after % self.thin == 0,
            ends=(after >= 0) & (after % self.thin == self.thin - 1),
        )
        tuning = self._tuned(tuning, done, moved.walkers.position, moved.acceptance.mean())
        dtype = target.dtype
        info = {
            "log_density": moved.walkers.log_density.mean(),
            "acceptance": moved.acceptance.mean(),
            "divergent": moved.divergent.mean(dtype=dtype),
            "step_size": step_size,
            "leapfrogs": moved.leapfrogs.mean(dtype=dtype),
            **jumps,
        }
        progress = Progress((done + 1) % self.transitions, moved.walkers, tuning)
        return State(learner._replace(model=table), progress), info

    def _transition(
        self,
        target: Density,
        walkers: Walkers,
        step_size: Scalar,
        inverse_mass: Float[Array, "..."],
        key: PRNGKeyArray,
    ) -> _Transition:
        from blackjax.mcmc.hmc import HMCState

        kernel = self.kernel()

        def move(key: PRNGKeyArray, walker: Walkers) -> _Transition:
            before = HMCState(*walker)  # pyright: ignore[reportArgumentType]
            state, info = kernel(key, before, target.log_density, step_size, inverse_mass)
            rate = jnp.nan_to_num(info.acceptance_rate)
            return _Transition(
                Walkers(*state), rate, info.is_divergent, jnp.asarray(info.num_integration_steps)
            )

        return jax.vmap(move)(jax.random.split(key, self.chains), walkers)

    def _untuned(self, target: Density) -> Tuning:
        dim, dtype = target.dim, target.dtype
        if self.step_size is not None:
            return Tuning(jnp.asarray(self.step_size, dtype), jnp.ones(dim, dtype), None, None)
        averaging, moments = self._adaptations()
        unit = jnp.ones(dim, dtype) if self.mass == "diagonal" else jnp.eye(dim, dtype=dtype)
        started = (averaging[0](1.0), moments[0](dim, unit))
        return Tuning(jnp.ones((), dtype), unit, *jax.tree.map(_as_float(dtype), started))

    def _tuned(
        self,
        tuning: Tuning,
        done: Int[Array, ""],
        position: Float[Array, "c d"],
        acceptance: Scalar,
    ) -> Tuning:
        """Adapt as Stan does: ε in every step of the warm-up, M⁻¹ at the end of each slow window."""
        if self.step_size is not None:
            return tuning
        (restart, average, averaged), (_, add, finish) = self._adaptations()
        slow, ends = self._schedule()[jnp.minimum(done, self.warmup - 1)]

        def adapt() -> Tuning:
            averaging = average(tuning.averaging, acceptance)
            moments = jax.lax.scan(lambda m, x: (add(m, x), None), tuning.moments, position)[0]
            moments = _chosen(slow, moments, tuning.moments)
            moments = _chosen(ends, finish(moments), moments)
            averaging = _chosen(ends, restart(averaged(averaging)), averaging)
            last = done == self.warmup - 1
            step_size = jnp.where(last, averaged(averaging), jnp.exp(averaging.log_step_size))
            adapted = Tuning(step_size, moments.inverse_mass_matrix, averaging, moments)
            return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), adapted, tuning)

        return jax.lax.cond(done < self.warmup, adapt, lambda: tuning)

    def _schedule(self) -> Bool[Array, "w 2"]:
        """Return for each transition whether it is in a slow window, and ends one; a short warm-up has none."""
        from blackjax.adaptation.window_adaptation import build_schedule

        if self.warmup < WINDOWED:
            return jnp.zeros((self.warmup, 2), bool)
        return jnp.asarray(build_schedule(self.warmup), bool)

    def _adaptations(self) -> tuple[tuple, tuple]:
        """Return BlackJAX's (start, update, result) for the dual averaging of ε, and for the moments behind M⁻¹."""
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
        from blackjax.adaptation.step_size import dual_averaging_adaptation

        averaging = dual_averaging_adaptation(self.acceptance)
        return averaging, mass_matrix_adaptation(self.mass == "diagonal")


@spec
class NUTS(MarkovChains):
    """The no-U-turn sampler (Hoffman & Gelman 2014).

    Parameters
    ----------
    chains
        Number of chains, run in parallel.
    draws
        Draws kept per chain; there are chains · draws in all.
    warmup
        Transitions before the first draw, in which step size and mass matrix are adapted.
    thin
        Transitions per kept draw.
    step_size
        None adapts it and the mass matrix; a number is used unchanged, with unit mass.
    acceptance
        Target acceptance rate for adapting the step size.
    mass
        Whether to adapt a "diagonal" or a "dense" M⁻¹; `gpvi.fit` whitens the posterior first, so the former is usually
        enough.
    max_doublings
        The largest number of doublings of a trajectory, which then has 2^max_doublings leapfrogs.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.NUTS(chains=2, draws=50, warmup=50)
    >>> posterior = gpvi.fit(target, method, key=key, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    max_doublings: int = 10

    about: ClassVar[About] = About(
        "the reference: draws from the posterior itself, checked by R̂ and ESS; full data only",
        "chains · leapfrogs (up to 1023) G",
        "Hoffman & Gelman 2014",
    )

    def __post_init__(self):
        super().__post_init__()
        require_count("max_doublings", self.max_doublings, "10 is usual.")

    def kernel(self) -> Callable[..., tuple[Any, Any]]:
        """Return BlackJAX's iterative NUTS."""
        from blackjax.mcmc.nuts import build_kernel

        return functools.partial(build_kernel(), max_num_doublings=self.max_doublings)


@spec
class HMC(MarkovChains):
    """Hamiltonian Monte Carlo with a fixed number of leapfrogs (Duane et al. 1987; Neal 2011).

    The paper's setting is `HMC(leapfrogs=25, step_size=5e-4, jitter=0.0, warmup=20_000, draws=5_000)`, in the target's
    own coordinates (`fit(init=None)`).

    Parameters
    ----------
    chains, draws, warmup, thin, step_size, acceptance, mass
        As for `NUTS`.
    leapfrogs
        Leapfrog steps per trajectory.
    jitter
        The step size of each transition is uniform on (1 ± jitter) ε. With a constant step size, a trajectory that
        returns to its starting point would do so every time.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.HMC(chains=2, draws=50, warmup=50, leapfrogs=4)
    >>> posterior = gpvi.fit(target, method, key=key, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    acceptance: float = 0.65
    leapfrogs: int = 16
    jitter: float = 0.3

    about: ClassVar[About] = About(
        "draws from the posterior itself at a fixed cost per step; full data only",
        "chains · leapfrogs G",
        "Duane et al. 1987; Neal 2011",
    )

    def __post_init__(self):
        super().__post_init__()
        require_count("leapfrogs", self.leapfrogs, "The paper has 25.")
        if not is_number(self.jitter) or not 0 <= self.jitter < 1:
            raise InputError(f"jitter is {self.jitter!r}; it must be 0 or more, and less than 1.")

    def jittered(self, step_size: Scalar, *, key: PRNGKeyArray) -> Scalar:
        """Return a step size drawn uniformly from (1 ± jitter) ε."""
        return step_size * jax.random.uniform(
            key, (), step_size.dtype, 1 - self.jitter, 1 + self.jitter
        )

    def kernel(self) -> Callable[..., tuple[Any, Any]]:
        """Return BlackJAX's HMC."""
        from blackjax.mcmc.hmc import build_kernel

        return functools.partial(build_kernel(), num_integration_steps=self.leapfrogs)


def _walkers_at(target: Density, position: Float[Array, "c d"]) -> Walkers:
    """Return chains at these positions, with log p and scores."""
    return Walkers(position, *jax.vmap(jax.value_and_grad(target.log_density))(position))


def _jump(target: Any, walkers: Walkers, *, key: PRNGKeyArray) -> tuple[Walkers, Scalar]:
    """Make one independence Metropolis step of every chain; return the share of chains that moved."""
    propose_key, accept_key = jax.random.split(key)
    chains = len(walkers.position)
    x, log_q = target.propose(chains, key=propose_key)
    proposed = _walkers_at(target, x)
    log_weight = walkers.log_density - target.log_proposal(walkers.position)
    gain = proposed.log_density - log_q - log_weight
    usable = jnp.isfinite(proposed.score).all(1)
    uniform = jax.random.uniform(accept_key, (chains,), gain.dtype, 1e-30, 1.0)
    accepted = usable & (jnp.log(uniform) < gain)
    return _chosen(accepted, proposed, walkers), accepted.mean(dtype=gain.dtype)


@eqx.filter_jit
def _start(target: Density, chains: int, key: PRNGKeyArray) -> Walkers:
    """Draw starting points, again for chains where log p or its score is not finite."""

    def finite(walkers: Walkers) -> Bool[Array, " c"]:
        return jnp.isfinite(walkers.log_density) & jnp.isfinite(walkers.score).all(1)

    def again(carry: tuple[Int[Array, ""], Walkers]) -> tuple[Int[Array, ""], Walkers]:
        tries, walkers = carry
        x = target.starting_points(chains, key=jax.random.fold_in(key, tries))
        return tries + 1, _chosen(finite(walkers), walkers, _walkers_at(target, x))

    nowhere = Walkers(
        jnp.zeros((chains, target.dim), target.dtype),
        jnp.full(chains, jnp.nan, target.dtype),
        jnp.zeros((chains, target.dim), target.dtype),
    )
    begun = jnp.zeros((), jnp.int32), nowhere
    return jax.lax.while_loop(
        lambda carry: (carry[0] < STARTS) & ~finite(carry[1]).all(), again, begun
    )[1]


def _chosen(condition: Bool[Array, "..."], first: PyTree, second: PyTree) -> PyTree:
    """Return `first` where the condition (a scalar, or one per leading index) holds, else `second`, leaf by leaf."""

    def choose(a: ArrayLike, b: ArrayLike) -> Array:
        trailing = (1,) * (jnp.ndim(b) - condition.ndim) if condition.ndim else ()
        return jnp.where(condition.reshape(condition.shape + trailing), a, b)

    return jax.tree.map(choose, first, second)


def _as_float(dtype: Any) -> Callable[[Any], Array]:
    """Return a function that converts numbers to arrays of one dtype; integers stay integers."""

    def convert(leaf: Any) -> Array:
        whole = jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
        return jnp.asarray(leaf, jnp.int32 if whole else dtype)

    return convert
