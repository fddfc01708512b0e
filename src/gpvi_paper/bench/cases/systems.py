"""Linear systems with one k×k block per draw: as the library solves them on this device, beside an LU factorisation.

One program solves a hundred batches in a row, each with the solutions of the previous one as right-hand sides. The
blocks are orthogonal, so that the solutions keep their size.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpvi._compute import inverses
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

BLOCKS = {64: 100, 256: 10}
"""k → the number of blocks."""
RIGHT_HAND_SIDES, IN_A_ROW = 10, 100
OURS, FACTORS = "gpvi._compute.inverses", "factors"
WAYS: dict[str, Callable[[Array, Array], Array]] = {
    OURS: inverses.solve_transposed,
    FACTORS: inverses.by_factors,
}


def results(setting: Setting) -> Iterator[Result]:
    """Time both ways in turns, for both sizes of block."""
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
            against = None if way == OURS else OURS
            ratio = {} if against is None else {"ratio": timing.over(timings[against])}
            yield setting.result(row, way, values | ratio, against)


def _systems(number: int, k: int) -> tuple[Float[Array, "b k k"], Float[Array, "b m k"]]:
    rng = np.random.default_rng(k)
    blocks = np.linalg.qr(rng.standard_normal((number, k, k)))[0]
    sides = rng.standard_normal((number, RIGHT_HAND_SIDES, k))
    return jnp.asarray(blocks, jnp.float32), jnp.asarray(sides, jnp.float32)


def _in_a_row(solve: Callable[[Array, Array], Array], length: int) -> Callable:
    def solutions(blocks: Float[Array, "b k k"], sides: Float[Array, "b m k"]) -> Array:
        def again(v: Array, _: None) -> tuple[Array, None]:
            late = blocks + 0.0 * v[0, 0, 0]  # or the compiler might factor them once for all
            return jax.vmap(solve)(late, v), None

        return jax.lax.scan(again, sides, None, length=length)[0]

    return solutions


def _error(solve: Callable[[Array, Array], Array], blocks: Array, sides: Array) -> float:
    """Return ‖y − vA⁻¹‖ / ‖vA⁻¹‖, with vA⁻¹ computed in float64."""
    transposed = np.swapaxes(np.asarray(blocks, np.float64), 1, 2)
    right = np.swapaxes(np.asarray(sides, np.float64), 1, 2)
    exact = np.swapaxes(np.linalg.solve(transposed, right), 1, 2)
    found = np.asarray(jax.jit(jax.vmap(solve))(blocks, sides))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
