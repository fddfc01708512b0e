"""The cost of a run, measured before it is made."""

import dataclasses
import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi._html import table
from gpvi.methods import Method
from gpvi.parallel.memory import GIB
from gpvi.specs import as_key
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target
from gpvi.training._prefetch import Feed, example
from gpvi.training.preparation import like_the_coordinates, planned
from gpvi.training.program import compile_chunk, limit_chunk_time
from gpvi.training.stopping import ATTEMPTS

LONGEST, SLOW_DRAWS = 10.0, 256
"""A chunk that would take longer than this many seconds, at this many draws per step, is not run; one step is."""


class Estimate(NamedTuple):
    """The cost of a run, as `gpvi.estimate` measures it; printed, it is one line.

    Parameters
    ----------
    steps
        The number of steps; training may stop earlier.
    compile_seconds, step_seconds
        The time of compiling, and of one step.
    memory
        The peak memory on one device, in bytes; None if the compiler does not report it.
    attempts
        How often training may begin: it begins anew if its draws cannot be trusted.
    """

    steps: int
    compile_seconds: float
    step_seconds: float
    memory: int | None
    attempts: int = 1

    @property
    def seconds(self) -> float:
        """The time of compiling and of all steps of one attempt."""
        return self.compile_seconds + self.steps * self.step_seconds

    def __repr__(self) -> str:
        return f"<Estimate: {self}>"

    def _repr_html_(self) -> str:
        memory = "" if self.memory is None else f"{self.memory / GIB:.3f} GiB"
        rows = [
            ("steps, at most", f"{self.steps:,}"),
            ("a step", f"{1e3 * self.step_seconds:.2g} ms"),
            ("compiling", f"{self.compile_seconds:.2g} s"),
            ("together", _duration(self.seconds)),
            ("attempts, at most", f"{self.attempts}"),
            *([("memory", memory)] if memory else []),
        ]
        return table(rows, caption="Estimate")

    def __str__(self) -> str:
        memory = "" if self.memory is None else f", {self.memory / GIB:.3f} GiB of memory"
        if self.attempts > 1:
            memory += f"; up to {self.attempts} times as long if its draws cannot be trusted"
        return (
            f"{self.steps:,} steps of {1e3 * self.step_seconds:.2g} ms after {self.compile_seconds:.2g} s of "
            f"compiling: {_duration(self.seconds)}{memory}"
        )


def estimate(
    target: Target,
    method: Method | str | None = None,
    *,
    key: PRNGKeyArray | int,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    mesh: Mesh | int | None = None,
) -> Estimate:
    """Measure what `gpvi.fit` with the same arguments will cost, by compiling its program and running a few steps.

    A chunk of steps is run, or a single step if a chunk would take long. A `fit` that follows with the default `init`
    does not compile its steps again. Not counted are the search for a start and the stopping rule between rounds: some
    seconds.

    Parameters
    ----------
    target, method, key, steps, optimizer, batch_size, mesh
        As for `gpvi.fit`.

    Returns
    -------
    Estimate
        Time and memory.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> gpvi.estimate(target, gpvi.SVGD(), steps=100, key=key).steps
    100
    """
    plan = planned(target, method, steps, optimizer, batch_size, "auto", mesh)
    key = as_key(key)
    start_key, init_key, run_key = jax.random.split(key, 3)
    with target.precision():
        target = target.checked(plan.batch_size)
        scale = like_the_coordinates(plan.method, target).scale
        density = Whitened(target, Affine(target.starting_points(1, key=start_key)[0], scale))
        state = plan.method.init(density, plan.optimizer, key=init_key)
        plan = limit_chunk_time(plan, density, state)
        program = compile_chunk(plan, density, state)
        density = plan.place_target(density)
        arrays = plan.place(eqx.filter(state, eqx.is_array), state)
        began = time.perf_counter()
        memory = program.memory(arrays, density, run_key, example(plan, density))
        compile_seconds = time.perf_counter() - began
        if plan.chunk[0] * SLOW_DRAWS * _evaluation_seconds(density) > LONGEST:
            plan = dataclasses.replace(plan, longest=1)
            program = compile_chunk(plan, density, state)
            program.memory(arrays, density, run_key, example(plan, density))
        with Feed(plan, density) as feed:
            began = time.perf_counter()
            jax.block_until_ready(
                program(arrays, density, run_key, jnp.asarray(0), feed(run_key, 0))
            )
            step_seconds = (time.perf_counter() - began) / plan.chunk[0]
    attempts = ATTEMPTS if plan.rounds else 1
    return Estimate(plan.steps, compile_seconds, step_seconds, memory, attempts)


def _evaluation_seconds(density: Whitened) -> float:
    """Time log p and its gradient at one point, after compiling; streamed data are sampled."""
    point, some = jnp.zeros(density.dim, density.dtype), density.target.subsample()
    jax.block_until_ready(_score(density, point, some))
    began = time.perf_counter()
    jax.block_until_ready(_score(density, point, some))
    return time.perf_counter() - began


@eqx.filter_jit
def _score(density: Whitened, u: Float[Array, " d"], batch: PyTree) -> Float[Array, " d"]:
    return jax.grad(density.log_density)(u, batch)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6_000 else f"about {seconds / 3600:.1f} h"
