r"""From a trained generator to Markov chains: draws that are exact in the limit, in coordinates that suit them.

A generator x = f(z) is an approximation, but it is also the best preconditioner there is: in its noise the posterior is
nearly N(0, I) (`gpvi.posterior.noise_space`). NUTS runs there, from draws that are chosen by their importance weights,
so that the chains begin in the posterior and the warm-up only has a step size to find. Where a first block of draws
mixes badly, the whitened coordinates, in which the generator was trained, get a block as well, and the chains go on in
whichever gives more effective draws for a gradient of log p. There, and for a generator of several components, which
has no single noise to run in, chains also jump to draws of the generator (`gpvi.posterior.proposals`).
"""

import dataclasses
import functools
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.diagnostics import mcmc
from gpvi.diagnostics.importance import (
    DEFAULT_DRAWS,
    draw_weighted,
    effective_share,
    smoothed_log_weights,
)
from gpvi.diagnostics.sampling import log_prob
from gpvi.diagnostics.verdict import DOUBTFUL_RHAT, TRUSTED_RHAT
from gpvi.errors import NotAvailableError, TrainingWarning, warn
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.methods import NUTS, Method
from gpvi.methods.base import State
from gpvi.methods.carriers import Chains, Particles, Sampler
from gpvi.posterior.history import Training
from gpvi.posterior.noise_space import NoiseSpace
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.proposals import WithProposals
from gpvi.progress import Meter, NullMeter, as_meter, shown
from gpvi.specs import as_key, require_count
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import Density
from gpvi.targets.target import Target
from gpvi.training.context import check_context
from gpvi.training.loop import AbandonedError, Watch, train
from gpvi.training.program import Plan, compile_chunk, limit_chunk_time
from gpvi.training.stopping import Outlook

NOISE, WHITENED = "the generator's noise", "whitened coordinates"
"""Where chains run."""
STARTED = "started at draws chosen by importance weights"
BLOCK = 250
"""Transitions of each chain in a block; a warm-up is one block."""
MOST_DOUBLINGS = 8
"""Trajectories of 255 leapfrogs at most: longer ones in a first block would cost as much as training."""
WELL_MIXED_SHARE = 0.1
"""Effective draws, as a share of the draws, above which other coordinates are not tried."""
DIVERGENT_SHARE = 0.01
"""The share of draws after a divergence up to which other coordinates are not tried."""
EXACT_CHAINS, EXACT_DRAWS, EXACT_ESS = 4, 1_000, 1_000
"""Of `exact=True`: chains, the draws of each at first, and the effective draws (bulk and tail) to reach."""
MOST_GRADIENTS = 2_000_000
"""Of `exact=True`: no doubling of the chains is begun if more gradients would be spent on them."""


class Mixing(NamedTuple):
    """How well chains have mixed: worst over coordinates, bulk and tail; and the draws that follow a divergence."""

    rhat: float
    ess: float
    divergences: int
    draws: int

    @property
    def poor(self) -> bool:
        """Whether other coordinates are worth a try."""
        few = self.ess < WELL_MIXED_SHARE * self.draws
        diverge = self.divergences > DIVERGENT_SHARE * self.draws
        return few or diverge or not self.rhat <= DOUBTFUL_RHAT

    def reaches(self, ess: int) -> bool:
        """Whether the chains agree and have this many effective draws."""
        return self.rhat <= TRUSTED_RHAT and self.ess >= ess

    def __str__(self) -> str:
        diverged = f", {self.divergences} after a divergence" if self.divergences else ""
        return f"R̂ {self.rhat:.3f}, {self.ess:.0f} effective of {self.draws:,} draws{diverged}"


class Goal(NamedTuple):
    """How long chains run: `draws` each, then twice as long until `ess` is reached or the gradients are spent."""

    chains: int
    draws: int
    ess: int = 0
    gradients: int = 0


class Relay(NullMeter):
    """Passes the progress of a block on to a meter that counts all blocks.

    Parameters
    ----------
    meter
        The meter of the whole work.
    first, total
        What was done before this block, and the most that is shown as done.
    """

    def __init__(self, meter: Meter, first: int, total: int):
        self._meter, self._first, self._total = meter, first, total

    def after(self, steps: int) -> "Relay":
        """Return the relay of a block before which so many more steps were taken."""
        return Relay(self._meter, self._first + steps, self._total)

    def update(self, done: int, message: str) -> None:
        """Pass it on, counted from the beginning of the work."""
        self._meter.update(min(self._first + done, self._total), message)


