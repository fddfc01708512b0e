"""The only training loop: it runs a method's `step` in compiled chunks.

Between two chunks Python checks the reported terms, moves the progress bar, calls the callbacks, saves a checkpoint and
decides whether to continue. Step t uses keys folded from t, so no random state is carried along.
"""

import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from gpvi._compute.noise import folded
from gpvi.errors import DivergenceError, StorageError, TrainingWarning, warn
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.parallel import hosts
from gpvi.parallel.memory import shortage
from gpvi.posterior.history import Training
from gpvi.progress import Meter
from gpvi.targets.density import Density
from gpvi.training._prefetch import Feed, example
from gpvi.training.checkpoint import Log
from gpvi.training.program import Plan, Program
from gpvi.training.recovery import Run, first_failure, rejections
from gpvi.training.stopping import Judge

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM has ended."""


class AbandonedError(Exception):
    """A look at the draws was given up, because it was interrupted; the run is told by the signal itself."""


@dataclasses.dataclass(frozen=True)
class Event:
    """What callbacks get after each chunk of steps; a callback stops training by raising `StopIteration`.

    Parameters
    ----------
    step, steps
        Steps taken so far, and steps planned.
    terms
        The terms that the last step reported, such as "elbo".
    state
        The state of the method.

    Examples
    --------
    >>> def stop_early(event: gpvi.Event) -> None:
    ...     if event.step >= 100:
    ...         raise StopIteration
    """

    step: int
    steps: int
    terms: dict[str, float]
    state: State


Callback = Callable[[Event], None]


class Watch(NamedTuple):
    """What happens between two chunks: progress, the stopping rule, callbacks and checkpoints.

    The meter has been started, and is closed by who did so.
    """

    meter: Meter
    callbacks: Sequence[Callback] = ()
    judge: Judge | None = None
    log: Log | None = None

    def begin(self, arrays: PyTree) -> Run:
        """Return a new run, or the run as the newest checkpoint has it."""
        run = Run(arrays)
        if self.log is not None:
            run = self.log.resumed(run)
        if self.judge is not None:
            self.judge.last = run.last_assessed
        return run

    def apply_rule(self, run: Run, state: State) -> None:
        """Apply the stopping rule to the state at the end of a round, unless that was done before."""
        if self.judge is None or run.done in run.assessed:
            return
        exploring = "exploring and judging" if self.judge.last is None else "judging the draws"
        self.meter.update(run.done, exploring)
        run.stopped, run.assessed[run.done] = self.judge(state, run.last_assessed)

    def look(self, run: Run, event: Event) -> None:
        """Call the callbacks, and save if a save is due."""
        for callback in self.callbacks:
            callback(event)
        if self.log is not None:
            self.log.offer(run)

    def end(self, run: Run) -> None:
        """Save, however the run ended."""
        if self.log is not None:
            self.log.save(run)


def train(
    plan: Plan, program: Program, target: Density, state: State, watch: Watch, *, key: PRNGKeyArray
) -> tuple[State, Training]:
    """Run the chunks; return the last good state, and how the training went."""
    length, _ = plan.chunk
    ends = set(np.cumsum(plan.rounds).tolist())
    arrays, static = eqx.partition(state, eqx.is_array)
    run = watch.begin(arrays)
    run.arrays, run.before = plan.place(run.arrays, state), plan.place(run.before, state)
    began = time.perf_counter() - run.seconds
    cut_short: str | None = None
    with Interrupts(term=watch.log is not None) as interrupted, Feed(plan, target) as feed:
        try:
            if run.done in ends:  # the process ended before the rule was applied
                watch.apply_rule(run, eqx.combine(run.arrays, static))
            if run.going(plan.steps):
                batches = example(plan, target)
                run.warn(shortage(program.memory(run.arrays, target, key, batches)))
                del batches
            while run.going(plan.steps) and not interrupted():
                chunk_key = folded(key, run.retries)
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
                now = eqx.combine(arrays, static)
                if run.done in ends:
                    watch.apply_rule(run, now)
                watch.look(run, Event(run.done, plan.steps, _latest(terms), now))
        except AbandonedError:
            pass
        except StopIteration:
            cut_short = f"stopped by a callback after step {run.done} of {plan.steps}"
        except (jax.errors.JaxRuntimeError, StorageError) as error:
            if run.done == 0:
                raise
            cut_short = f"stopped after step {run.done} of {plan.steps}, as the next failed: {_cause(error)}"
        finally:
            watch.end(run)
    watch.meter.update(run.done, run.ended(plan.steps))
    _conclude(run, plan.steps, watch.log, cut_short, interrupted())
    history = run.history()
    taken = plan.method.gradients(history, target.dim) if history else 0
    training = Training(
        run.done,
        plan.steps if run.stopped is None else run.done,
        run.seconds,
        history,
        tuple(run.notes),
        chosen=f"{label(plan.method, target.dim)}; {run.ending(plan.steps)}",
        gradients=None if taken is None else taken + run.gradients_of_looks,
        interrupted=bool(interrupted()) and run.going(plan.steps),
        unfinished=run.going(plan.steps),
    )
    return eqx.combine(plan.collect(run.arrays), static), training


def _cause(error: Exception) -> str:
    """Return the line of an error that says what went wrong; for a traceback, the line that names the exception."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if not lines[0].endswith("Traceback (most recent call last):"):
        return lines[0].strip()
    places = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[max(places, default=0) + 1 :]
    return next((line for line in after if not line.startswith(" ")), lines[-1]).strip()


def _conclude(
    run: Run, steps: int, log: Log | None, cut_short: str | None, interrupted: int
) -> None:
    """Give the run's notes as warnings, after its last save: a run that resumes from there has not ended."""
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
            warn(note, TrainingWarning)
    if run.done == 0 and not interrupted and run.notes:
        raise DivergenceError(
            f"no step was finite: {run.notes[-1]}. Check the log-density near the start (target.check()), and that it "
            "falls far out, as a density must; or pass initial=, a smaller learning rate, or another init."
        )


def label(method: Method, dim: int) -> str:
    """Return the name of a method, with what it chooses by itself."""
    name, choices = type(method).__name__, method.choices(dim)
    return f"{name} ({choices})" if choices else name


def _latest(terms: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value[..., -1].mean()) for name, value in terms.items()}


def _message(method: Method, terms: dict[str, np.ndarray]) -> str:
    name = method.headline if method.headline in terms else "direction"
    return f"{name} {terms[name].mean():.4g}"


class Interrupts:
    """A context in which the first Ctrl-C (and SIGTERM, if asked for) is noted, and only the second raises."""

    def __init__(self, *, term: bool):
        self._watched = (signal.SIGINT, signal.SIGTERM) if term else (signal.SIGINT,)

    def __enter__(self) -> Callable[[], int]:
        self._seen = 0
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._watched}
        return lambda: hosts.largest(self._seen)

    def _note(self, number: int, frame: Any) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = number

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(
                number, handler or signal.SIG_DFL
            )  # None: it was not installed from Python
