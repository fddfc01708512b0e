"""A chunk of training steps as one compiled program, which runs of the same form share.

Step t uses keys folded from t, so nothing random is carried along, and a chunk is a function of the state, the target,
one key and the number of its first step.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.minibatch import batch_indices
from gpvi.target import Density

CHUNKS = 50
LONGEST_CHUNK = 1_000


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
    shared: tuple[bool, ...] = ()
    """Of each array of the target, whether the lanes share one instead of having each its own."""


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


class Program:
    """A chunk, compiled once for each form of its arguments."""

    def __init__(self, chunk: Callable):
        self._chunk = jax.jit(chunk, donate_argnums=0)
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def __call__(
        self, arrays: PyTree, target: Density, key: PRNGKeyArray, first: Int[Array, ""]
    ) -> tuple[PyTree, dict[str, Array]]:
        """The arrays of the state after the chunk, and what each step reports; the given arrays are used up."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, first)
        return self.compiled(*arguments)(*arguments)

    def compiled(self, *arguments: PyTree) -> jax.stages.Compiled:
        """The executable for arguments of these shapes, types and places."""
        leaves, structure = jax.tree.flatten(arguments)
        form = structure, tuple((jax.typeof(leaf), leaf.sharding) for leaf in leaves)
        if form not in self._compiled:
            self._compiled[form] = self._chunk.lower(*arguments).compile()
        return self._compiled[form]

    def text(self, arrays: PyTree, target: Density, key: PRNGKeyArray) -> str:
        """What was traced, constants included: the same for the same run in any process."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0))
        return self._chunk.lower(*arguments).as_text()

    def memory(self, arrays: PyTree, target: Density, key: PRNGKeyArray) -> int | None:
        """Bytes at the height of a run, which keeps two more copies of the state to go back to."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0))
        found = self.compiled(*arguments).memory_analysis()
        if found is None:
            return None
        state = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
        needed = found.argument_size_in_bytes + found.output_size_in_bytes
        return needed - found.alias_size_in_bytes + found.temp_size_in_bytes + 2 * state


def compile_chunk(plan: Plan, target: Density, state: State) -> Program:
    """The program of a plan; found again by all that is not an array, so that a second run compiles nothing."""
    forms = [jax.tree.flatten(eqx.filter(t, eqx.is_array, inverse=True)) for t in (state, target)]
    keys = [(tuple(leaves), structure) for leaves, structure in forms]
    try:
        return _program(plan, *keys)
    except TypeError:  # something in it cannot be hashed
        return _program.__wrapped__(plan, *keys)


@functools.lru_cache(maxsize=16)
def _program(plan: Plan, state_form: Any, target_form: Any) -> Program:
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
        own = jax.tree.unflatten(
            jax.tree.structure(data), [None if shared else 0 for shared in plan.shared]
        )
        return jax.vmap(advance, (0, own, 0, None))(
            arrays, data, jax.random.split(key, plan.lanes), first
        )

    return Program(advance_lanes)
