"""What a run will cost, before it is made."""

import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from gpvi.affine import Affine
from gpvi.feed import Feed, example
from gpvi.fit import planned
from gpvi.memory import GIB
from gpvi.methods import Method
from gpvi.program import compile_chunk
from gpvi.specs import require_key
from gpvi.starting import keeps_its_coordinates
from gpvi.target import Target
from gpvi.whitened import Whitened


class Estimate(NamedTuple):
    """The cost of a run."""

    steps: int
    """At most, where training may stop early."""
    compile_seconds: float
    step_seconds: float
    memory: int | None
    """Bytes of a device at the height of the run; None where the compiler does not tell."""

    @property
    def seconds(self) -> float:
        """Of all steps, and compiling."""
        return self.compile_seconds + self.steps * self.step_seconds

    def __str__(self) -> str:
        memory = "" if self.memory is None else f", {self.memory / GIB:.3f} GiB of memory"
        return (
            f"{self.steps:,} steps of {1e3 * self.step_seconds:.2g} ms after {self.compile_seconds:.2g} s of "
            f"compiling: {_duration(self.seconds)}{memory}"
        )


def estimate(
    target: Target,
    method: Method | None = None,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    mesh: Mesh | int | None = None,
) -> Estimate:
    """What `gpvi.fit` with the same arguments will cost: its program is compiled, and run for one chunk of steps.

    A `fit` that follows with the default `init` does not compile its steps again. The search for a start and, where
    training goes in rounds, the looks between them are not counted: a few seconds. A run that is not trusted begins
    anew, at most twice.
    """
    plan = planned(target, method, steps, optimizer, batch_size, "auto", mesh)
    require_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with target.precision():
        target = target.checked(plan.batch_size)
        scale = jnp.ones(target.dim, target.dtype)
        if plan.method.coordinates == "dense" and not keeps_its_coordinates(target):
            scale = jnp.diag(scale)
        density = Whitened(target, Affine(target.starting_points(1, key=start_key)[0], scale))
        state = plan.method.init(density, plan.optimizer, key=init_key)
        program = compile_chunk(plan, density, state)
        density = plan.place_target(density)
        arrays = plan.place(eqx.filter(state, eqx.is_array), state)
        began = time.perf_counter()
        memory = program.memory(arrays, density, run_key, example(plan, density))
        with Feed(plan, density) as feed:
            compiled = time.perf_counter()
            jax.block_until_ready(
                program(arrays, density, run_key, jnp.asarray(0), feed(run_key, 0))
            )
            step_seconds = (time.perf_counter() - compiled) / plan.chunk[0]
    return Estimate(plan.steps, compiled - began, step_seconds, memory)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6_000 else f"about {seconds / 3600:.1f} h"
