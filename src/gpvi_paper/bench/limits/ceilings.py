"""What the machine can do at most: bytes moved and operations done per second, as measured here."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns


class Ceilings(NamedTuple):
    """The best rates of several turns."""

    bandwidth: float
    """Bytes read and written per second."""
    flops: float
    """Operations per second of a float32 matrix product in full precision."""
    default_flops: float
    """Operations per second of the same product in JAX's default precision: TF32 on some accelerators."""


def measured(setting: Setting) -> Ceilings:
    """Measure x ← x + c in place, on an array far larger than any cache, and a large matrix product."""
    accelerated = jax.default_backend() != "cpu"
    numbers, width = (2**28, 8_192) if accelerated else (2**26, 2_048)
    if setting.quick:
        numbers, width = 2**16, 64
    moved = 2 * 4 * numbers
    done = 2 * width**3
    square = jax.random.normal(jax.random.key(0), (width, width), jnp.float32)
    contenders = {
        "copy": InPlace(numbers),
        "full": Compiled(lambda a: jnp.matmul(a, a, precision="highest"), square),
        "default": Compiled(lambda a: a @ a, square),
    }
    least = {
        name: min(timing.turns) for name, timing in in_turns(contenders, setting.seconds).items()
    }
    return Ceilings(moved / least["copy"], done / least["full"], done / least["default"])


class InPlace:
    """Passes over an array that read, change and write each number in place, many of them in one call."""

    peak_bytes = None
    passes = 16

    def __init__(self, numbers: int):
        self._array = jnp.zeros(numbers, jnp.float32)
        self._program = jax.jit(
            lambda a: jax.lax.fori_loop(0, self.passes, lambda _, x: x + 1.0, a), donate_argnums=0
        )
        self.compile_seconds = self.turn()

    def turn(self) -> float:
        """Run the passes and return the seconds of one."""
        began = time.perf_counter()
        self._array = jax.block_until_ready(self._program(self._array))
        return (time.perf_counter() - began) / self.passes


def results(setting: Setting) -> Iterator[Result]:
    """Measure the ceilings as a case of the bench."""
    ceilings = measured(setting)
    values = {
        "GB/s": ceilings.bandwidth / 1e9,
        "GFLOP/s": ceilings.flops / 1e9,
        "default GFLOP/s": ceilings.default_flops / 1e9,
    }
    yield setting.result("this machine", jax.devices()[0].device_kind, values)
