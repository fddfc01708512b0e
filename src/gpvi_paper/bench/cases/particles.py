"""A step of SVGD for few and many particles in few and many dimensions; other libraries make the same step."""

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

CASE = "svgd"
PARTICLES = (10, 100, 1_000)
DIMENSIONS = (100, 1_000, 20_000, 100_000)
LARGEST_PEER = 3 * 10**8
"""Numbers in the n × n × d array that the other libraries form."""
RATE = 0.1
TOLERANCE = 1e-3
"""Of the steps' largest difference, as a share of their largest move, in float32."""


def log_density(x: Float[Array, " d"]) -> Scalar:
    """A product of skewed factors, cheap beside the step itself."""
    return (0.3 * x - 0.5 * x**2).sum()


def results(setting: Setting) -> Iterator[Result]:
    """Every pair of sizes."""
    sizes = ((5, 8), (5, 16)) if setting.quick else _grid()
    for n, d in sizes:
        row = f"n = {n:,}, d = {d:,}"
        if setting.wants(row):
            yield from _compared(setting, row, n, d)


def _grid() -> Iterator[tuple[int, int]]:
    return ((n, d) for n in PARTICLES for d in DIMENSIONS)


def _compared(setting: Setting, row: str, n: int, d: int) -> Iterator[Result]:
    start = jax.random.normal(jax.random.key(0), (n, d), jnp.float32)
    fixed = float(2 * d / np.log(n))
    ours = {"gpvi": _ours(start, "median")}
    if setting.peers and n * n * d <= LARGEST_PEER:
        task = peers.Stein(log_density, start, RATE)
        ours["gpvi, fixed bandwidth"] = _ours(start, fixed)
        others = {
            "BlackJAX SVGD": (peers.blackjax_svgd(task, fixed), "gpvi, fixed bandwidth"),
            "NumPyro SteinVI": (peers.numpyro_stein(task), "gpvi"),
        }
    else:
        others = {}
    theirs = {name: Compiled(step, *arguments) for name, ((step, arguments), _) in others.items()}
    for name, program in theirs.items():
        same(ours[others[name][1]].result, program.result, start, name)
    timings = in_turns(ours | theirs, setting.seconds)
    for name in ours:
        yield Result(CASE, row, name, timings[name].values())
    for name in theirs:
        against = others[name][1]
        values = timings[name].values() | {"ratio": timings[name].over(timings[against])}
        yield Result(CASE, row, name, values, against)


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


def same(ours: Array, theirs: Array, start: Array, name: str) -> None:
    """Refuse to compare the times of different steps."""
    apart = float(jnp.abs(ours - theirs).max() / jnp.abs(ours - start).max())
    if not apart <= TOLERANCE:
        raise AssertionError(f"{name} takes another step: {apart:.2g} of its length apart.")
