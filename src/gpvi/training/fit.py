"""`fit` trains a method on a target, `fit_seeds` on several side by side: the plan, the start, the attempts.

The steps themselves are run by `gpvi.training.loop`.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.diagnostics.missing_mass import FromStart, outside_evidence
from gpvi.errors import DivergenceError, InputError, TrainingWarning, warn
from gpvi.methods import GPVI, Method
from gpvi.methods.base import State
from gpvi.parallel import hosts
from gpvi.parallel.mesh import for_lanes
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.progress import Meter, as_meter
from gpvi.specs import require_key
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import expensive
from gpvi.targets.target import Target
from gpvi.training._prefetch import example
from gpvi.training.arguments import check_arguments, check_one_form, check_watching, checked_mesh
from gpvi.training.checkpoint import Checkpoints, Log, Start, identity, probes
from gpvi.training.loop import Callback, Watch, train
from gpvi.training.program import LONGEST_CHUNK, Plan, answering, compile_chunk
from gpvi.training.starting import coarseness, first_state, searches, started
from gpvi.training.stopping import ATTEMPTS, PACED_DIMENSIONS, Assessment, Judge

THRIFTY = GPVI(gradient="l2", particles=128, first_round=250)
"""The default where log p is expensive: few draws, by the gradient whose noise vanishes as q comes near p."""
THRIFTY_DIMENSIONS = 20
"""Up to which: that gradient takes d times the generator's work for each draw."""


def fit(
    target: Target,
    method: Method | None = None,
    *,
    key: PRNGKeyArray,
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
) -> Posterior:
    """Train `method` on `target`.

    Parameters
    ----------
    target: the posterior.
    method: `gpvi.GPVI()` by default, with another generator for networks; if log p and its gradient take more than
        2²⁰ operations, in up to 20 dimensions, `GPVI(gradient="l2", particles=128, first_round=250)` (see
        docs/choosing.md).
    key: a JAX random key; the same key gives the same posterior.
    steps, optimizer: the method's own defaults, with a schedule that decays to zero.
    batch_size: how many data a step sees, for targets in mini-batch form; all by default.
    progress: a bar, silence, or a `gpvi.progress.Meter`.
    callbacks: called after each chunk of steps with an `Event`.
    init: where to start. "auto" finds a Gaussian that brings the posterior near the standard normal (for d ≤ 1000 and
        a target without starting points of its own, which networks have); "variational" and "laplace" name the way; None
        keeps the coordinates as they are around `target.initial`; a `Posterior` is continued; and an array of points,
        (n, d), is where the particles of a particle method start.
    checkpoint: a directory. The run is saved there as it goes, and the same call goes on from the newest good save, bit
        for bit as if it had never stopped; a finished run returns at once. Another target, method, key or data are
        refused. SIGTERM then saves before the process ends, and so does Ctrl-C.
    every: how many steps lie between two saves; a minute by default.
    mesh: the devices to train on: their number, or a `jax.sharding.Mesh` whose axes "particles" and "data" share out
        the draws of a step and the data. The result is that of one device, to rounding (see docs/scaling.md).

    A draw at which log p or its gradient is not finite contributes no score to its step; averages use the remaining
    draws, and such a particle still repels the others. A share of them above 5 % is reported in a warning. If more than
    half the draws of a step are not finite, or the step itself is not, the run goes back to its last good state with
    half the step size, at most eight times; then it stops there. A log-density that raises as it runs (in a callback)
    also ends the run at its last good state. Ctrl-C ends it after the current chunk and returns what there is (see
    docs/surviving.md). By default GPVI trains in rounds until its draws fit the posterior, and anew, at most twice, if
    they cannot be trusted (see `gpvi.training.stopping`). What was chosen, and why training stopped, is kept in
    `posterior.training`.
    """
    plan = planned(target, method, steps, optimizer, batch_size, init, mesh)
    if method is None and not isinstance(init, Posterior):
        _advise(target)
    method, optimizer = plan.method, plan.optimizer
    check_watching(callbacks, checkpoint, every)
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    require_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with _held(saves), target.precision():
        target = target.checked(plan.batch_size)
        begun = None if saves is None else saves.starts(target)
        start = begun[0] if begun else started(target, method, init, key=start_key)
        density = Whitened(target, start.affine)
        coarse = coarseness(target, start) if searches(init, target) else ()
        _warn(coarse)

        def fresh(number: int) -> State:
            own = jax.random.fold_in(init_key, number)
            return first_state(method, density, optimizer, init, key=own)

        first = fresh(0)
        plan = answering(plan, density, first)
        program = compile_chunk(plan, density, first)
        if saves is not None:
            _open(saves, [target], plan, density, first, init, key, start.affine, [start])
        placed = plan.place_target(density)

        def attempt(number: int, judge: Judge | None = None) -> tuple[State, Training]:
            log = None if saves is None else Log(saves, number)
            watch = Watch(_meter(progress), callbacks, judge, log)
            state = fresh(number) if number else first
            own = jax.random.fold_in(run_key, number)
            return train(plan, program, placed, state, watch, key=own)

        state, training = (
            _best(attempt, placed, start.evidence, key=run_key) if plan.rounds else attempt(0)
        )
    return _posterior(method, density, start, coarse, state, training)


