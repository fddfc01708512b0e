"""The only training loop: it scans a method's `step` in chunks and knows nothing else of it.

A chunk of steps is one compiled program with donated buffers; between chunks Python looks at the reported terms, moves
the progress bar, calls the callbacks and decides whether to go on. Step t uses keys folded from t, so nothing
random is carried along.
"""

import dataclasses
import functools
import math
import signal
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
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from gpvi.affine import Affine
from gpvi.coverage import outside_evidence
from gpvi.errors import DivergenceError, InputError, NotAvailableError
from gpvi.methods import GPVI, Method
from gpvi.methods.base import Learner, Selective, State
from gpvi.minibatch import batch_indices
from gpvi.pace import ATTEMPTS, PACED_DIMENSIONS, Assessment, Judge, Paced
from gpvi.posterior import Posterior, Training
from gpvi.progress import Meter, as_meter
from gpvi.specs import require_choice
from gpvi.target import Density, Target, Whitened

CHUNKS = 50
LONGEST_CHUNK = 1_000
RETRIES = 8
WHITENED_DIMENSIONS = 1_000
"""Up to this dimension `init="auto"` looks for a Gaussian to start from; its dense scale has d² entries."""


class TrainingWarning(UserWarning):
    """Training went on or stopped in a way the user should know of."""


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
) -> Posterior:
    """Train `method` on `target`.

    Parameters
    ----------
    target: the posterior.
    method: `gpvi.GPVI()` by default.
    key: a JAX random key; the same key gives the same posterior.
    steps, optimizer: the method's own defaults, with a schedule that decays to zero.
    batch_size: how many data a step sees, for targets in mini-batch form; all by default.
    progress: a bar, silence, or a `gpvi.progress.Meter`.
    callbacks: called after each chunk of steps with an `Event`.
    init: where to start. "auto" finds a Gaussian that brings the posterior near the standard normal (for d ≤ 1000 and
        a target without starting points of its own, which networks have); "pathfinder" and "laplace" name the way; None
        keeps the coordinates as they are around `target.initial`; a `Posterior` is continued; and an array of points,
        (n, d), is where the particles of a particle method start.

    A step that is not finite sends the run back to its last good state with half the step size, at most
    eight times. Ctrl-C ends the run after the current chunk and returns what there is. Where all is left to the
    library, GPVI trains in rounds until its draws fit the posterior, and anew, at most twice, if they cannot be
    trusted (see `gpvi.pace`). What was chosen, and why training stopped, is kept in `posterior.training`.
    """
    method = _continued_method(init) if method is None and isinstance(init, Posterior) else method
    method = GPVI() if method is None else method
    _check_arguments(target, method, steps, batch_size, init)
    batch_size = _batch_size(target, method, batch_size)
    rounds = _rounds(target, method, steps, optimizer, batch_size, init)
    if rounds:
        steps, optimizer = sum(rounds), method.default_optimizer(*rounds)
    steps = method.default_steps(target.dim) if steps is None else steps
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    plan = Plan(method, optimizer, steps, batch_size, rounds=rounds)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with target.precision():
        target.check()
        affine, start_report = _starting_coordinates(target, method, init, key=start_key)
        density = Whitened(target, affine)

        def fresh(number: int) -> State:
            state = method.init(density, optimizer, key=jax.random.fold_in(init_key, number))
            if isinstance(init, Posterior):
                return _continued_state(init, state, optimizer, target)
            if isinstance(init, jax.Array | np.ndarray):
                return _state_from_points(init, state, density)
            return state

        advance = compile_chunk(plan, density, fresh(0))

        def attempt(number: int, judge: Judge | None = None) -> tuple[State, Training]:
            own_key = jax.random.fold_in(run_key, number)
            return _train(
                plan,
                advance,
                density,
                fresh(number),
                as_meter(progress),
                callbacks,
                judge,
                key=own_key,
            )

        state, training = _best(attempt, density, key=run_key) if rounds else attempt(0)
        training = dataclasses.replace(training, start=start_report)
    return Posterior.from_training(method, target, affine, state, training)


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
    attempt: Callable[[int, Judge], tuple[State, Training]], density: Whitened, *, key: PRNGKeyArray
) -> tuple[State, Training]:
    """Train until the draws can be trusted; keep the best attempt, and report all."""
    outside = outside_evidence(density, key=key)
    tried: list[tuple[Assessment, State, Training]] = []
    while len(tried) < ATTEMPTS:
        judge = Judge(density, outside, key=key)
        state, training = attempt(len(tried), judge)
        if training.steps < training.planned or judge.last is None:
            return state, training
        tried.append((judge.last, state, training))
        if judge.last.trusted:
            break
    found, state, training = max(tried, key=lambda one: one[0].rank)
    if len(tried) == 1:
        return state, training
    notes = [f"attempt {i + 1} of {len(tried)}: {each}" for i, (each, _, _) in enumerate(tried)]
    if not found.trusted:
        warnings.warn(
            f"no attempt can be trusted; {'; '.join(notes)}", TrainingWarning, stacklevel=3
        )
    return state, dataclasses.replace(training, notes=(*training.notes, *notes))


