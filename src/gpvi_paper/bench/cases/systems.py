"""Systems with k×k blocks, one to a draw: as the library solves them on this device, beside factors of a library.

A hundred batches are solved in a row by one program, each with the solutions of the last on its right-hand sides; the
blocks are orthogonal, so that these keep their size.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpvi._compute import inverses
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

CASE = "systems"
BLOCKS = {64: 100, 256: 10}
"""k → how many."""
RIGHT_HAND_SIDES, IN_A_ROW = 10, 100
OURS, FACTORS = "gpvi._compute.inverses", "factors"
WAYS: dict[str, Callable[[Array, Array], Array]] = {
    OURS: inverses.solve_transposed,
    FACTORS: inverses.by_factors,
}


def results(setting: Setting) -> Iterator[Result]:
    """Both sizes of block, both ways in turns."""
    for k, number in BLOCKS.items():
        row = f"{number} blocks of {k} × {k}"
        if not setting.wants(row):
            continue
        blocks, sides = _systems(2 if setting.quick else number, k)
        length = 1 if setting.quick else IN_A_ROW
        programs = {
            way: Compiled(_in_a_row(solve, length), blocks, sides) for way, solve in WAYS.items()
        }
        timings = in_turns(programs, setting.seconds)
        for way, timing in timings.items():
            values = {
                "µs": 1e6 * timing.seconds / length,
                "error": _error(WAYS[way], blocks, sides),
            }
            beside = {} if way == OURS else {"ratio": timing.over(timings[OURS])}
            yield Result(CASE, row, way, values | beside, None if way == OURS else OURS)


def _systems(number: int, k: int) -> tuple[Float[Array, "b k k"], Float[Array, "b m k"]]:
    rng = np.random.default_rng(k)
    blocks = np.linalg.qr(rng.standard_normal((number, k, k)))[0]
    sides = rng.standard_normal((number, RIGHT_HAND_SIDES, k))
    return jnp.asarray(blocks, jnp.float32), jnp.asarray(sides, jnp.float32)


def _in_a_row(solve: Callable[[Array, Array], Array], length: int) -> Callable:
    def solutions(blocks: Float[Array, "b k k"], sides: Float[Array, "b m k"]) -> Array:
        def again(v: Array, _: None) -> tuple[Array, None]:
            late = blocks + 0.0 * v[0, 0, 0]  # else the compiler might factor them once for all
            return jax.vmap(solve)(late, v), None

        return jax.lax.scan(again, sides, None, length=length)[0]

    return solutions


def _error(solve: Callable[[Array, Array], Array], blocks: Array, sides: Array) -> float:
    """‖y − vA⁻¹‖ / ‖vA⁻¹‖, the latter by float64."""
    transposed = np.swapaxes(np.asarray(blocks, np.float64), 1, 2)
    right = np.swapaxes(np.asarray(sides, np.float64), 1, 2)
    exact = np.swapaxes(np.linalg.solve(transposed, right), 1, 2)
    found = np.asarray(jax.jit(jax.vmap(solve))(blocks, sides))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