def planned(
    target: Target,
    method: Method | None,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    batch_size: int | None,
    init: Any,
    mesh: Mesh | int | None = None,
) -> Plan:
    """What `fit` runs when called so; arguments that cannot be used are refused."""
    method = _default_method(target, init, batch_size) if method is None else method
    check_arguments(target, method, steps, batch_size, init, optimizer)
    batch_size = _batch_size(target, method, batch_size)
    rounds = _rounds(target, method, steps, optimizer, batch_size, init)
    if rounds:
        steps, optimizer = sum(rounds), method.default_optimizer(*rounds)
    steps = method.default_steps() if steps is None else int(steps)
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    devices = checked_mesh(mesh, method)
    longest = LONGEST_CHUNK
    if target.stream is not None and batch_size is not None:
        longest = min(longest, target.stream.batches(batch_size))
    return Plan(method, optimizer, steps, batch_size, rounds=rounds, longest=longest, mesh=devices)


def _default_method(target: Target, init: Any, batch_size: int | None) -> Method:
    """That of the posterior to go on from, or what the maker of the target suggests, or GPVI, by the cost of log p."""
    if isinstance(init, Posterior):
        return init.method
    if not isinstance(target, Target):
        return GPVI()
    suggested = target.suggestion()
    if suggested is not None:
        return suggested.method
    whole = batch_size is None and target.batch_size is None
    if not whole or target.draws_its_start or target.dim > THRIFTY_DIMENSIONS:
        return GPVI()
    with target.precision():
        return THRIFTY if expensive(target) else GPVI()


def _batch_size(target: Target, method: Method, given: int | None) -> int | None:
    """The target's own, where none is given and the method takes batches."""
    if given is not None:
        return int(given)
    return None if method.full_data else target.batch_size


def _rounds(
    target: Target,
    method: Method,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    batch_size: int | None,
    init: Any,
) -> tuple[int, ...]:
    """The rounds of training, where its length, schedule and coordinates are all left to the library."""
    given = steps is not None or optimizer is not None or batch_size is not None
    own = target.draws_its_start or target.dim > PACED_DIMENSIONS
    if given or own or not isinstance(init, str):
        return ()
    return method.rounds(target.dim)