def fit_seeds(
    targets: Sequence[Target],
    method: Method,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    progress: bool | Meter = True,
    init: Literal["auto", "pathfinder", "laplace"] | None = "auto",
) -> list[Posterior]:
    """`fit` for several targets of one form (one for each seed), trained side by side in one compiled program.

    The targets share their functions and the shapes of their data; each gets its own randomness. If a step of
    one is not finite, all go back together, and that one goes on with half the step size.
    """
    for target in targets:
        _check_arguments(target, method, steps, batch_size, init)
    _check_one_form(targets)
    first = targets[0]
    batch_size = _batch_size(first, method, batch_size)
    steps = method.default_steps(first.dim) if steps is None else steps
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    start_key, init_key, run_key = jax.random.split(key, 3)
    with first.precision():
        densities, states, reports = [], [], []
        for target, a, b in zip(
            targets, _split(start_key, targets), _split(init_key, targets), strict=True
        ):
            target.check()
            affine, report = _starting_coordinates(target, method, init, key=a)
            densities.append(Whitened(target, affine))
            states.append(method.init(densities[-1], optimizer, key=b))
            reports.append(report)
        plan = Plan(method, optimizer, steps, batch_size, lanes=len(targets))
        density, state = _stack(densities), _stack(states)
        advance = compile_chunk(plan, density, state)
        stacked, training = _train(
            plan, advance, density, state, as_meter(progress), (), None, key=run_key
        )
    posteriors = []
    for lane, density in enumerate(densities):
        arrays, static = eqx.partition(stacked, eqx.is_array)
        state = eqx.combine(jax.tree.map(lambda a, lane=lane: a[lane], arrays), static)
        history = {name: values[lane] for name, values in training.history.items()}
        own = dataclasses.replace(training, history=history, start=reports[lane])
        posteriors.append(
            Posterior.from_training(method, density.target, density.affine, state, own)
        )
    return posteriors


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run: a method, its optimiser, for how long, on how many data at a time, in how many lanes at once.

    After each of the `rounds`, if there are any, training may be judged to be done.
    """

    method: Method
    optimizer: optax.GradientTransformation
    steps: int
    batch_size: int | None = None
    lanes: int | None = None
    rounds: tuple[int, ...] = ()


Advance = Callable[..., tuple[PyTree, dict[str, Array]]]


def _train(
    plan: Plan,
    advance: Advance,
    target: Density,
    state: State,
    meter: Meter,
    callbacks: Sequence[Callback],
    judge: Judge | None,
    *,
    key: PRNGKeyArray,
) -> tuple[State, Training]:
    """Run the chunks; return the last good state and the record of what happened."""
    length, _ = chunk_length(plan.steps, plan.rounds)
    ends = set(np.cumsum(plan.rounds).tolist())
    arrays, static = eqx.partition(state, eqx.is_array)
    run, steps, stopped = _Run(arrays), plan.steps, f"{plan.steps:,} steps"
    began = time.perf_counter()
    meter.start(steps, _label(plan, target))
    with _Interrupts() as interrupted:
        try:
            while run.done < steps and not run.given_up:
                arrays, terms = advance(
                    jax.tree.map(jnp.copy, run.arrays),
                    target,
                    jax.random.fold_in(key, run.retries),
                    jnp.asarray(run.done),
                )
                taken = min(length, steps - run.done)
                terms = {name: np.asarray(value)[..., :taken] for name, value in terms.items()}
                failure = _first_failure(terms, arrays)
                if failure is not None:
                    run.retreat(failure)
                    continue
                run.accept(arrays, terms, taken)
                meter.update(run.done, _message(plan.method, terms))
                event = Event(run.done, plan.steps, _latest(terms), eqx.combine(arrays, static))
                for callback in callbacks:
                    callback(event)
                if interrupted():
                    run.notes.append(f"interrupted after step {run.done} of {steps}")
                    break
                why = judge(event.state) if judge is not None and run.done in ends else None
                if why is not None:
                    stopped = f"stopped after {run.done:,} of at most {steps:,} steps: {why}"
                    steps = run.done
        except StopIteration:
            run.notes.append(f"stopped by a callback after step {run.done} of {steps}")
        finally:
            meter.close()
    _say(run.notes, nothing_done=run.done == 0 and not interrupted())
    training = Training(
        run.done,
        steps,
        time.perf_counter() - began,
        run.history(),
        tuple(run.notes),
        chosen=f"{_label(plan, target)}; {stopped}",
    )
    return eqx.combine(run.arrays, static), training


class _Run:
    """The last good state, and the way there.

    A state is good if the step from it is finite. One reached at the end of a chunk is not known to be, so where the
    first step of a chunk fails, the run goes back to the beginning of the chunk before.
    """

    def __init__(self, arrays: PyTree):
        self.arrays = arrays
        self.done = self.retries = 0
        self.notes: list[str] = []
        self.given_up = False
        self._before: PyTree = None
        self._record: list[dict[str, np.ndarray]] = []

    def accept(self, arrays: PyTree, terms: dict[str, np.ndarray], taken: int) -> None:
        """A chunk was finite."""
        self._before, self.arrays = self.arrays, arrays
        self.done += taken
        self._record.append(terms)

    def retreat(self, failure: "_Failure") -> None:
        """Go back, with half the step size; give up after `RETRIES`."""
        self.retries += 1
        where = f"step {self.done + failure.step}: {failure.term} is not finite"
        if failure.step == 0 and failure.reported and self._before is not None:
            self.arrays, self._before = self._before, None
            self.done -= self._record.pop()[failure.term].shape[-1]
        if self.retries > RETRIES:
            self.given_up = True
            self.notes.append(f"stopped at {where}, after {RETRIES} halvings of the step size")
            return
        self.arrays = _with_half_the_step_size(self.arrays, failure.lanes)
        self.notes.append(f"{where}; went back to step {self.done} with half the step size")

    def history(self) -> dict[str, np.ndarray]:
        """Each reported term at every step."""
        names = self._record[0] if self._record else {}
        return {name: np.concatenate([terms[name] for terms in self._record], -1) for name in names}


def _say(notes: Sequence[str], *, nothing_done: bool) -> None:
    for note in notes:
        warnings.warn(note, TrainingWarning, stacklevel=4)
    if nothing_done and notes:
        raise DivergenceError(
            f"no step was finite: {notes[-1]}. Check the log-density near the start (target.check()), "
            "or pass initial=, a smaller learning rate, or another init."
        )


def compile_chunk(plan: Plan, target: Density, state: State) -> Advance:
    """A program that takes (arrays of the state, target, key, first step) one chunk further.

    It is found again by all that is not an array, so that a second run of the same form compiles nothing.
    """
    forms = [jax.tree.flatten(eqx.filter(t, eqx.is_array, inverse=True)) for t in (state, target)]
    keys = [(tuple(leaves), structure) for leaves, structure in forms]
    try:
        program = _program(plan, *keys)
    except TypeError:  # something in it cannot be hashed
        program = _program.__wrapped__(plan, *keys)
    return lambda arrays, target, *rest: program(arrays, eqx.filter(target, eqx.is_array), *rest)


@functools.lru_cache(maxsize=16)
def _program(plan: Plan, state_form: Any, target_form: Any) -> Callable:
    length, masked = chunk_length(plan.steps, plan.rounds)
    static, frame = (jax.tree.unflatten(form[1], form[0]) for form in (state_form, target_form))

    def advance(arrays: PyTree, data: PyTree, key: PRNGKeyArray, first: Int[Array, ""]):
        target = eqx.combine(data, frame)
        shuffle_key, noise_key = jax.random.split(key)

        def one(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, dict[str, Array]]:
            batch = None
            if plan.batch_size is not None:
                batch = target.batch(
                    batch_indices(index, target.size, plan.batch_size, key=shuffle_key)
                )
            state = eqx.combine(arrays, static)
            step_key = jax.random.fold_in(noise_key, index)
            state, info = plan.method.step(target, plan.optimizer, state, batch, key=step_key)
            moved = eqx.filter(state, eqx.is_array)
            if masked:
                moved = jax.tree.map(
                    lambda new, old: jnp.where(index < plan.steps, new, old), moved, arrays
                )
            return moved, info

        return jax.lax.scan(one, arrays, first + jnp.arange(length))

    def advance_lanes(arrays: PyTree, data: PyTree, key: PRNGKeyArray, first: Int[Array, ""]):
        if plan.lanes is None:
            return advance(arrays, data, key, first)
        return jax.vmap(advance, (0, 0, 0, None))(
            arrays, data, jax.random.split(key, plan.lanes), first
        )

    return jax.jit(advance_lanes, donate_argnums=0)


def chunk_length(steps: int, rounds: tuple[int, ...] = ()) -> tuple[int, bool]:
    """How many steps one chunk takes, and whether the last chunk must mask some of them.

    One program serves all chunks. A divisor of `steps` near steps / 50, and of every round, needs no mask; where there
    is none (a prime number of steps), the surplus steps of the last chunk are computed and dropped.
    """
    aim = max(1, min(LONGEST_CHUNK, steps // CHUNKS))
    whole = math.gcd(*rounds) if rounds else steps
    for length in range(aim, 0 if rounds else max(1, aim // 4) - 1, -1):
        if whole % length == 0:
            return length, False
    return aim, True


def _split(key: PRNGKeyArray, items: Sequence) -> Key[Array, " n"]:
    return jax.random.split(key, len(items))


def _stack(trees: Sequence[PyTree]) -> PyTree:
    """Trees of one structure as one tree with a leading axis; what is not an array is the first one's."""
    arrays = [eqx.filter(tree, eqx.is_array) for tree in trees]
    static = eqx.filter(trees[0], eqx.is_array, inverse=True)
    leaves = zip(*(jax.tree.leaves(tree) for tree in arrays), strict=True)
    stacked = jax.tree.unflatten(
        jax.tree.structure(arrays[0]), [jnp.stack(each) for each in leaves]
    )
    return eqx.combine(stacked, static)


