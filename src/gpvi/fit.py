"""The only training loop: it scans a method's `step` in chunks and knows nothing else of it.

A chunk of steps is one compiled program with donated buffers; between chunks Python looks at the reported terms, moves
the progress bar, calls the callbacks and decides whether to go on. Step t uses keys folded from t, so nothing
random is carried along.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from gpvi import hosts
from gpvi.affine import Affine
from gpvi.arguments import check_arguments, check_one_form, check_watching, checked_mesh
from gpvi.checkpoint import Checkpoints, Log, Start, identity, probes
from gpvi.coverage import FromStart, outside_evidence
from gpvi.density import Density
from gpvi.errors import DivergenceError, InputError, StorageError, TrainingWarning
from gpvi.feed import Feed, example
from gpvi.memory import shortage
from gpvi.mesh import for_lanes
from gpvi.methods import GPVI, Method
from gpvi.methods.base import Learner, Selective, State
from gpvi.pace import ATTEMPTS, PACED_DIMENSIONS, Assessment, Judge, Paced
from gpvi.posterior import Posterior
from gpvi.preflight import rounded
from gpvi.program import LONGEST_CHUNK, Plan, Program, compile_chunk
from gpvi.progress import Meter, as_meter
from gpvi.recovery import Run, first_failure, rejections
from gpvi.specs import require_key
from gpvi.target import Target
from gpvi.training import Training
from gpvi.whitened import Whitened

WHITENED_DIMENSIONS = 1_000
"""Up to this dimension `init="auto"` looks for a Gaussian to start from; its dense scale has d² entries."""
TERMINATED = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM has ended."""


@dataclasses.dataclass(frozen=True)
class Event:
    """What a callback sees after each chunk; raise `StopIteration` in it to stop training."""

    step: int
    steps: int
    terms: dict[str, float]
    """The reported terms of the last step."""
    state: State


