"""Going back: what is kept of a run, and what happens when a step is not finite."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from gpvi.methods.base import State
from gpvi.training.stopping import Assessment

RETRIES = 8
TOLERATED = 0.05
"""Share of non-finite draws below which no warning is given."""


class Run:
    """The last good state, and the way there.

    A state is good if the step from it is finite. One reached at the end of a chunk is not known to be, so where the
    first step of a chunk fails, the run goes back to the beginning of the chunk before.
    """

    def __init__(self, arrays: PyTree):
        self.arrays = arrays
        self.before: PyTree = None
        """The state at the beginning of the last chunk, to go back to; None where there is none."""
        self.done = self.retries = 0
        self.notes: list[str] = []
        self.given_up = False
        self.stopped: str | None = None
        """Why it was judged to be done before its time."""
        self.assessed: dict[int, Assessment] = {}
        """What was seen of the draws at the end of each round, by the number of steps taken."""
        self.seconds = 0.0
        """Of earlier parts of the run."""
        self._record: list[dict[str, np.ndarray]] = []

    def going(self, steps: int) -> bool:
        """Whether there is something left to do."""
        return self.done < steps and not self.given_up and self.stopped is None

    def ending(self, steps: int) -> str:
        """How long it took, and why not longer."""
        if self.stopped is not None:
            return f"stopped after {self.done:,} of at most {steps:,} steps: {self.stopped}"
        return f"{steps:,} steps" if self.done == steps else f"{self.done:,} of {steps:,} steps"

    @property
    def last_assessed(self) -> Assessment | None:
        """At the end of the last round."""
        return self.assessed[max(self.assessed)] if self.assessed else None

    def warn(self, note: str | None) -> None:
        """Something the user should know, and has not been told of this run before."""
        if note is not None and note not in self.notes:
            self.notes.append(note)

    def accept(self, arrays: PyTree, terms: dict[str, np.ndarray], taken: int) -> None:
        """A chunk was finite."""
        record = [*self._record, terms]
        self.before, self.arrays, self.done, self._record = (
            self.arrays,
            arrays,
            self.done + taken,
            record,
        )

    def retreat(self, failure: "Failure") -> None:
        """Go back, with half the step size; give up after `RETRIES`."""
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
        """Each reported term at every step."""
        names = self._record[0] if self._record else {}
        return {name: np.concatenate([terms[name] for terms in self._record], -1) for name in names}

    def chunks(self) -> list[int]:
        """The lengths of the chunks that the history is made of."""
        return [next(iter(terms.values())).shape[-1] for terms in self._record]

    def restore(self, history: dict[str, np.ndarray], chunks: list[int]) -> None:
        """Take up a history whose chunks have these lengths."""
        ends = np.cumsum(chunks)[:-1]
        parts = {name: np.split(values, ends, axis=-1) for name, values in history.items()}
        self._record = [
            {name: values[number] for name, values in parts.items()}
            for number in range(len(chunks))
        ]


def rejections(history: dict[str, np.ndarray]) -> str | None:
    """What to know of the draws of the last steps, a tenth of all or 20, at which log p was not finite."""
    rejected = history.get("rejected", np.zeros(1))
    share = float(rejected[..., -max(20, rejected.shape[-1] // 10) :].mean())
    if not share > TOLERATED:
        return None
    return (
        f"{share:.0%} of the last draws fell where log p is not finite, and had no score: the posterior is not "
        "known there. Transform a coordinate with a bounded range into an unconstrained one, or use dtype='float64' "
        "where numbers underflow (see target.debug())"
    )


class Failure(NamedTuple):
    """The first step that was not finite, the term that says so, and which of the seeds it was in."""

    step: int
    term: str
    seeds: np.ndarray
    reported: bool = True
    """Whether a step reported it; otherwise it was seen in the state after the last one."""


def first_failure(terms: dict[str, np.ndarray], arrays: PyTree) -> Failure | None:
    """The first step of a chunk that is not finite, or the state after it."""
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


@functools.partial(jax.jit, static_argnums=1)
def _finite(arrays: PyTree, leading: int) -> Bool[Array, "..."]:
    """Whether a state is finite, for each seed where it has a leading axis of them."""
    floats = jax.tree.leaves(eqx.filter(arrays, eqx.is_inexact_array))
    axes = [tuple(range(leading, leaf.ndim)) for leaf in floats]
    each = [jnp.isfinite(leaf).all(axis) for leaf, axis in zip(floats, axes, strict=True)]
    return jnp.all(jnp.stack(each), 0)