def _starting_coordinates(
    target: Target, method: Method, init: Any, *, key: PRNGKeyArray
) -> tuple[Affine, str]:
    if isinstance(init, Posterior):
        return init.affine, "continued from a posterior"
    own = target.draws_its_start or target.dim > WHITENED_DIMENSIONS
    if not isinstance(init, str) or (init == "auto" and own):
        at = target.starting_points(1, key=key)[0] if target.draws_its_start else target.initial
        scale = Affine.identity(target.dim, target.dtype).scale
        return Affine(at, scale), "the target's own coordinates, around its initial point"
    from gpvi import start

    find = {"auto": start.automatic, "pathfinder": start.pathfinder, "laplace": start.laplace}[init]
    gaussian = find(target.log_density, target.initial, key=key)
    scale = np.asarray(gaussian.scale, np.float64)
    if method.coordinates == "diagonal":
        scale = (np.linalg.inv(scale) ** 2).sum(0) ** -0.5
    affine = Affine(jnp.asarray(gaussian.location, target.dtype), jnp.asarray(scale, target.dtype))
    return affine, str(gaussian.report)


def _continued_method(init: Posterior) -> Method:
    return init.method


def _continued_state(
    init: Posterior, fresh: State, optimizer: optax.GradientTransformation, target: Target
) -> State:
    """The old model with fresh moments; what solver or critic learned is kept where it is at hand."""
    learner = Learner.start(init.carrier(), optimizer, target.dtype)
    return State(learner, fresh.auxiliary if init.auxiliary is None else init.auxiliary)


