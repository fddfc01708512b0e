"""A step of SVGD, from few particles and dimensions to many, beside the same step by other libraries."""

import itertools
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Scalar

from gpvi.kernels import RBF, Bandwidth
from gpvi.methods import SVGD
from gpvi.methods.base import State
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target
from gpvi_paper.bench import peers
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

PARTICLES = (10, 100, 1_000)
DIMENSIONS = (100, 1_000, 20_000, 100_000)
LARGEST_PEER = 3 * 10**8
"""Most numbers in the n × n × d array that other libraries form; they are not timed beyond it."""
RATE = 0.1
TOLERANCE = 1e-3
"""How far two steps may differ, relative to the length of the step, in float32."""


def log_density(x: Float[Array, " d"]) -> Scalar:
    """Return a log-density that is cheap beside the step itself."""
    return (0.3 * x - 0.5 * x**2).sum()


def results(setting: Setting) -> Iterator[Result]:
    """Time every pair of sizes."""
    sizes = ((5, 8), (5, 16)) if setting.quick else itertools.product(PARTICLES, DIMENSIONS)
    for n, d in sizes:
        row = f"n = {n:,}, d = {d:,}"
        if setting.wants(row):
            yield from _compared(setting, row, n, d)


def _compared(setting: Setting, row: str, n: int, d: int) -> Iterator[Result]:
    start = jax.random.normal(jax.random.key(0), (n, d), jnp.float32)
    programs, against = {"gpvi": _ours(start, "median")}, {}
    if setting.peers and n * n * d <= LARGEST_PEER:
        task, bandwidth = peers.Stein(log_density, start, RATE), float(2 * d / np.log(n))
        fixed = "gpvi, fixed bandwidth"
        programs[fixed] = _ours(start, bandwidth)
        for name, (step, arguments), ours in (
            ("BlackJAX SVGD", peers.blackjax_svgd(task, bandwidth), fixed),
            ("NumPyro SteinVI", peers.numpyro_stein(task), "gpvi"),
        ):
            programs[name], against[name] = Compiled(step, *arguments), ours
            check_same_step(programs[ours].result, programs[name].result, start, name)
    timings = in_turns(programs, setting.seconds)
    for name in programs:
        yield setting.timed(row, name, timings, against.get(name))


def _ours(start: Float[Array, "n d"], bandwidth: Bandwidth | str | float) -> Compiled:
    n, d = start.shape
    method, optimizer = SVGD(particles=n, kernel=RBF(bandwidth)), optax.sgd(RATE)
    density = Whitened(Target(log_density, dim=d), Affine.identity(d, np.dtype("float32")))
    key = jax.random.key(0)
    state = method.init(density, optimizer, key=key)
    state = eqx.tree_at(lambda s: s.learner.model.positions, state, start)

    def step(state: State) -> Float[Array, "n d"]:
        return method.step(density, optimizer, state, None, key=key)[0].learner.model.positions

    return Compiled(step, state)


def check_same_step(ours: Array, theirs: Array, start: Array, name: str) -> None:
    """Raise an error if two programs take different steps: their times could not be compared."""
    apart = float(jnp.abs(ours - theirs).max() / jnp.abs(ours - start).max())
    if not apart <= TOLERANCE:
        raise AssertionError(f"{name} takes another step: {apart:.2g} of its length apart.")