def _best(
    attempt: Callable[[int, Judge], tuple[State, Training]],
    density: Whitened,
    evidence: FromStart | None,
    *,
    key: PRNGKeyArray,
) -> tuple[State, Training]:
    """Train until the draws can be trusted; keep the best attempt, and report all.

    An attempt that is cut short is the last; where an earlier one was finished, it is weighed against that.
    """
    outside_key, judge_key = jax.random.split(jax.random.fold_in(key, ATTEMPTS))
    known = None if evidence is None else evidence.evidence(density)
    outside = functools.cache(lambda: (known, outside_evidence(density, key=outside_key)))
    tried: list[tuple[Assessment, State, Training]] = []
    told: list[str] = []
    while len(tried) < ATTEMPTS:
        judge = Judge(density, outside, key=judge_key)
        try:
            state, training = attempt(len(tried), judge)
        except DivergenceError as error:
            if not tried:
                raise
            told.append(str(error))
            break
        finished = training.steps == training.planned
        if not finished and not tried:
            return state, training
        seen = judge.last if finished and judge.last is not None else judge.assess(state)
        tried.append((seen, state, training))
        told.append("; ".join([str(seen), *training.notes]))
        if seen.trusted or not finished:
            break
    found, state, training = max(tried, key=lambda one: one[0].rank)
    if len(told) == 1:
        return state, training
    notes = [f"attempt {i + 1} of {len(told)}: {each}" for i, each in enumerate(told)]
    if not found.trusted:
        warn(f"no attempt can be trusted; {'; '.join(notes)}", TrainingWarning)
    interrupted = any(training.interrupted for _, _, training in tried)
    return state, dataclasses.replace(training, notes=tuple(notes), interrupted=interrupted)


def fit_seeds(
    targets: Sequence[Target],
    method: Method,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    progress: bool | Meter = True,
    init: Literal["auto", "variational", "laplace"] | Sequence[Posterior] | None = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    mesh: Mesh | int | None = None,
) -> list[Posterior]:
    """`fit` for several targets of one form (one for each seed), trained side by side in one compiled program.

    The targets share their functions and the shapes of their data; each gets its own randomness. If a step of
    one is not finite, all go back together, and that one goes on with half the step size. The devices of a mesh share
    out the targets, as many as divide their number. `checkpoint` and `every` are those of `fit`, for all at once, and
    so is `init`, but posteriors to go on from are given one for each target.
    """
    inits = [init] * len(targets) if init is None or isinstance(init, str) else list(init)
    if len(inits) != len(targets):
        raise InputError(
            f"init holds {len(inits)} posteriors for {len(targets)} targets; give one for each."
        )
    for target, own in zip(targets, inits, strict=True):
        check_arguments(target, method, steps, batch_size, own, optimizer)
    check_watching((), checkpoint, every)
    check_one_form(targets)
    first, lanes = targets[0], len(targets)
    batch_size = _batch_size(first, method, batch_size)
    steps = method.default_steps() if steps is None else int(steps)
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    require_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with _held(saves), first.precision():
        targets = _checked(targets, batch_size)
        begun = None
        if saves is not None and searches(init, targets[0]):
            begun = saves.starts(targets[0], lanes)
        starts = begun or [
            started(target, method, each, key=own)
            for target, each, own in zip(
                targets, inits, jax.random.split(start_key, lanes), strict=True
            )
        ]
        densities = [Whitened(t, start.affine) for t, start in zip(targets, starts, strict=True)]
        coarse = [
            coarseness(target, start) if searches(each, target) else ()
            for target, each, start in zip(targets, inits, starts, strict=True)
        ]
        _warn(dict.fromkeys(note for notes in coarse for note in notes))
        states = [
            first_state(method, density, optimizer, each, key=own)
            for density, each, own in zip(
                densities, inits, jax.random.split(init_key, lanes), strict=True
            )
        ]
        (density, shared), (state, _) = _stack(densities, share=True), _stack(states)
        devices = for_lanes(checked_mesh(mesh, method), lanes)
        plan = Plan(method, optimizer, steps, batch_size, lanes=lanes, shared=shared, mesh=devices)
        program = compile_chunk(plan, density, state)
        if saves is not None:
            affines, _ = _stack([density.affine for density in densities])
            _open(saves, targets, plan, density, state, init, key, affines, starts)
        watch = Watch(_meter(progress), log=None if saves is None else Log(saves, 0))
        placed = plan.place_target(density)
        stacked, training = train(plan, program, placed, state, watch, key=run_key)
    return [
        _posterior(
            method, densities[lane], starts[lane], coarse[lane], *_lane(stacked, training, lane)
        )
        for lane in range(lanes)
    ]


