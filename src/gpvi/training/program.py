"""A chunk of training steps as one compiled program, which runs of the same form share.

Step t uses keys folded from t, so nothing random is carried along, and a chunk is a function of the state, the target,
one key and the number of its first step. Which data its steps see is computed once, before they begin: the shuffle
walks until all indices fall in range, and a loop of unknown length within a step makes a GPU wait for the host.
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
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from gpvi._compute import nvidia
from gpvi._compute.operation_counts import operations
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.methods.carriers import Chains, Particles
from gpvi.parallel.hosts import at_hand
from gpvi.parallel.memory import needed
from gpvi.parallel.mesh import (
    PARTICLES,
    Layout,
    active,
    bytes_at_each,
    data_rows,
    dividing,
    everywhere,
    shared_out,
    whole,
)
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import Density, expensive
from gpvi.targets.minibatch import chunk_indices

CHUNKS = 50
LONGEST_CHUNK = 1_000
AT_A_TIME = 2**33
"""Operations of a chunk where log p is expensive: a core takes one or two seconds for as many."""
SHORTEST_CHUNK = 2
"""Steps of a chunk, however expensive: a loop of one is no loop to the compiler, and rounds otherwise."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run: a method, its optimiser, for how long, on how many data at a time, in how many seeds at once.

    After each of the `rounds`, if there are any, training may be judged to be done.
    """

    method: Method
    optimizer: optax.GradientTransformation
    steps: int
    batch_size: int | None = None
    seeds: int | None = None
    rounds: tuple[int, ...] = ()
    shared: tuple[bool, ...] = ()
    """Of each array of the target, whether the seeds share one instead of having each its own."""
    longest: int = LONGEST_CHUNK
    """Steps that a chunk may take."""
    mesh: Mesh | None = None
    """The devices that share a step, or the seeds, out among themselves."""

    def layout(self, state: State) -> Layout | None:
        """How the state lies on the mesh: particles always in parts, parameters where they are large."""
        if self.mesh is None:
            return None
        names = self.mesh.axis_names
        if self.seeds is not None:
            return Layout(self.mesh, names, 0, first=True)
        model = state.learner.model
        if isinstance(model, Chains):
            return Layout(self.mesh, ())
        if not isinstance(model, Particles):
            return Layout(self.mesh, names)
        if self.method.independent:
            return Layout(self.mesh, tuple(n for n in names if n == PARTICLES), 0, first=True)
        return Layout(self.mesh, (dividing(names),), 0)

    def place(self, arrays: PyTree, state: State) -> PyTree:
        """The arrays of such a state where they are kept."""
        layout = self.layout(state)
        return arrays if layout is None else layout.place(arrays)

    def place_target(self, density: Whitened) -> Whitened:
        """The target with its data shared out, and all else at every device."""
        if self.mesh is None:
            return density
        if self.seeds is not None:
            leaves, structure = jax.tree.flatten(eqx.filter(density, eqx.is_array))
            seeds = Layout(self.mesh, self.mesh.axis_names, 0, first=True)
            placed = [
                leaf if shared else seeds.place(leaf)
                for leaf, shared in zip(leaves, self.shared, strict=True)
            ]
            own = eqx.combine(jax.tree.unflatten(structure, placed), density)
            return everywhere(own, self.mesh)
        data = shared_out(density.target.data, self.mesh)
        held = eqx.tree_at(lambda d: d.target.data, density, data, is_leaf=lambda x: x is None)
        return everywhere(held, self.mesh)

    def collect(self, arrays: PyTree) -> PyTree:
        """The arrays of a state on one device, wherever their parts are."""
        return (
            arrays if self.mesh is None else jax.tree.map(lambda a: jnp.asarray(at_hand(a)), arrays)
        )

    @property
    def chunk(self) -> tuple[int, bool]:
        """How many steps a chunk takes, and whether the last one must mask some."""
        return chunk_length(self.steps, self.rounds, self.longest)


def chunk_length(
    steps: int, rounds: tuple[int, ...] = (), longest: int = LONGEST_CHUNK
) -> tuple[int, bool]:
    """How many steps one chunk takes, and whether the last chunk must mask some of them.

    One program serves all chunks. A divisor of `steps` near steps / 50, and of every round, needs no mask; where there
    is none (a prime number of steps), the surplus steps of the last chunk are computed and dropped.
    """
    aim = max(1, min(longest, steps // CHUNKS))
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
        self,
        arrays: PyTree,
        target: Density,
        key: PRNGKeyArray,
        first: Int[Array, ""],
        batches: PyTree = None,
    ) -> tuple[PyTree, dict[str, Array]]:
        """The arrays of the state after the chunk, and what each step reports; the given arrays are used up.

        `batches` are those of its steps, (steps, batch, …), where the target does not hold its data.
        """
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, first, batches)
        return self.compiled(*arguments)(*arguments)

    def compiled(self, *arguments: PyTree) -> jax.stages.Compiled:
        """The executable for arguments of these shapes, types and places."""
        leaves, structure = jax.tree.flatten(arguments)
        form = structure, tuple((jax.typeof(leaf), leaf.sharding) for leaf in leaves)
        if form not in self._compiled:
            lowered = self._chunk.lower(*arguments)
            self._compiled[form] = lowered.compile(compiler_options=nvidia.compiler_options())
        return self._compiled[form]

    def text(
        self, arrays: PyTree, target: Density, key: PRNGKeyArray, batches: PyTree = None
    ) -> str:
        """What was traced, constants included: the same for the same run in any process."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0), batches)
        return self._chunk.lower(*arguments).as_text()

    def memory(
        self, arrays: PyTree, target: Density, key: PRNGKeyArray, batches: PyTree = None
    ) -> int | None:
        """Bytes of a device at the height of a run, which keeps two more copies of the state to go back to."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0), batches)
        found = needed(self.compiled(*arguments))
        state = sum(bytes_at_each(leaf) for leaf in jax.tree.leaves(arrays))
        return None if found is None else found + 2 * state


def limit_chunk_time(plan: Plan, target: Density, state: State) -> Plan:
    """The plan; where log p is expensive, with chunks so short that Ctrl-C is answered in seconds."""
    if plan.batch_size is not None or not expensive(target):
        return plan
    arrays, static = eqx.partition((target, state), eqx.is_array)

    def step(arrays: PyTree, key: PRNGKeyArray) -> PyTree:
        target, state = eqx.combine(arrays, static)
        after = plan.method.step(target, plan.optimizer, state, None, key=key)
        return eqx.filter(after, eqx.is_array)

    count = operations(step, arrays, jax.random.key(0))
    return dataclasses.replace(
        plan, longest=min(plan.longest, max(SHORTEST_CHUNK, int(AT_A_TIME // count)))
    )


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
    length, masked = plan.chunk
    static, frame = (jax.tree.unflatten(form[1], form[0]) for form in (state_form, target_form))
    layout = plan.layout(static) if plan.seeds is None else None

    def advance(
        arrays: PyTree, data: PyTree, key: PRNGKeyArray, first: Int[Array, ""], batches: PyTree
    ):
        target = eqx.combine(data, frame)
        shuffle_key, noise_key = jax.random.split(key)

        rows = None
        if plan.batch_size is not None and batches is None:
            rows = chunk_indices(first, length, target.size, plan.batch_size, key=shuffle_key)

        def one(
            arrays: PyTree, at: tuple[Int[Array, ""], Int[Array, " b"] | None, PyTree]
        ) -> tuple[PyTree, dict[str, Array]]:
            index, rows, batch = at
            batch = data_rows(batch if rows is None else target.batch(rows))
            state = _with_whole_parameters(eqx.combine(arrays, static))
            step_key = jax.random.fold_in(noise_key, index)
            state, info = plan.method.step(target, plan.optimizer, state, batch, key=step_key)
            moved = eqx.filter(state, eqx.is_array)
            if masked:
                moved = jax.tree.map(
                    lambda new, old: jnp.where(index < plan.steps, new, old), moved, arrays
                )
            return moved if layout is None else layout.hold(moved), info

        return jax.lax.scan(one, arrays, (first + jnp.arange(length), rows, batches))

    def advance_seeds(
        arrays: PyTree, data: PyTree, key: PRNGKeyArray, first: Int[Array, ""], batches: PyTree
    ):
        if plan.seeds is None:
            with active(plan.mesh):
                return advance(arrays, data, key, first, batches)
        own = jax.tree.unflatten(
            jax.tree.structure(data), [None if shared else 0 for shared in plan.shared]
        )
        return jax.vmap(advance, (0, own, 0, None, None))(
            arrays, data, jax.random.split(key, plan.seeds), first, batches
        )

    return Program(advance_seeds)


def _with_whole_parameters(state: State) -> State:
    """The parameters of a generator meet every draw, so that on a mesh every device needs all of them in a step."""
    model = state.learner.model
    model = model if isinstance(model, Particles) else whole(model)
    return state._replace(learner=state.learner._replace(model=model))
