"""A chunk of training steps as one compiled program, which runs of the same form share.

Step t uses keys folded from t, so no random state is carried along: a chunk is a function of the state, the target, one
key and the number of its first step. The data that its steps see are chosen once, before they begin, because the
shuffle is a loop of unknown length, and such a loop within a step makes a GPU wait for the host.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from gpvi._compute import nvidia
from gpvi._compute.noise import divided, folded
from gpvi._compute.operation_counts import operations
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.parallel.hosts import gathered
from gpvi.parallel.memory import needed
from gpvi.parallel.mesh import (
    PARTICLES,
    Layout,
    active,
    bytes_per_device,
    data_rows,
    distribute_data,
    draws_axis,
    replicate_rest,
    replicated,
)
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import Density, expensive
from gpvi.targets.minibatch import chunk_indices

CHUNKS = 50
"""A run is divided into about this many chunks."""
LONGEST_CHUNK = 1_000
"""Most steps in a chunk."""
CHUNK_OPERATIONS = 2**33
"""Most operations in a chunk where log p is expensive; a core takes one or two seconds for them."""
SHORTEST_CHUNK = 2
"""Fewest steps in a chunk. The compiler would unroll a loop of one step, and its results would round differently."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run: a method and its optimiser, the number of steps, the batch size, and the number of seeds.

    Training may stop at the end of each of the `rounds`, if there are any.
    """

    method: Method
    optimizer: optax.GradientTransformation
    steps: int
    batch_size: int | None = None
    seeds: int | None = None
    rounds: tuple[int, ...] = ()
    shared: tuple[bool, ...] = ()
    """For each array of the target, whether all seeds share it; otherwise each seed has its own."""
    longest: int = LONGEST_CHUNK
    """Most steps in a chunk."""
    mesh: Mesh | None = None
    """The devices over which a step, or the seeds, are distributed."""

    def layout(self, state: State) -> Layout | None:
        """Return how the state is placed on the mesh: particles are always split, parameters if they are large."""
        if self.mesh is None:
            return None
        names = self.mesh.axis_names
        if self.seeds is not None:
            return Layout(self.mesh, names, 0, first=True)
        placement = getattr(state.learner.model, "placement", "parameters")
        if placement == "replicated":
            return Layout(self.mesh, ())
        if placement == "parameters":
            return Layout(self.mesh, names)
        if self.method.independent:
            return Layout(self.mesh, tuple(n for n in names if n == PARTICLES), 0, first=True)
        return Layout(self.mesh, (draws_axis(names),), 0)

    def place(self, arrays: PyTree, state: State) -> PyTree:
        """Place the arrays of a state on the mesh."""
        layout = self.layout(state)
        return arrays if layout is None else layout.place(arrays)

    def place_target(self, density: Whitened) -> Whitened:
        """Distribute the target's data over the mesh, and copy everything else to every device."""
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
            return replicate_rest(own, self.mesh)
        data = distribute_data(density.target.data, self.mesh)
        placed = eqx.tree_at(lambda d: d.target.data, density, data, is_leaf=lambda x: x is None)
        return replicate_rest(placed, self.mesh)

    def collect(self, arrays: PyTree) -> PyTree:
        """Gather the arrays of a state on one device."""
        return (
            arrays
            if self.mesh is None
            else jax.tree.map(lambda a: jnp.asarray(gathered(a)), arrays)
        )

    @property
    def chunk(self) -> tuple[int, bool]:
        """The number of steps in a chunk, and whether the last chunk must mask some of its steps."""
        return chunk_length(self.steps, self.rounds, self.longest)


