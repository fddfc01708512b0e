"""Recovery from non-finite steps: the run goes back to its last good state and halves its step size."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from gpvi._compute.brief import brief
from gpvi.methods.base import State
from gpvi.training.stopping import Assessment

RETRIES = 8
"""How often a run goes back before it gives up."""
TOLERATED_REJECTED = 0.05
"""Share of non-finite draws below which no warning is given."""


class Run:
    """The state of a training run and its history so far.

    A state is good if the step from it is finite. That is not yet known of the state at the end of a chunk. If the
    first step of a chunk fails, the run therefore goes back to the beginning of the previous chunk.
    """

    def __init__(self, arrays: PyTree):
        self.arrays = arrays
        self.before: PyTree = None
        """The state at the beginning of the last chunk, to go back to, if there is one."""
        self.done = self.retries = 0
        self.notes: list[str] = []
        self.given_up = False
        self.stopped: str | None = None
        """Why the stopping rule ended the run early."""
        self.assessed: dict[int, Assessment] = {}
        """The assessment at the end of each round, by the number of steps taken."""
        self.seconds = 0.0
        """Wall-clock time so far, earlier processes included."""
        self._record: list[dict[str, np.ndarray]] = []

    def going(self, steps: int) -> bool:
        """Whether steps remain to be taken."""
        return self.done < steps and not self.given_up and self.stopped is None

    def ending(self, steps: int) -> str:
        """Return how many steps were taken, and why not more."""
        if self.stopped is not None:
            return f"stopped after {self.done:,} of at most {steps:,} steps: {self.stopped}"
        return f"{steps:,} steps" if self.done == steps else f"{self.done:,} of {steps:,} steps"

    def ended(self, steps: int) -> str:
        """Return how the run ended, in a few words for the progress line."""
        if self.stopped is not None:
            return f"done: {self.stopped.partition(' (')[0]} after {self.done:,} steps"
        if self.done == steps:
            return f"done: {steps:,} steps"
        return f"ended after {self.done:,} of {steps:,} steps"

    @property
    def last_assessed(self) -> Assessment | None:
        """The assessment at the end of the last round."""
        return self.assessed[max(self.assessed)] if self.assessed else None

    @property
    def gradients_of_looks(self) -> int:
        """The gradients that went into looking at chains."""
        outlooks = (each.outlook for each in self.assessed.values())
        return sum(each.gradients for each in outlooks if each is not None)

    def warn(self, note: str | None) -> None:
        """Add a note for the user, unless the run has it already."""
        if note is not None and note not in self.notes:
            self.notes.append(note)

    def accept(self, arrays: PyTree, terms: dict[str, np.ndarray], taken: int) -> None:
        """Take over the state after a chunk of finite steps."""
        record = [*self._record, terms]
        self.before, self.arrays, self.done, self._record = (
            self.arrays,
            arrays,
            self.done + taken,
            record,
        )

    def retreat(self, failure: "Failure") -> None:
        """Go back and halve the step size; give up after `RETRIES` times."""
        self.retries += 1
        where = f"step {self.done + failure.step}: {failure.term} is not finite"
        if failure.step == 0 and failure.reported and self.before is not None:
            self.arrays, self.before = self.before, None
            self.done -= self._record.pop()[failure.term].shape[-1]
            self.assessed = {at: seen for at, seen in self.assessed.items() if at <= self.done}
        if self.retries > RETRIES:
            self.given_up = True
            self.notes.append(f"stopped at {where}, after {RETRIES} halvings of the step size")
            return
        self.arrays = _with_half_the_step_size(self.arrays, failure.seeds)
        self.notes.append(f"{where}; went back to step {self.done} with half the step size")

    def history(self) -> dict[str, np.ndarray]:
        """Return every reported term, with one value per step."""
        names = self._record[0] if self._record else {}
        return {name: np.concatenate([terms[name] for terms in self._record], -1) for name in names}

    def chunks(self) -> list[int]:
        """Return the lengths of the chunks in the history."""
        return [next(iter(terms.values())).shape[-1] for terms in self._record]

    def restore(self, history: dict[str, np.ndarray], chunks: list[int]) -> None:
        """Restore a history whose chunks have these lengths."""
        ends = np.cumsum(chunks)[:-1]
        parts = {name: np.split(values, ends, axis=-1) for name, values in history.items()}
        self._record = [
            {name: values[number] for name, values in parts.items()}
            for number in range(len(chunks))
        ]


def rejections(history: dict[str, np.ndarray]) -> str | None:
    """Return a note if log p was not finite at many draws of the last tenth of the steps (at least 20)."""
    rejected = history.get("rejected", np.zeros(1))
    share = float(rejected[..., -max(20, rejected.shape[-1] // 10) :].mean())
    if not share > TOLERATED_REJECTED:
        return None
    return (
        f"{share:.0%} of the last draws fell where log p is not finite, and had no score: they were only pulled "
        "back. Transform a coordinate with a bounded range into an unconstrained one, or use dtype='float64' "
        "where numbers underflow (see target.debug())"
    )


class Failure(NamedTuple):
    """The first non-finite step of a chunk, the non-finite term, and the seeds in which it occurred."""

    step: int
    term: str
    seeds: np.ndarray
    reported: bool = True
    """Whether a step reported it; otherwise the state after the last step is not finite."""


def first_failure(terms: dict[str, np.ndarray], arrays: PyTree) -> Failure | None:
    """Find the first non-finite step of a chunk; failing that, check the state after it."""
    bad = {name: ~np.isfinite(values) for name, values in terms.items()}
    steps = {name: int(np.nonzero(where)[-1].min()) for name, where in bad.items() if where.any()}
    if steps:
        name = min(steps, key=lambda name: steps[name])
        seeds = np.asarray(np.any([where.any(-1) for where in bad.values()], axis=0))
        return Failure(steps[name], name, seeds)
    values = next(iter(terms.values()))
    seeds = np.logical_not(_finite(arrays, values.ndim - 1), out=np.empty(values.shape[:-1], bool))
    if not seeds.any():
        return None
    return Failure(values.shape[-1] - 1, "the state", seeds, reported=False)


def _with_half_the_step_size(state: State, seeds: np.ndarray) -> State:
    damping = state.learner.damping
    halved = jnp.where(jnp.asarray(seeds), damping / 2, damping)
    return state._replace(learner=state.learner._replace(damping=halved))


@brief
def _finite(arrays: PyTree, leading: int) -> Bool[Array, "..."]:
    """Return whether a state is finite, for each seed if its arrays have a first axis for seeds."""
    floats = jax.tree.leaves(eqx.filter(arrays, eqx.is_inexact_array))
    axes = [tuple(range(leading, leaf.ndim)) for leaf in floats]
    each = [jnp.isfinite(leaf).all(axis) for leaf, axis in zip(floats, axes, strict=True)]
    return jnp.all(jnp.stack(each), 0)