Callback = Callable[[Event], None]


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
    init: Literal["auto", "pathfinder", "laplace"]
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
    method: `gpvi.GPVI()` by default, with another generator for networks.
    key: a JAX random key; the same key gives the same posterior.
    steps, optimizer: the method's own defaults, with a schedule that decays to zero.
    batch_size: how many data a step sees, for targets in mini-batch form; all by default.
    progress: a bar, silence, or a `gpvi.progress.Meter`.
    callbacks: called after each chunk of steps with an `Event`.
    init: where to start. "auto" finds a Gaussian that brings the posterior near the standard normal (for d ≤ 1000 and
        a target without starting points of its own, which networks have); "pathfinder" and "laplace" name the way; None
        keeps the coordinates as they are around `target.initial`; a `Posterior` is continued; and an array of points,
        (n, d), is where the particles of a particle method start.
    checkpoint: a directory. The run is saved there as it goes, and the same call goes on from the newest good save, bit
        for bit as if it had never stopped; a finished run returns at once. Another target, method, key or data are
        refused. SIGTERM then saves before the process ends, and so does Ctrl-C.
    every: how many steps lie between two saves; a minute by default.
    mesh: the devices to train on: so many of them, or a `jax.sharding.Mesh` whose axes "particles" and "data" share out
        the draws of a step and the data. The result is that of one device, to rounding (see docs/scaling.md).

    A draw at which log p or its gradient is not finite gives its step no score: means are over the others, and among
    particles it is still one that the others keep away from. A share of them above 5 % is reported in a warning. A step
    of which more than half the draws are so, or that is not finite itself, sends the run back to its last good state
    with half the step size, at most eight times; then it stops there. A log-density that raises as it runs (in a
    callback) ends the run at its last good state, too. Ctrl-C ends it after the current chunk and returns what there
    is (see docs/surviving.md). Where all is left to the library, GPVI trains in rounds until its draws fit the
    posterior, and anew, at most twice, if they cannot be trusted (see `gpvi.pace`). What was chosen, and why training
    stopped, is kept in `posterior.training`.
    """
    plan = planned(target, method, steps, optimizer, batch_size, init, mesh)
    if method is None and not isinstance(init, Posterior):
        _advise(target)
    method, optimizer = plan.method, plan.optimizer
    check_watching(callbacks, checkpoint, every)
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    require_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with saves.held() if saves is not None else contextlib.nullcontext(), target.precision():
        target = target.checked(plan.batch_size)
        begun = saves.starts(target) if saves is not None else None
        start = begun[0] if begun else _started(target, method, init, key=start_key)
        density = Whitened(target, start.affine)
        placed = plan.place_target(density)
        coarse = _rounded(target, start) if _searches(init, target) else ()

        def fresh(number: int) -> State:
            state = method.init(density, optimizer, key=jax.random.fold_in(init_key, number))
            if isinstance(init, Posterior):
                return _continued_state(init, state, optimizer, target)
            if isinstance(init, jax.Array | np.ndarray):
                return _state_from_points(init, state, density)
            return state

        first = fresh(0)
        program = compile_chunk(plan, density, first)
        if saves is not None:
            arrays = eqx.filter(first, eqx.is_array)
            batches = example(plan, density)
            alone = compile_chunk(dataclasses.replace(plan, mesh=None), density, first)
            who = identity([target], density, plan, alone, arrays, init, key, batches)
            saves.open(who, probes(target), start.affine, [start])

        def attempt(number: int, judge: Judge | None = None) -> tuple[State, Training]:
            log = None if saves is None else Log(saves, number)
            state = fresh(number) if number else first
            return _train(
                plan,
                program,
                placed,
                state,
                Watch(as_meter(progress if hosts.first() else False), callbacks, judge, log),
                key=jax.random.fold_in(run_key, number),
            )

        state, training = (
            _best(attempt, placed, start.evidence, key=run_key) if plan.rounds else attempt(0)
        )
        training = dataclasses.replace(training, start=start.report, evidence=start.evidence)
        training = dataclasses.replace(training, notes=(*training.notes, *coarse))
    return Posterior.from_training(method, target, start.affine, state, training)


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
    method = _default_method(target, init) if method is None else method
    check_arguments(target, method, steps, batch_size, init, optimizer)
    batch_size = _batch_size(target, method, batch_size)
    rounds = _rounds(target, method, steps, optimizer, batch_size, init)
    if rounds:
        steps, optimizer = sum(rounds), method.default_optimizer(*rounds)
    steps = method.default_steps(target.dim) if steps is None else steps
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    devices = checked_mesh(mesh, method)
    longest = LONGEST_CHUNK
    if target.stream is not None and batch_size is not None:
        longest = min(longest, target.stream.batches(batch_size))
    return Plan(method, optimizer, steps, batch_size, rounds=rounds, longest=longest, mesh=devices)


def _default_method(target: Target, init: Any) -> Method:
    """That of the posterior to go on from, or what the maker of the target suggests."""
    if isinstance(init, Posterior):
        return init.method
    suggested = target.suggestion() if isinstance(target, Target) else None
    return GPVI() if suggested is None else suggested.method


def _batch_size(target: Target, method: Method, given: int | None) -> int | None:
    """The target's own, where none is given and the method takes batches."""
    return target.batch_size if given is None and not isinstance(method, Selective) else given


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
    if given or own or not isinstance(init, str) or not isinstance(method, Paced):
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
        warnings.warn(
            f"no attempt can be trusted; {'; '.join(notes)}", TrainingWarning, stacklevel=3
        )
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
    init: Literal["auto", "pathfinder", "laplace"] | Sequence[Posterior] | None = "auto",
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
    first = targets[0]
    batch_size = _batch_size(first, method, batch_size)
    steps = method.default_steps(first.dim) if steps is None else steps
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    saves = None if checkpoint is None else Checkpoints(checkpoint, every)
    require_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with saves.held() if saves is not None else contextlib.nullcontext(), first.precision():
        distinct = {id(target): target for target in targets}
        checked = {each: target.checked(batch_size) for each, target in distinct.items()}
        targets = [checked[id(target)] for target in targets]
        first = targets[0]
        begun = None
        if saves is not None and _searches(init, first):
            begun = saves.starts(first, len(targets))
        start_keys, init_keys = _split(start_key, targets), _split(init_key, targets)
        starts = begun or [
            _started(target, method, each, key=own)
            for target, each, own in zip(targets, inits, start_keys, strict=True)
        ]
        densities = [Whitened(t, start.affine) for t, start in zip(targets, starts, strict=True)]
        states = [
            method.init(density, optimizer, key=own)
            for density, own in zip(densities, init_keys, strict=True)
        ]
        states = [
            _continued_state(each, state, optimizer, first)
            if isinstance(each, Posterior)
            else state
            for each, state in zip(inits, states, strict=True)
        ]
        (density, shared), (state, _) = _stack(densities, share=True), _stack(states)
        lanes = len(targets)
        devices = for_lanes(checked_mesh(mesh, method), lanes)
        plan = Plan(method, optimizer, steps, batch_size, lanes=lanes, shared=shared, mesh=devices)
        program = compile_chunk(plan, density, state)
        if saves is not None:
            alone = compile_chunk(dataclasses.replace(plan, mesh=None), density, state)
            arrays = eqx.filter(state, eqx.is_array)
            who = identity(targets, density, plan, alone, arrays, init, key)
            probed = [value for target in checked.values() for value in probes(target)]
            affines, _ = _stack([density.affine for density in densities])
            saves.open(who, probed, affines, starts)
        coarse = _rounded(first, starts[0]) if _searches(init, first) else ()
        density = plan.place_target(density)
        log = None if saves is None else Log(saves, 0)
        watch = Watch(as_meter(progress if hosts.first() else False), log=log)
        stacked, training = _train(plan, program, density, state, watch, key=run_key)
    training = dataclasses.replace(training, notes=(*training.notes, *coarse))
    return _apart(method, densities, starts, stacked, training)