def _held(saves: Checkpoints | None) -> contextlib.AbstractContextManager[None]:
    """The checkpoints of a run kept for it alone, where there are any."""
    return contextlib.nullcontext() if saves is None else saves.held()


def _checked(targets: Sequence[Target], batch_size: int | None) -> list[Target]:
    """Each after its check; the same target several times is checked once, and stays one."""
    distinct = {id(target): target for target in targets}
    checked = {each: target.checked(batch_size) for each, target in distinct.items()}
    return [checked[id(target)] for target in targets]


def _open(
    saves: Checkpoints,
    targets: Sequence[Target],
    plan: Plan,
    density: Whitened,
    state: State,
    init: Any,
    key: PRNGKeyArray,
    affine: Affine,
    starts: Sequence[Start],
) -> None:
    """Tell the checkpoints whose they are: the run on one device, so that it may go on on others."""
    alone = compile_chunk(dataclasses.replace(plan, mesh=None), density, state)
    arrays, batches = eqx.filter(state, eqx.is_array), example(plan, density)
    who = identity(targets, density, plan, alone, arrays, init, key, batches)
    distinct = {id(target): target for target in targets}.values()
    probed = [value for target in distinct for value in probes(target)]
    saves.open(who, probed, affine, starts)


def _lane(stacked: State, training: Training, lane: int) -> tuple[State, Training]:
    """What was trained in one lane."""
    arrays, static = eqx.partition(stacked, eqx.is_array)
    state = eqx.combine(jax.tree.map(lambda a: a[lane], arrays), static)
    history = {name: values[lane] for name, values in training.history.items()}
    return state, dataclasses.replace(training, history=history)


def _posterior(
    method: Method,
    density: Whitened,
    start: Start,
    coarse: tuple[str, ...],
    state: State,
    training: Training,
) -> Posterior:
    """What was trained, with what is known of its start."""
    training = dataclasses.replace(
        training,
        start=start.report,
        evidence=start.evidence,
        notes=(*training.notes, *coarse),
    )
    return Posterior.from_training(method, density.target, density.affine, state, training)


def _stack(trees: Sequence[PyTree], *, share: bool = False) -> tuple[PyTree, tuple[bool, ...]]:
    """Trees of one structure as one with a leading axis, and which arrays have none since all trees hold the same one.

    What is not an array is the first one's.
    """
    arrays = [eqx.filter(tree, eqx.is_array) for tree in trees]
    static = eqx.filter(trees[0], eqx.is_array, inverse=True)
    leaves = list(zip(*(jax.tree.leaves(tree) for tree in arrays), strict=True))
    shared = tuple(share and all(leaf is each[0] for leaf in each) for each in leaves)
    stacked = jax.tree.unflatten(
        jax.tree.structure(arrays[0]),
        [each[0] if same else jnp.stack(each) for each, same in zip(leaves, shared, strict=True)],
    )
    return eqx.combine(stacked, static), shared


def _advise(target: Target) -> None:
    """Say what the maker of the target knows of training it so."""
    suggested = target.suggestion()
    if suggested is not None and suggested.note:
        warn(suggested.note, TrainingWarning)


def _warn(notes: Iterable[str]) -> None:
    for note in notes:
        warn(note, TrainingWarning)


def _meter(progress: bool | Meter) -> Meter:
    """The progress of a run; of several processes the first one shows it."""
    return as_meter(progress if hosts.first() else False)
