"""How long a program takes to compile and to run, beside others.

Contenders take turns in one process, so that whatever else the machine does falls on all of them; each was compiled
and run once before. A time is the median over the turns, a ratio the median of ratios within a turn.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from gpvi.parallel.memory import needed

TURN = 0.02
"""Seconds that a turn lasts at least: a program that is faster runs several times in it."""


@runtime_checkable
class Contender(Protocol):
    """A compiled program, ready to be timed."""

    @property
    def compile_seconds(self) -> float:
        """Tracing and compiling."""
        ...

    @property
    def peak_bytes(self) -> int | None:
        """What the program needs at most, by its compiler's account."""
        ...

    def turn(self) -> float:
        """Run it; the seconds of one step."""
        ...


class Compiled:
    """A function at given arguments."""

    def __init__(self, function: Callable, *arguments: Any):
        began = time.perf_counter()
        self.executable = jax.jit(function).lower(*arguments).compile()
        self.compile_seconds = time.perf_counter() - began
        self.peak_bytes = needed(self.executable)
        self._arguments, self._calls = arguments, 1
        self.result = jax.block_until_ready(self.executable(*arguments))
        self._calls = max(1, round(TURN / max(self.turn(), 1e-9)))

    def turn(self) -> float:
        """Call it, often where it is fast."""
        began, out = time.perf_counter(), None
        for _ in range(self._calls):
            out = self.executable(*self._arguments)
        jax.block_until_ready(out)
        return (time.perf_counter() - began) / self._calls


class Timing(NamedTuple):
    """What was measured of one contender."""

    turns: tuple[float, ...]
    """Seconds of one step in each turn."""
    compile_seconds: float
    peak_bytes: int | None
    busy: tuple[float, ...] = ()
    """Seconds of this process on all processors for one step: what others do does not lengthen them."""

    @property
    def seconds(self) -> float:
        """The median over the turns."""
        return statistics.median(self.turns)

    @property
    def work(self) -> float:
        """The least that one step took: of processors' time on a CPU, of the clock's elsewhere."""
        return min(self.busy if self.busy and jax.default_backend() == "cpu" else self.turns)

    def over(self, other: "Timing") -> float:
        """Its time over another's, turn by turn: the median of the ratios."""
        return statistics.median(a / b for a, b in zip(self.turns, other.turns, strict=True))

    def values(self) -> dict[str, float]:
        """As numbers of a result."""
        memory = {} if self.peak_bytes is None else {"peak MiB": self.peak_bytes / 2**20}
        busy = {"processor ms": 1e3 * statistics.median(self.busy)} if self.busy else {}
        return {
            "ms": 1e3 * self.seconds,
            "least ms": 1e3 * min(self.turns),
            **busy,
            "compile s": self.compile_seconds,
            **memory,
        }


def in_turns(
    contenders: Mapping[str, Contender], seconds: float, *, least: int = 3, most: int = 25
) -> dict[str, Timing]:
    """Time all side by side for about so many seconds, at least and at most so many turns each."""
    began = time.perf_counter()
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    busy: dict[str, list[float]] = {name: [] for name in contenders}
    for taken in range(most):
        if taken >= least and time.perf_counter() - began > seconds:
            break
        for name, contender in contenders.items():
            clock, processor = time.perf_counter(), time.process_time()
            turns[name].append(contender.turn())
            share = (time.process_time() - processor) / (time.perf_counter() - clock)
            busy[name].append(share * turns[name][-1])
    return {
        name: Timing(
            tuple(turns[name]), contender.compile_seconds, contender.peak_bytes, tuple(busy[name])
        )
        for name, contender in contenders.items()
    }