def _apart(
    method: Method,
    densities: Sequence[Whitened],
    starts: Sequence[Start],
    stacked: State,
    training: Training,
) -> list[Posterior]:
    """One posterior for each lane of what was trained side by side."""
    arrays, static = eqx.partition(stacked, eqx.is_array)
    posteriors = []
    for lane, (density, start) in enumerate(zip(densities, starts, strict=True)):
        state = eqx.combine(jax.tree.map(lambda a, lane=lane: a[lane], arrays), static)
        own = dataclasses.replace(
            training,
            history={name: values[lane] for name, values in training.history.items()},
            start=start.report,
            evidence=start.evidence,
        )
        posteriors.append(
            Posterior.from_training(method, density.target, density.affine, state, own)
        )
    return posteriors


class Watch(NamedTuple):
    """Who looks at a run between its chunks."""

    meter: Meter
    callbacks: Sequence[Callback] = ()
    judge: Judge | None = None
    log: Log | None = None

    def begin(self, arrays: PyTree) -> Run:
        """The run where it stands: at its beginning, or where the newest checkpoint has it."""
        run = Run(arrays)
        if self.log is not None:
            run = self.log.resumed(run)
        if self.judge is not None:
            self.judge.last = run.assessed
        return run

    def look(self, run: Run, event: Event, *, judging: bool) -> None:
        """After a chunk: judge where a round ends, tell whoever wants to know, and save."""
        if self.judge is not None and judging:
            run.stopped = self.judge(event.state)
            run.assessed = self.judge.last
        for callback in self.callbacks:
            callback(event)
        if self.log is not None:
            self.log.offer(run)

    def end(self, run: Run) -> None:
        """However it ended."""
        self.meter.close()
        if self.log is not None:
            self.log.save(run)