def _state_from_points(
    points: Float[Array | np.ndarray, "n d"], state: State, density: Whitened
) -> State:
    """The state with its particles at the given points; fresh moments fit any."""
    positions = jax.vmap(density.affine.inverse)(jnp.asarray(points, density.dtype))
    model = eqx.tree_at(lambda model: model.positions, state.learner.model, positions)
    return state._replace(learner=state.learner._replace(model=model))


def _check_arguments(
    target: Target, method: Method, steps: int | None, batch_size: int | None, init: Any
) -> None:
    if not isinstance(target, Target):
        raise InputError(
            f"target is {target!r}; wrap the log-density: gpvi.Target(log_density, dim=d)."
        )
    if isinstance(method, type) or not isinstance(method, Method):
        raise InputError(
            f"method is {method!r}; pass a method with its options, such as gpvi.GPVI()."
        )
    if steps is not None and (not _is_whole(steps) or steps < 1):
        raise InputError(f"steps is {steps!r}; it must be a whole number ≥ 1.")
    if batch_size is not None:
        if target.size is None:
            raise InputError(
                f"batch_size is {batch_size}, but the target has no data: use the mini-batch form, "
                "Target(log_likelihood=…, log_prior=…, data=…)."
            )
        if not _is_whole(batch_size) or not 1 <= batch_size <= target.size:
            raise InputError(
                f"batch_size is {batch_size!r}; it must be between 1 and the {target.size} data."
            )
    if isinstance(method, Selective):
        planned = method.default_steps(target.dim) if steps is None else steps
        method.check_run(int(planned), batch_size)
    if isinstance(init, Posterior):
        _check_continuation(init, method, target)
    elif isinstance(init, jax.Array | np.ndarray):
        _check_points(init, method, target)
    elif init is not None:
        require_choice(init, ("auto", "pathfinder", "laplace"), "init")