class Walk:
    """Markov chains in one set of coordinates, prolonged block by block with one compiled program."""

    def __init__(
        self,
        where: str,
        density: Density,
        into_training: Callable[[Float[Array, "n d"]], Float[Array, "n d"]],
        starts: Float[Array, "c d"],
        *,
        key: PRNGKeyArray,
    ):
        init_key, self._key = jax.random.split(key)
        method = NUTS(chains=len(starts), draws=BLOCK, warmup=BLOCK, max_doublings=MOST_DOUBLINGS)
        state = method.moved(method.init(density, optax.identity(), key=init_key), density, starts)
        plan = limit_chunk_time(Plan(method, optax.identity(), BLOCK), density, state)
        self.where = where
        self.interrupted = False
        self._method, self._density, self._plan = method, density, plan
        self._into_training = into_training
        self.starts = into_training(starts)
        self._state, self._program = state, compile_chunk(plan, density, state)
        self._blocks: list[Training] = []
        self._tables: list[Chains] = []

    @property
    def steps(self) -> int:
        """The transitions so far."""
        return sum(block.steps for block in self._blocks)

    @property
    def draws(self) -> int:
        """The draws of each chain so far."""
        return sum(int(table.kept) for table in self._tables)

    def advance(self, meter: Relay) -> None:
        """Run the next block: the warm-up at first, then draws."""
        own_key = jax.random.fold_in(self._key, len(self._blocks))
        self._state, block = train(
            self._plan,
            self._program,
            self._density,
            self._state,
            Watch(meter.after(self.steps)),
            key=own_key,
        )
        self.interrupted = block.steps < BLOCK
        table = self._state.learner.model
        rows = len(table.drawn)
        positions, divergent = self._into_training(table.drawn), table.divergent[:rows]
        self._tables.append(Chains(positions, divergent, table.kept, table.chains))
        self._blocks.append(block)
        self._state = self._method.prolonged(self._state)

    @property
    def gradients(self) -> int:
        """The gradients of log p so far."""
        return sum(block.gradients or 0 for block in self._blocks)

    def efficiency(self, density: Whitened) -> float:
        """Effective draws for a gradient of log p."""
        return self.mixing(density).ess / self.gradients

    def until(self, draws: int, meter: Relay) -> None:
        """Run blocks until each chain has this many draws."""
        while not self.interrupted and self.draws < draws:
            self.advance(meter)

    def chains(self) -> Chains:
        """The draws, in the coordinates of training."""
        tables = self._tables
        return Chains(
            jnp.concatenate([table.positions for table in tables]),
            jnp.concatenate([table.divergent for table in tables]),
            jnp.asarray(self.draws, jnp.int32),
            self._method.chains,
        )

    def mixing(self, density: Whitened) -> Mixing:
        """Judge the draws in the coordinates of training and in the target's own."""
        chains = self.chains()
        own = jax.vmap(density.affine)(chains.drawn)
        rhat, ess = mcmc.worst(chains.by_chain(chains.drawn), chains.by_chain(own))
        return Mixing(rhat, ess, chains.divergences, len(chains.drawn))

    def record(self) -> tuple[NUTS, Training]:
        """Return the method as if it had run at once, and how it went."""
        histories = [block.history for block in self._blocks]
        joined = {name: np.concatenate([each[name] for each in histories]) for name in histories[0]}
        seconds = sum(block.seconds for block in self._blocks)
        method = dataclasses.replace(self._method, draws=self.draws)
        return method, Training(self.steps, self.steps, seconds, joined, gradients=self.gradients)


class Begun(NamedTuple):
    """Chains in the coordinates that were chosen, the generator that they started from, and how it went.

    `gradients` are those that were spent on chains in other coordinates.
    """

    walk: Walk
    generator: AbstractGenerator
    story: tuple[str, ...]
    gradients: int = 0