def _train(
    plan: Plan, program: Program, target: Density, state: State, watch: Watch, *, key: PRNGKeyArray
) -> tuple[State, Training]:
    """Run the chunks; return the last good state and the record of what happened."""
    length, _ = plan.chunk
    ends = set(np.cumsum(plan.rounds).tolist())
    arrays, static = eqx.partition(state, eqx.is_array)
    run = watch.begin(arrays)
    run.arrays, run.before = plan.place(run.arrays, state), plan.place(run.before, state)
    began = time.perf_counter() - run.seconds
    watch.meter.start(plan.steps, _label(plan, target))
    cut_short: str | None = None
    with _Interrupts(term=watch.log is not None) as interrupted, Feed(plan, target) as feed:
        try:
            if run.going(plan.steps):
                batches = example(plan, target)
                run.warn(shortage(program.memory(run.arrays, target, key, batches)))
                del batches
            while run.going(plan.steps) and not interrupted():
                chunk_key = jax.random.fold_in(key, run.retries)
                arrays, terms = program(
                    jax.tree.map(jnp.copy, run.arrays),
                    target,
                    chunk_key,
                    jnp.asarray(run.done),
                    feed(chunk_key, run.done),
                )
                taken = min(length, plan.steps - run.done)
                terms = {name: np.asarray(value)[..., :taken] for name, value in terms.items()}
                failure = first_failure(terms, arrays)
                if failure is not None:
                    run.retreat(failure)
                    continue
                run.accept(arrays, terms, taken)
                run.seconds = time.perf_counter() - began
                watch.meter.update(run.done, _message(plan.method, terms))
                event = Event(run.done, plan.steps, _latest(terms), eqx.combine(arrays, static))
                watch.look(run, event, judging=run.done in ends)
        except StopIteration:
            cut_short = f"stopped by a callback after step {run.done} of {plan.steps}"
        except (jax.errors.JaxRuntimeError, StorageError) as error:
            if run.done == 0:
                raise
            cut_short = f"stopped after step {run.done} of {plan.steps}, as the next failed: {_cause(error)}"
        finally:
            watch.end(run)
    _conclude(run, plan.steps, watch.log, cut_short, interrupted())
    training = Training(
        run.done,
        plan.steps if run.stopped is None else run.done,
        run.seconds,
        run.history(),
        tuple(run.notes),
        chosen=f"{_label(plan, target)}; {run.ending(plan.steps)}",
        interrupted=bool(interrupted()) and run.going(plan.steps),
        unfinished=run.going(plan.steps),
    )
    return eqx.combine(plan.collect(run.arrays), static), training