def chunk_length(
    steps: int, rounds: tuple[int, ...] = (), longest: int = LONGEST_CHUNK
) -> tuple[int, bool]:
    """Return the number of steps in a chunk, and whether the last chunk must mask some of its steps.

    One program serves all chunks. A divisor of every round and of `steps`, near steps / 50, needs no mask. If there is
    none (a prime number of steps), the surplus steps of the last chunk are computed and dropped.
    """
    aim = max(1, min(longest, steps // CHUNKS))
    divisible = math.gcd(*rounds) if rounds else steps
    for length in range(aim, 0 if rounds else max(1, aim // 4) - 1, -1):
        if divisible % length == 0:
            return length, False
    return aim, True


def stack(trees: Sequence[PyTree], *, share: bool = False) -> tuple[PyTree, tuple[bool, ...]]:
    """Stack the arrays of trees of one structure along a new first axis.

    With `share`, an array that all trees hold in common is not stacked; the second result says which these are. What
    is not an array is taken from the first tree.
    """
    arrays = [eqx.filter(tree, eqx.is_array) for tree in trees]
    static = eqx.filter(trees[0], eqx.is_array, inverse=True)
    leaves = list(zip(*(jax.tree.leaves(tree) for tree in arrays), strict=True))
    shared = tuple(share and all(leaf is each[0] for leaf in each) for each in leaves)
    joined = jax.tree.unflatten(
        jax.tree.structure(arrays[0]),
        [each[0] if same else jnp.stack(each) for each, same in zip(leaves, shared, strict=True)],
    )
    return eqx.combine(joined, static), shared


class Program:
    """A chunk, compiled once for each set of shapes, types and placements of its arguments."""

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
        """Run the chunk; return the arrays of the new state, and the terms that each step reports.

        The given arrays are donated. `batches`, (steps, batch, …), are needed if the target's data are streamed.
        """
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, first, batches)
        return self.compiled(*arguments)(*arguments)

    def compiled(self, *arguments: PyTree) -> jax.stages.Compiled:
        """Return the executable for arguments of these shapes, types and placements."""
        leaves, structure = jax.tree.flatten(arguments)
        form = structure, tuple((jax.typeof(leaf), leaf.sharding) for leaf in leaves)
        if form not in self._compiled:
            lowered = self._chunk.lower(*arguments)
            self._compiled[form] = lowered.compile(compiler_options=nvidia.compiler_options())
        return self._compiled[form]

    def text(
        self, arrays: PyTree, target: Density, key: PRNGKeyArray, batches: PyTree = None
    ) -> str:
        """Return the lowered program as text, constants included. It identifies the run in any process."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0), batches)
        return self._chunk.lower(*arguments).as_text()

    def memory(
        self, arrays: PyTree, target: Density, key: PRNGKeyArray, batches: PyTree = None
    ) -> int | None:
        """Return the peak memory of a run on one device, in bytes; the run keeps two more copies of the state."""
        arguments = (arrays, eqx.filter(target, eqx.is_array), key, jnp.asarray(0), batches)
        found = needed(self.compiled(*arguments))
        state = sum(bytes_per_device(leaf) for leaf in jax.tree.leaves(arrays))
        return None if found is None else found + 2 * state


def limit_chunk_time(plan: Plan, target: Density, state: State) -> Plan:
    """Return the plan with shorter chunks if log p is expensive, so that Ctrl-C is answered within seconds."""
    if plan.batch_size is not None or not expensive(target):
        return plan
    arrays, static = eqx.partition((target, state), eqx.is_array)

    def step(arrays: PyTree, key: PRNGKeyArray) -> PyTree:
        target, state = eqx.combine(arrays, static)
        after = plan.method.step(target, plan.optimizer, state, None, key=key)
        return eqx.filter(after, eqx.is_array)

    count = operations(step, arrays, jax.random.key(0))
    return dataclasses.replace(
        plan, longest=min(plan.longest, max(SHORTEST_CHUNK, int(CHUNK_OPERATIONS // count)))
    )


def compile_chunk(plan: Plan, target: Density, state: State) -> Program:
    """Return the program of a plan; a second run that differs in its arrays only gets the same program."""
    forms = [jax.tree.flatten(eqx.filter(t, eqx.is_array, inverse=True)) for t in (state, target)]
    keys = [(tuple(leaves), structure) for leaves, structure in forms]
    try:
        return _program(plan, *keys)
    except TypeError:  # something in the state or target cannot be hashed
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
        shuffle_key, noise_key = divided(key, 2)

        rows = None
        if plan.batch_size is not None and batches is None:
            rows = chunk_indices(first, length, target.size, plan.batch_size, key=shuffle_key)

        def one(
            arrays: PyTree, at: tuple[Int[Array, ""], Int[Array, " b"] | None, PyTree]
        ) -> tuple[PyTree, dict[str, Array]]:
            index, rows, batch = at
            batch = data_rows(batch if rows is None else target.batch(rows))
            state = _with_whole_parameters(eqx.combine(arrays, static))
            step_key = folded(noise_key, index)
            state, info = plan.method.step(target, plan.optimizer, state, batch, key=step_key)
            moved = eqx.filter(state, eqx.is_array)
            if masked:
                moved = jax.tree.map(
                    lambda new, old: jnp.where(index < plan.steps, new, old), moved, arrays
                )
            return moved if layout is None else layout.constrain(moved), info

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
    """Gather a generator's parameters: every draw needs all of them, so on a mesh every device does."""
    model = state.learner.model
    if getattr(model, "placement", "parameters") == "parameters":
        model = replicated(model)
    return state._replace(learner=state.learner._replace(model=model))
