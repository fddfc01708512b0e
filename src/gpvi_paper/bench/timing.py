"""How long programs take to compile and to run, measured side by side.

Contenders take turns in one process, so that other load on the machine affects all of them alike. Each has been
compiled and run before. A time is the median over the turns; a ratio is the median of the ratios within each turn.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from gpvi.parallel.memory import needed

TURN = 0.02
"""Seconds that a turn lasts at least: a faster program runs several times in a turn."""
TICK = 1e-9
"""Seconds: stands for a difference of times that the clock gives as zero."""


@runtime_checkable
class Contender(Protocol):
    """A compiled program, ready to be timed."""

    @property
    def compile_seconds(self) -> float:
        """The time of tracing and compiling."""
        ...

    @property
    def peak_bytes(self) -> int | None:
        """The memory that the program needs at most, if its compiler says so."""
        ...

    def turn(self) -> float:
        """Run the program and return the seconds of one step."""
        ...


class Call:
    """A function with its arguments, compiled by its first call.

    Parameters
    ----------
    function
        What is timed.
    *arguments
        Its arguments, the same at every call.
    """

    peak_bytes: int | None = None

    def __init__(self, function: Callable, *arguments: Any):
        self._function, self._arguments, self._calls = function, arguments, 1
        first, second = self.turn(), self.turn()
        self.compile_seconds = max(0.0, first - second)
        self._calls = max(1, round(TURN / max(second, TICK)))

    def turn(self) -> float:
        """Call the function, several times if it is fast, and return the seconds of one call."""
        began = time.perf_counter()
        for _ in range(self._calls):
            self.result = self._function(*self._arguments)
        jax.block_until_ready(self.result)
        return (time.perf_counter() - began) / self._calls


class Compiled(Call):
    """A function compiled ahead for its arguments, so that its memory is known."""

    def __init__(self, function: Callable, *arguments: Any):
        began = time.perf_counter()
        self.executable = jax.jit(function).lower(*arguments).compile()
        compile_seconds = time.perf_counter() - began
        super().__init__(self.executable, *arguments)
        self.compile_seconds = compile_seconds
        self.peak_bytes = needed(self.executable)


class Timing(NamedTuple):
    """The measurements of one contender."""

    turns: tuple[float, ...]
    """Seconds of one step, in each turn."""
    compile_seconds: float
    peak_bytes: int | None
    processor: tuple[float, ...] = ()
    """Processor seconds of this process for one step, in each turn. Other processes do not lengthen them."""

    @property
    def seconds(self) -> float:
        """The median over the turns."""
        return statistics.median(self.turns)

    @property
    def least(self) -> float:
        """The shortest time of a step: processor time on a CPU, elapsed time on an accelerator."""
        on_cpu = self.processor and jax.default_backend() == "cpu"
        return min(self.processor if on_cpu else self.turns)

    def over(self, other: "Timing") -> float:
        """Return the ratio of this time to another: the median of the ratios within each turn."""
        return statistics.median(a / b for a, b in zip(self.turns, other.turns, strict=True))

    def per(self, steps: int) -> "Timing":
        """Return the timing of one of so many steps that each turn took."""
        turns, processor = (
            tuple(t / steps for t in times) for times in (self.turns, self.processor)
        )
        return self._replace(turns=turns, processor=processor)

    def values(self) -> dict[str, float]:
        """Return the measurements as the values of a result."""
        memory = {} if self.peak_bytes is None else {"peak MiB": self.peak_bytes / 2**20}
        processor = (
            {"processor ms": 1e3 * statistics.median(self.processor)} if self.processor else {}
        )
        return {
            "ms": 1e3 * self.seconds,
            "least ms": 1e3 * min(self.turns),
            **processor,
            "compile s": self.compile_seconds,
            **memory,
        }


def in_turns(
    contenders: Mapping[str, Contender], seconds: float, *, least: int = 3, most: int = 25
) -> dict[str, Timing]:
    """Time contenders side by side.

    Parameters
    ----------
    contenders
        The programs by name.
    seconds
        No further round of turns begins after this time.
    least, most
        The smallest and the largest number of turns of each contender.

    Returns
    -------
    dict[str, Timing]
        The measurements by name.
    """
    began = time.perf_counter()
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    for taken in range(most):
        if taken >= least and time.perf_counter() - began > seconds:
            break
        for name, contender in contenders.items():
            clock, busy = time.perf_counter(), time.process_time()
            step = contender.turn()
            share = (time.process_time() - busy) / max(time.perf_counter() - clock, TICK)
            turns[name].append(step)
            processor[name].append(share * step)
    return {
        name: Timing(
            tuple(turns[name]),
            contender.compile_seconds,
            contender.peak_bytes,
            tuple(processor[name]),
        )
        for name, contender in contenders.items()
    }
