"""`fit` trains a method on a target, `fit_seeds` on several targets side by side.

Both prepare (`preparation`), compile one chunk of steps (`program`), and run the chunks (`loop`); where the length is
left to the library, `fit` trains in rounds and attempts (`stopping`).
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi._compute.noise import divided, folded
from gpvi.errors import InputError, TrainingWarning, warn
from gpvi.exploration.search import Exploration, once_explored
from gpvi.methods import Method, as_method
from gpvi.methods.base import State
from gpvi.parallel import hosts
from gpvi.parallel.mesh import for_seeds
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.progress import Meter, as_meter, shown
from gpvi.specs import as_key
from gpvi.targets.coordinates import Whitened
from gpvi.targets.target import Target
from gpvi.training._prefetch import example
from gpvi.training.arguments import (
    check_arguments,
    check_one_form,
    check_targets,
    check_watching,
    checked_mesh,
)
from gpvi.training.checkpoint import Checkpoints, Log, identity, probes
from gpvi.training.context import check_context
from gpvi.training.loop import Callback, Watch, label, train
from gpvi.training.modes.particles import begun_at_particles
from gpvi.training.modes.rival import mixture_for
from gpvi.training.preparation import (
    BENT,
    Prepared,
    default_batch_size,
    first_state,
    planned,
    prepare,
    should_bend,
)
from gpvi.training.program import Plan, compile_chunk, limit_chunk_time, stack
from gpvi.training.refinement import Lookout, check_refinable, made_exact
from gpvi.training.stopping import (
    Candidate,
    Judge,
    best_attempt,
    fits_at_start,
    length_is_open,
)

RIVAL, PARTICLES = 1_000, 2_000
"""A mixture draws from the key folded with this number; attempts from those with smaller ones. A generator that is
shown the particles of exploration draws them with a larger one."""


def fit(
    target: Target,
    method: Method | str | None = None,
    *,
    key: PRNGKeyArray | int,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    progress: bool | Meter = True,
    callbacks: Sequence[Callback] = (),
    init: Literal["auto", "variational", "laplace"]
    | Posterior
    | Float[Array | np.ndarray, "n d"]
    | None = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    mesh: Mesh | int | None = None,
    exact: bool = False,
) -> Posterior:
    """Train a method on a target.

    By default GPVI trains in rounds until its draws fit the posterior, and begins anew, at most twice, if they cannot
    be trusted (see `gpvi.training.stopping`). If the Gaussian that the search for a start found fits already, nothing
    is trained: callbacks are not called, and a checkpoint holds nothing. If the draws do not fit and exploration found
    several modes, a mixture with a generator for each is trained beside it, and a second attempt begins with a
    generator that was fitted to the particles of exploration; the best of these is returned (see docs/exploration.md).
    What was chosen, and why training stopped, is kept in `posterior.training`.

    A draw at which log p or its gradient is not finite is pulled back to the nearest one that has a value, so that
    regions without values repel; averages use the remaining draws. A share of them above 5 % is reported in a warning.
    If more than half the draws of a step are not finite, or the step itself is not, the run goes back to its last good
    state with half the step size, at most eight times; then it stops there. A log-density that raises as it runs (in a
    callback) also ends the run at its last good state. Ctrl-C ends it after the current chunk and returns the posterior
    so far (see docs/surviving.md).

    Parameters
    ----------
    target
        The posterior to approximate.
    method
        A name such as "nuts", for a method with its default options, or an object such as `gpvi.NUTS(chains=8)`.
        `gpvi.GPVI()` by default, with another generator for networks. If log p and its gradient take more than 2²⁰
        operations, in up to 20 dimensions, it is `GPVI(gradient="l2", particles=128, first_round=250)`. In 129 to 3,000
        dimensions it has the generator `Copula`, where that is expected to remove a quarter or more of what the
        best Gaussian misses (see docs/choosing.md).
    key
        A JAX random key, or a seed such as 0; the same key gives the same posterior.
    steps, optimizer
        The number of steps and an Optax optimiser. By default the method's own, with a schedule that decays to zero.
    batch_size
        The number of data that a step sees, for targets in mini-batch form; all by default.
    progress
        True for a line on standard error, False for silence, or a `gpvi.progress.Meter`.
    callbacks
        Functions that are called with a `gpvi.Event` after each chunk of steps.
    init
        Where to start. "auto" searches for a Gaussian that brings the posterior near the standard normal (for d ≤
        200,000 and a target without starting points of its own, which networks have); "variational" and "laplace" name
        the way. None keeps the target's coordinates, around `target.initial`. A `Posterior` is continued. An array of
        points, (n, d), is where the particles of a particle method start.
    checkpoint
        A directory in which the run is saved as it goes. The same call resumes from the newest intact save, bit for bit
        as if it had never stopped; a finished run returns at once. SIGTERM and Ctrl-C save before the process ends.
    every
        The number of steps between two saves; by default one save per minute.
    mesh
        The devices to train on: their number, or a `jax.sharding.Mesh` whose axes "particles" and "data" distribute the
        draws of a step and the data. The result is that of one device, up to rounding (see docs/scaling.md).
    exact
        Whether to go on from the trained generator to Markov chains, as `Posterior.refine` does: four of 1,000 draws,
        then twice as many, until R̂ ≤ 1.01 and 1,000 draws are effective (bulk and tail), with at most two million
        gradients of log p. Training in rounds ends with the first whose draws fit (an effective share of at least 0.5,
        k̂ ≤ 0.7) and whose chains mix without a divergence. What was done is in `posterior.training.notes`; the
        generator is `posterior.trained`.

    Returns
    -------
    Posterior
        The trained posterior.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used; raised before anything is compiled.
    gpvi.errors.OtherRunError
        If `checkpoint` holds another run: another target, method, key or data.
    gpvi.errors.NotAvailableError
        Inside a JAX transformation, or in a forked child of a process that has used JAX.
    gpvi.errors.DivergenceError
        If not even the first steps were finite.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), key=key, steps=500, progress=False)
    >>> posterior.sample(1_000, key=key).shape
    (1000, 2)
    """
    check_context("gpvi.fit", key)
    usual = planned(target, method, steps, optimizer, batch_size, init, mesh)
    if method is None and not isinstance(init, Posterior):
        _advise(target)
    check_watching(callbacks, checkpoint, every, exact)
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    key = as_key(key)
    start_key, init_key, run_key = divided(key, 3)
    work = shown(_meter(progress), usual.steps, label(usual.method, target.dim))
    with _locked(saves), target.precision(), work as meter:
        meter.update(0, "searching for a start")
        prepared = prepare(
            [target], usual.method, usual.batch_size, [init], saves, keys=[start_key]
        )
        [density], [start], [notes] = prepared.densities, prepared.starts, prepared.notes

        plan = _reconsidered(usual, density, method, steps, optimizer, init, meter, key=start_key)

        explored = once_explored(density, key=folded(start_key, 1))

        def fresh(number: int) -> State:
            own_key = folded(init_key, number)
            return first_state(plan.method, density, plan.optimizer, init, explored, key=own_key)

        meter.update(0, "compiling")
        first = fresh(0)
        lookout = _lookout(density, plan, first, key=folded(key, 3)) if exact else None
        plan = limit_chunk_time(plan, density, first)
        program = compile_chunk(plan, density, first)
        if saves is not None:
            _identify(saves, prepared, plan, density, first, init, key, exact)
        placed = plan.place_target(density)

        def attempt(number: int, judge: Judge | None = None) -> tuple[State, Training]:
            log = None if saves is None else Log(saves, number)
            watch = Watch(meter, callbacks, judge, log)
            state = begun_anew(number) if number else first
            own_key = folded(run_key, number)
            return train(plan, program, placed, state, watch, key=own_key)

        def begun_anew(number: int) -> State:
            meter.update(0, f"beginning anew, attempt {number + 1}")
            own_key = folded(run_key, PARTICLES + number)
            return begun_at_particles(plan, density, fresh(number), explored(), key=own_key)

        def rival(judge: Judge) -> Candidate | None:
            meter.update(plan.rounds[0], "looking for several modes")
            own_key = folded(run_key, RIVAL)
            return mixture_for(plan.method, density, explored(), judge.assess, key=own_key)

        untrained = None
        if length_is_open(target, usual.method, steps, optimizer, batch_size, init):
            untrained = _untrained(
                plan, placed, first, start, explored, meter, key=folded(start_key, 2)
            )
        if untrained is not None:
            trained = plan.method, first, untrained
        elif plan.rounds:
            trained = best_attempt(
                plan.method, attempt, placed, start.evidence, explored, rival, lookout, key=run_key
            )
        else:
            trained = (plan.method, *attempt(0))
        posterior = _posterior(*trained, density.target, start, notes, explored)
        if lookout is not None and not posterior.training.interrupted:
            posterior = made_exact(posterior, meter, lookout)
    return posterior


def fit_seeds(
    targets: Sequence[Target],
    method: Method | str,
    *,
    key: PRNGKeyArray | int,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    progress: bool | Meter = True,
    init: Literal["auto", "variational", "laplace"] | Sequence[Posterior] | None = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    mesh: Mesh | int | None = None,
) -> list[Posterior]:
    """Train a method on several targets of one form, one for each seed, side by side in one compiled program.

    If a step of one target is not finite, all go back together, and that one continues with half the step size.

    Parameters
    ----------
    targets
        The targets. They share their functions and the shapes of their data; each gets its own randomness.
    method
        The method or its name; there is no default.
    key
        A JAX random key, or a seed, for all of them.
    steps, optimizer, batch_size, progress, checkpoint, every
        As for `gpvi.fit`, for all targets at once.
    init
        As for `gpvi.fit`; posteriors to continue are given as a list, one for each target.
    mesh
        The devices that the targets are distributed over, as many as divide their number.

    Returns
    -------
    list[Posterior]
        One posterior for each target.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used, or the targets differ in more than their arrays.

    Examples
    --------
    >>> def log_likelihood(mean, x):
    ...     return -0.5 * (x - mean[0]) ** 2
    >>> def log_prior(mean):
    ...     return -0.5 * mean @ mean
    >>> options = {"log_likelihood": log_likelihood, "log_prior": log_prior, "dim": 1}
    >>> data = np.random.default_rng(0).normal(size=(3, 20))
    >>> targets = [gpvi.Target(data=each, **options) for each in data]
    >>> posteriors = gpvi.fit_seeds(targets, gpvi.SVGD(), key=key, steps=50, progress=False)
    >>> len(posteriors)
    3
    """
    check_context("gpvi.fit_seeds", key)
    check_targets(targets)
    inits = [init] * len(targets) if init is None or isinstance(init, str) else list(init)
    if len(inits) != len(targets):
        raise InputError(
            f"init holds {len(inits)} posteriors for {len(targets)} targets; give one for each."
        )
    method = as_method(method)
    for target, own in zip(targets, inits, strict=True):
        check_arguments(target, method, steps, batch_size, own, optimizer)
    check_watching((), checkpoint, every)
    check_one_form(targets)
    seeds = len(targets)
    batch_size = default_batch_size(targets[0], method, batch_size)
    steps = method.default_steps() if steps is None else int(steps)
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    key = as_key(key)
    start_key, init_key, run_key = divided(key, 3)
    work = shown(_meter(progress), steps, label(method, targets[0].dim))
    with _locked(saves), targets[0].precision(), work as meter:
        meter.update(0, "searching for a start")
        start_keys, init_keys = (jax.random.split(each, seeds) for each in (start_key, init_key))
        prepared = prepare(
            targets, method, batch_size, inits, saves, keys=list(start_keys), seeds=seeds
        )
        explored = [
            once_explored(density, key=folded(own_key, 1))
            for density, own_key in zip(prepared.densities, start_keys, strict=True)
        ]
        meter.update(0, "compiling")
        states = [
            first_state(method, density, optimizer, own, found, key=own_key)
            for density, own, found, own_key in zip(
                prepared.densities, inits, explored, init_keys, strict=True
            )
        ]
        (density, shared), (state, _) = stack(prepared.densities, share=True), stack(states)
        devices = for_seeds(checked_mesh(mesh, method), seeds)
        plan = Plan(method, optimizer, steps, batch_size, seeds=seeds, shared=shared, mesh=devices)
        program = compile_chunk(plan, density, state)
        if saves is not None:
            _identify(saves, prepared, plan, density, state, init, key)
        watch = Watch(meter, log=None if saves is None else Log(saves, 0))
        stacked, training = train(
            plan, program, plan.place_target(density), state, watch, key=run_key
        )
    made = [
        _unstacked(stacked, training, method, prepared, found, seed)
        for seed, found in enumerate(explored)
    ]
    if troubled := [concerns for _, concerns in made if concerns]:
        warn(
            f"{len(troubled)} of {seeds} runs have faults, which the notes of their training name; the first: "
            f"{troubled[0][0]}",
            TrainingWarning,
        )
    return [posterior for posterior, _ in made]


def _reconsidered(
    usual: Plan,
    density: Whitened,
    method: Method | str | None,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    init: Any,
    meter: Meter,
    *,
    key: PRNGKeyArray,
) -> Plan:
    """Return the plan, now that the start is known: a Gaussian copula instead of the default where that suffices."""
    key = folded(key, 3)
    if method is not None or not should_bend(usual, density, init, key=key):
        return usual
    steps = BENT.default_steps() if steps is None else steps
    optimizer = BENT.default_optimizer(steps) if optimizer is None else optimizer
    plan = dataclasses.replace(usual, method=BENT, steps=steps, optimizer=optimizer)
    meter.start(plan.steps, label(plan.method, density.dim))
    return plan


def _lookout(density: Whitened, plan: Plan, first: State, *, key: PRNGKeyArray) -> Lookout:
    """Return what looks at chains after each round, or refuse a fit whose draws no chain can refine."""
    check_refinable(density.target, plan.method, first.learner.model)
    return Lookout(density, key=key)


def _untrained(
    plan: Plan,
    density: Whitened,
    first: State,
    start: Start,
    explored: Callable[[], Exploration | None],
    meter: Meter,
    *,
    key: PRNGKeyArray,
) -> Training | None:
    """Return the record of a training without steps if the Gaussian at the start fits; None if it does not."""
    meter.update(0, "judging the start")
    fit = fits_at_start(density, first, start.evidence, explored, key=key)
    if fit is None:
        meter.update(0, "compiling")
        return None
    meter.update(0, "done: the start fits")
    what = label(plan.method, density.dim)
    chosen = f"{what}; 0 steps: the start is a Gaussian that fits ({fit})"
    return Training(0, 0, 0.0, {}, chosen=chosen, gradients=0)


def _posterior(
    method: Method,
    state: State,
    training: Training,
    target: Target,
    start: Start,
    notes: tuple[str, ...],
    explored: Callable[[], Exploration | None],
) -> Posterior:
    """Return the posterior of a run, after a warning of everything that its method finds wrong with it."""
    concerns = _concerns(method, state, training)
    for note in concerns:
        warn(note, TrainingWarning)
    training = dataclasses.replace(training, notes=(*training.notes, *notes, *concerns))
    return Posterior.from_training(method, target, start, state, training, explored)


def _unstacked(
    stacked: State,
    training: Training,
    method: Method,
    prepared: Prepared,
    explored: Callable[[], Exploration | None],
    seed: int,
) -> tuple[Posterior, tuple[str, ...]]:
    """Return the posterior of one seed, and what its method finds wrong with the run."""
    arrays, static = eqx.partition(stacked, eqx.is_array)
    state = eqx.combine(jax.tree.map(lambda a: a[seed], arrays), static)
    start, target = prepared.starts[seed], prepared.targets[seed]
    history = {name: values[seed] for name, values in training.history.items()}
    gradients = method.gradients(history, target.dim) if history else 0
    own = dataclasses.replace(training, history=history, gradients=gradients)
    concerns = _concerns(method, state, own)
    own = dataclasses.replace(own, notes=(*own.notes, *prepared.notes[seed], *concerns))
    return Posterior.from_training(method, target, start, state, own, explored), concerns


def _concerns(method: Method, state: State, training: Training) -> tuple[str, ...]:
    """Return what the method finds wrong with a run that was not interrupted."""
    ended = training.steps > 0 and not training.interrupted
    return method.concerns(state, training.history) if ended else ()


def _locked(saves: Checkpoints | None) -> contextlib.AbstractContextManager[None]:
    """Reserve the directory of the checkpoints, if there is one, for this run."""
    return contextlib.nullcontext() if saves is None else saves.locked()


def _identify(
    saves: Checkpoints,
    prepared: Prepared,
    plan: Plan,
    density: Whitened,
    state: State,
    init: Any,
    key: PRNGKeyArray,
    exact: bool = False,
) -> None:
    """Tell the checkpoints which run they belong to: the run on one device, so that it may resume on several."""
    alone = compile_chunk(dataclasses.replace(plan, mesh=None), density, state)
    arrays, batches = eqx.filter(state, eqx.is_array), example(plan, density)
    targets = prepared.targets
    who = identity(targets, density, plan, alone, arrays, init, key, batches)
    if exact and plan.rounds:
        who["number of steps"] += ", or until chains mix"
    distinct = {id(target): target for target in targets}.values()
    probed = [value for target in distinct for value in probes(target)]
    saves.identify(who, probed, prepared.starts, stacked=plan.seeds is not None)


def _advise(target: Target) -> None:
    """Warn with the note of the target's own suggestion, such as that of a network."""
    suggested = target.suggestion()
    if suggested is not None and suggested.note:
        warn(suggested.note, TrainingWarning)


def _meter(progress: bool | Meter) -> Meter:
    """Return the progress display; of several processes only the first one shows it."""
    return as_meter(progress if hosts.first() else False)