def _cause(error: Exception) -> str:
    """The line that says what went wrong; of the trace of a callback, the one that names its exception."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if not lines[0].endswith("Traceback (most recent call last):"):
        return lines[0].strip()
    places = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[max(places, default=0) + 1 :]
    return next((line for line in after if not line.startswith(" ")), lines[-1]).strip()


def _conclude(
    run: Run, steps: int, log: Log | None, cut_short: str | None, interrupted: int
) -> None:
    """Say how it ended; only after it is saved, as a run that goes on from there has not ended so."""
    run.warn(cut_short)
    if interrupted and run.going(steps):
        again = "" if log is None else "; the same call goes on from there"
        run.warn(f"interrupted after step {run.done} of {steps}{again}")
    if not run.going(steps):
        run.warn(rejections(run.history()))
    if interrupted == signal.SIGTERM:
        sys.stderr.write(f"gpvi: {run.notes[-1] if run.notes else 'the run was finished'}.\n")
        raise SystemExit(TERMINATED)
    for note in run.notes:
        if log is None or note not in log.checkpoints.told:
            warnings.warn(note, TrainingWarning, stacklevel=4)
    if run.done == 0 and not interrupted and run.notes:
        raise DivergenceError(
            f"no step was finite: {run.notes[-1]}. Check the log-density near the start (target.check()), and that it "
            "falls far out, as a density must; or pass initial=, a smaller learning rate, or another init."
        )


def _split(key: PRNGKeyArray, items: Sequence) -> Key[Array, " n"]:
    return jax.random.split(key, len(items))


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


def keeps_its_coordinates(target: Target) -> bool:
    """Whether `init="auto"` looks for no Gaussian to start from."""
    return target.draws_its_start or target.dim > WHITENED_DIMENSIONS


def _searches(init: Any, target: Target) -> bool:
    """Whether a Gaussian to start from is looked for."""
    return isinstance(init, str) and not (init == "auto" and keeps_its_coordinates(target))


def _started(target: Target, method: Method, init: Any, *, key: PRNGKeyArray) -> Start:
    """The coordinates to train in, and how they were found."""
    if isinstance(init, Posterior):
        return Start(init.affine, "continued from a posterior", init.training.evidence)
    if not _searches(init, target):
        at = target.starting_points(1, key=key)[0] if target.draws_its_start else target.initial
        scale = Affine.identity(target.dim, target.dtype).scale
        return Start(Affine(at, scale), "the target's own coordinates, around its initial point")
    from gpvi import start

    assert isinstance(init, str)
    find = {"auto": start.automatic, "pathfinder": start.pathfinder, "laplace": start.laplace}[init]
    some, log_density, seen = target.sample(), target.log_density, ""
    if some is not None:
        log_density = jax.tree_util.Partial(log_density, batch=some)
        seen = f", of {jax.tree.leaves(some)[0].shape[0]:,} of {target.size:,} data"
    gaussian = find(log_density, target.initial, key=key)
    scale = np.asarray(gaussian.scale, np.float64)
    if method.coordinates == "diagonal":
        scale = (np.linalg.inv(scale) ** 2).sum(0) ** -0.5
    affine = Affine(jnp.asarray(gaussian.location, target.dtype), jnp.asarray(scale, target.dtype))
    report = gaussian.report
    if some is not None:
        return Start(affine, f"{report}{seen}")
    whole = FromStart.of(Whitened(target, affine), report.log_evidence, report.log_evidence_se)
    return Start(affine, str(report), whole)


def _advise(target: Target) -> None:
    """Say what the maker of the target knows of training it so."""
    suggested = target.suggestion()
    if suggested is not None and suggested.note:
        warnings.warn(suggested.note, TrainingWarning, stacklevel=3)


def _rounded(target: Target, start: Start) -> tuple[str, ...]:
    """What the target's floats cannot tell apart; the user is warned before training."""
    log_p = None if start.evidence is None else start.evidence.log_density
    notes = rounded(start.affine.location, start.affine.scale, log_p, lambda: target.names)
    for note in notes:
        warnings.warn(note, TrainingWarning, stacklevel=3)
    return notes


def _continued_state(
    init: Posterior, fresh: State, optimizer: optax.GradientTransformation, target: Target
) -> State:
    """The old model with fresh moments, and what its solver, critic or sampler had learned."""
    learner = Learner.start(init.carrier(), optimizer, target.dtype)
    return State(learner, fresh.auxiliary if init.auxiliary is None else init.auxiliary)


def _state_from_points(
    points: Float[Array | np.ndarray, "n d"], state: State, density: Whitened
) -> State:
    """The state with its particles at the given points; fresh moments fit any."""
    positions = jax.vmap(density.affine.inverse)(jnp.asarray(points, density.dtype))
    model = eqx.tree_at(lambda model: model.positions, state.learner.model, positions)
    return state._replace(learner=state.learner._replace(model=model))


def _label(plan: Plan, target: Density) -> str:
    name = type(plan.method).__name__
    return f"{name} ({plan.method.choices(target.dim)})" if isinstance(plan.method, Paced) else name


def _latest(terms: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value[..., -1].mean()) for name, value in terms.items()}


def _message(method: Method, terms: dict[str, np.ndarray]) -> str:
    name = method.headline if method.headline in terms else "direction"
    return f"{name} {terms[name].mean():.4g}"


class _Interrupts:
    """While open, the first Ctrl-C (and SIGTERM, where asked for) is noted instead of raised; the second is raised."""

    def __init__(self, *, term: bool):
        self._watched = (signal.SIGINT, signal.SIGTERM) if term else (signal.SIGINT,)

    def __enter__(self) -> Callable[[], int]:
        self._seen = 0
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._watched}
        return lambda: hosts.agreed(self._seen)

    def _note(self, number: int, frame: Any) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = number

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