def _check_points(points: Any, method: Method, target: Target) -> None:
    n = getattr(method, "particles", None)
    if method.generative or n is None:
        raise NotAvailableError(
            f"init is an array of points, but {type(method).__name__} has no particles to start there. "
            "Use a particle method such as SVGD, or pass Target(initial=point)."
        )
    if np.shape(points) != (n, target.dim) or not np.isfinite(np.asarray(points)).all():
        raise InputError(
            f"init has shape {np.shape(points)}; pass finite points of shape ({n}, {target.dim}), one for each of the "
            f"method's particles={n}."
        )


def _check_continuation(init: Posterior, method: Method, target: Target) -> None:
    if init.method != method:
        raise InputError(
            f"init is a posterior of {init.method}, but the method is {method}. Continue with the same method, "
            "or leave method out."
        )
    if init.dim != target.dim:
        raise InputError(
            f"init is a posterior of dimension {init.dim}, but the target has dim={target.dim}. "
            "Continue on a target of the same coordinates."
        )
    if init.dtype != target.dtype:
        raise InputError(
            f"init is a posterior in {init.dtype}, but the target has dtype {target.dtype}. "
            f"Continue with Target(…, dtype={init.dtype.name!r})."
        )


def _check_one_form(targets: Sequence[Target]) -> None:
    """One program serves all the targets, so that all but their arrays must be the first one's."""
    if not targets:
        raise InputError("targets is empty; pass one target for each seed.")

    def form(target: Target) -> tuple:
        leaves = jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf,
            jax.tree.leaves(target),
        )
        return target.dim, target.temperature, target.dtype, target.names, leaves

    for index, target in enumerate(targets):
        if form(target) != form(targets[0]):
            raise InputError(
                f"targets[{index}] is not of the form of targets[0]: they may differ in the values of data and initial "
                "alone. Define the functions once, and pass what differs as data."
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class _Failure(NamedTuple):
    """The first step that was not finite, the term that says so, and which of the lanes it was in."""

    step: int
    term: str
    lanes: np.ndarray
    reported: bool = True
    """Whether a step reported it; otherwise it was seen in the state after the last one."""


def _first_failure(terms: dict[str, np.ndarray], arrays: PyTree) -> _Failure | None:
    bad = {name: ~np.isfinite(values) for name, values in terms.items()}
    steps = {name: int(np.nonzero(where)[-1].min()) for name, where in bad.items() if where.any()}
    if steps:
        name = min(steps, key=lambda name: steps[name])
        lanes = np.asarray(np.any([where.any(-1) for where in bad.values()], axis=0))
        return _Failure(steps[name], name, lanes)
    if _all_finite(arrays):
        return None
    values = next(iter(terms.values()))
    everywhere = np.ones(values.shape[:-1], bool)
    return _Failure(values.shape[-1] - 1, "the state", everywhere, reported=False)


def _with_half_the_step_size(state: State, lanes: np.ndarray) -> State:
    damping = state.learner.damping
    halved = jnp.where(jnp.asarray(lanes), damping / 2, damping)
    return state._replace(learner=state.learner._replace(damping=halved))


@jax.jit
def _all_finite(arrays: PyTree) -> Bool[Array, ""]:
    floats = jax.tree.leaves(eqx.filter(arrays, eqx.is_inexact_array))
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]))


def _label(plan: Plan, target: Density) -> str:
    name = type(plan.method).__name__
    return f"{name} ({plan.method.choices(target.dim)})" if isinstance(plan.method, Paced) else name


def _latest(terms: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value[..., -1].mean()) for name, value in terms.items()}


def _message(method: Method, terms: dict[str, np.ndarray]) -> str:
    name = method.headline if method.headline in terms else "direction"
    return f"{name} {terms[name].mean():.4g}"


class _Interrupts:
    """While open, the first Ctrl-C is noted instead of raised; the second is raised as usual."""

    def __enter__(self) -> Callable[[], bool]:
        self._seen = False
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return lambda: self._seen

    def _note(self, number: int, frame: Any) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = True

    def __exit__(self, *exception: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._previous)