def refine(
    posterior: Posterior,
    *,
    key: PRNGKeyArray | int,
    draws: int = 1_000,
    chains: int = 4,
    progress: bool | Meter = True,
) -> Posterior:
    """Run Markov chains from a trained generator: what `Posterior.refine` does."""
    check_context("refine", key)
    require_count("draws", draws, "1000 draws of each chain are usual.")
    require_count("chains", chains, "R̂ needs 2 or more; 4 is usual.")
    assert posterior.target is not None
    check_refinable(posterior.target, posterior.method, posterior.model)
    total = BLOCK + -(-draws // BLOCK) * BLOCK
    with shown(as_meter(progress), total, f"NUTS from {type(posterior.method).__name__}") as meter:
        own = Relay(meter, 0, total)
        return _refined(posterior, posterior.target, Goal(chains, draws), own, key=as_key(key))


class Lookout:
    """Looks at the chains that would follow, between the rounds of training, and keeps those that it can end for.

    Parameters
    ----------
    density
        The posterior in the coordinates of training.
    key
        The key with which chains are made exact.
    """

    def __init__(self, density: Whitened, *, key: PRNGKeyArray):
        self.key = key
        self._density = density
        self._kept: Begun | None = None

    def __call__(self, state: State) -> Outlook | None:
        """Run chains in the noise of the generator while they mix without a divergence; None if they cannot start.

        The gradients of chains that training ends for are counted with those that follow. Raises `AbandonedError` if
        it was interrupted.
        """
        generator, silent = state.learner.model, Relay(NullMeter(), 0, 0)
        try:
            begun = _in_noise(self._density, generator, EXACT_CHAINS, key=self.key)
        except NotAvailableError:
            return None
        for draws in (BLOCK, EXACT_DRAWS):
            begun.walk.until(draws, silent)
            if begun.walk.interrupted:
                signal.raise_signal(signal.SIGINT)
                raise AbandonedError
            mixing = begun.walk.mixing(self._density)
            if mixing.poor or mixing.divergences:
                return Outlook(None, begun.walk.gradients)
        self._kept = begun
        return Outlook(str(mixing), 0)

    def kept(self, generator: AbstractGenerator) -> Begun | None:
        """Return the chains that training ended for, if this is the generator that they run in."""
        if self._kept is not None and eqx.tree_equal(self._kept.generator, generator):
            return self._kept
        return None


def made_exact(posterior: Posterior, meter: Meter, lookout: Lookout) -> Posterior:
    """Refine until the chains agree and have `EXACT_ESS` effective draws, within `MOST_GRADIENTS`."""
    goal = Goal(EXACT_CHAINS, EXACT_DRAWS, EXACT_ESS, MOST_GRADIENTS)
    steps = posterior.training.steps
    assert posterior.target is not None
    own = Relay(meter, steps, steps)
    kept = lookout.kept(posterior.generator.generator)
    return _refined(posterior, posterior.target, goal, own, kept, key=lookout.key)


def check_refinable(target: Target, method: Method, model: Any) -> None:
    """Refuse what Markov chains cannot start from, with what to do instead."""
    name = type(method).__name__
    if isinstance(model, Chains):
        raise NotAvailableError(
            f"{name} makes Markov chains, which are exact in the limit already, and has no generator to start from: "
            "ask it for more draws. A refined posterior keeps its generator as .trained, to be refined again."
        )
    if isinstance(model, Particles):
        raise NotAvailableError(
            f"{name} holds a fixed set of draws, and no generator in whose noise chains could run. Train one with "
            "gpvi.GPVI(), or run gpvi.NUTS() on the target."
        )
    generator = model.generator if isinstance(model, Sampler) else model
    if not generator.injective:
        raise NotAvailableError(
            f"the generator of {name} may fold: several z then lead to one x, and a chain in z is not one of the "
            "posterior. Use an injective generator such as gpvi.generators.Triangular(), the default of GPVI."
        )
    if target.stream is not None or target.batch_size is not None:
        how = "streamed" if target.stream is not None else f"in batches of {target.batch_size}"
        raise NotAvailableError(
            f"the data are {how}, but a Markov chain is exact only with all of them in every step. Make the target "
            "without batch_size=, of data that fit into memory, or rely on diagnose() and resample()."
        )


def _refined(
    posterior: Posterior,
    target: Target,
    goal: Goal,
    meter: Relay,
    begun: Begun | None = None,
    *,
    key: PRNGKeyArray,
) -> Posterior:
    """Choose starting points and coordinates, and run the chains; the generator is kept beside them."""
    density = Whitened(target, posterior.affine)
    with target.precision():
        generator = posterior.generator.generator
        if begun is None:
            begun = _begun(density, generator, goal.chains, meter, key)
        walk, gradients, story = begun.walk, begun.gradients, [*begun.story]
        if walk.draws < mcmc.FEWEST_DRAWS:
            warn(
                "refining was interrupted before there were draws; this is the generator's posterior",
                TrainingWarning,
            )
            return posterior
        mixing = _prolonged(walk, goal, density, meter)
        model = walk.chains()
    meter.update(walk.steps, f"done: {mixing}")
    method, training = walk.record()
    story.append(
        f"{goal.chains} chains in {walk.where}: {mixing}, {training.gradients:,} gradients"
    )
    if not mixing.reaches(goal.ess) and goal.gradients:
        short = f"the chains fell short of R̂ {TRUSTED_RHAT} and {goal.ess:,.0f} effective draws: {mixing}"
        story.append(short)
        warn(f"{short}; see diagnose()", TrainingWarning)
    training = dataclasses.replace(
        training,
        notes=("; ".join(story),),
        gradients=gradients + (training.gradients or 0),
        interrupted=walk.interrupted,
    )
    return posterior.with_chains(method, model, training)


def _begun(
    density: Whitened,
    generator: AbstractGenerator,
    chains: int,
    meter: Relay,
    key: PRNGKeyArray,
) -> Begun:
    """Run a first block of draws in the better coordinates."""
    start_key, _, affine_key = jax.random.split(key, 3)
    meter.update(0, "choosing where to start")
    affine = density
    point = jnp.zeros((1, density.dim), density.dtype)
    if _available(log_prob, generator, point):
        affine = WithProposals(density.target, density.affine, generator)
    if affine is not density and not _available(jax.vmap(generator.inverse), point):
        u, quality = _starts_of_components(density, generator, chains, key=start_key)
        walk = Walk(WHITENED, affine, lambda u: u, u, key=affine_key)
        walk.until(BLOCK, meter)
        return Begun(walk, generator, (f"{STARTED} ({quality})",))
    begun = _in_noise(density, generator, chains, key=key)
    walk, story = begun.walk, begun.story
    walk.until(BLOCK, meter)
    if walk.interrupted or not walk.mixing(density).poor:
        return begun
    other = Walk(WHITENED, affine, lambda u: u, walk.starts, key=affine_key)
    other.until(BLOCK, meter)
    if other.interrupted:
        return begun._replace(gradients=other.gradients)
    better, left = sorted((walk, other), key=lambda each: each.efficiency(density), reverse=True)
    why = f"{left.where} gave fewer effective draws for a gradient ({left.mixing(density)})"
    return Begun(better, generator, (*story, why), left.gradients)


def _in_noise(
    density: Whitened, generator: AbstractGenerator, chains: int, *, key: PRNGKeyArray
) -> Begun:
    """Put chains at the starting points in the noise of a generator; none has moved yet."""
    start_key, noise_key, _ = jax.random.split(key, 3)
    noise_space = NoiseSpace(density, generator)
    z, quality = _starts(noise_space, chains, key=start_key)
    walk = Walk(NOISE, noise_space, functools.partial(_pushed, generator), z, key=noise_key)
    return Begun(walk, generator, (f"{STARTED} ({quality})",))


def _available(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a generator has this: an inverse, or a density at any point. A mixture has the latter only."""
    try:
        eqx.filter_eval_shape(function, *arguments)
    except NotAvailableError:
        return False
    return True


def _prolonged(walk: Walk, goal: Goal, density: Whitened, meter: Relay) -> Mixing:
    """Run the chains to the goal, doubling their length as long as the budget allows; return how they have mixed."""
    draws = goal.draws
    while True:
        walk.until(draws, meter)
        mixing = walk.mixing(density)
        doubled = 2 * walk.gradients
        if walk.interrupted or mixing.reaches(goal.ess) or doubled > goal.gradients:
            return mixing
        draws *= 2


def _starts(
    noise_space: NoiseSpace, chains: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "c d"], str]:
    """Return points z to start from, and how good their weights are."""
    draw_key, choice_key = jax.random.split(key)
    z = standard_normal(noise_space.generator, max(DEFAULT_DRAWS, 10 * chains), key=draw_key)
    return _chosen(z, _log_ratios(noise_space, z), chains, choice_key)


def _starts_of_components(
    density: Whitened, generator: AbstractGenerator, chains: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "c d"], str]:
    """Return points u to start from where there is no single z, and how good their weights are."""
    draw_key, choice_key = jax.random.split(key)
    drawn = draw_weighted(density, generator, max(DEFAULT_DRAWS, 10 * chains), key=draw_key)
    return _chosen(drawn.x, drawn.log_ratios, chains, choice_key)


def _chosen(
    points: Float[Array, "n d"], log_ratios: Float[Array, " n"], chains: int, key: PRNGKeyArray
) -> tuple[Float[Array, "c d"], str]:
    """Choose different points in proportion to their smoothed importance weights.

    The largest of log w + Gumbel noise are draws without replacement, so that chains do not begin at one point even if
    it has all the weight.
    """
    log_weights, k_hat = smoothed_log_weights(log_ratios)
    if int(jnp.isfinite(log_weights).sum()) < chains:
        raise NotAvailableError(
            f"log p is finite at fewer than {chains} of {len(points)} draws, so {chains} chains cannot start. Train "
            "again (see diagnose()), or look at target.debug()."
        )
    order = log_weights + jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    quality = f"k̂ {float(k_hat):.2f}, effective share {float(effective_share(log_weights)):.2f}"
    return points[jnp.argsort(-order)[:chains]], quality


@eqx.filter_jit
def _pushed(generator: AbstractGenerator, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.vmap(generator)(z)


@eqx.filter_jit
def _log_ratios(noise_space: NoiseSpace, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Log p − log q at the draws f(z): the density of z beside N(0, I)."""
    return noise_space.log_densities(z) - jax.vmap(log_standard_normal)(z)


Posterior._refined = staticmethod(refine)
