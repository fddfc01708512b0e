"""What the devices of a mesh send each other in a step, counted from the compiled program.

XLA prints the program that each device runs, in which collective operations name the shapes they move. These are
added up over the computations that a step calls; the body of a loop counts as often as it runs. With P devices and S
bytes of result, each device on a ring sends and receives 2 S (P−1)/P bytes for an all-reduce, S (P−1)/P for an
all-gather or an all-to-all, S (P−1) for a reduce-scatter, whose result is one part, and S for a permutation.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
)
BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "f16": 2} | {
    f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_CALL = re.compile(
    r"(body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_OPERATION = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(")


class Moved(NamedTuple):
    """A collective operation of a step: its name, the shapes of its result, and how often it runs."""

    operation: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    times: float

    @property
    def bytes(self) -> float:
        """The bytes of its results in a step."""
        sizes = (BYTES.get(kind, 8) * math.prod(shape) for kind, shape in self.shapes)
        return self.times * sum(sizes)

    def sent(self, devices: int) -> float:
        """Return the bytes that each device on a ring sends for it in a step."""
        share = (devices - 1) / devices
        return self.bytes * {
            "all-reduce": 2 * share,
            "reduce-scatter": devices - 1,
            "collective-permute": 1,
        }.get(self.operation, share)


def collectives(text: str, steps: int = 1) -> list[Moved]:
    """Return the collective operations of one step.

    Parameters
    ----------
    text
        The text of the compiled program.
    steps
        The number of steps that the program takes.
    """
    computations, entry = _parsed(text)
    return [
        Moved(operation, shapes, times / steps)
        for (operation, shapes), times in _counted(computations, entry).items()
    ]


def summary(moved: list[Moved]) -> dict[str, float]:
    """Return the bytes of results in a step, by operation."""
    total: dict[str, float] = {}
    for each in moved:
        total[each.operation] = total.get(each.operation, 0.0) + each.bytes
    return total


def _parsed(text: str) -> tuple[dict[str, list[str]], str]:
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            name = match[2]
            computations[name] = []
            entry = name if match[1] else entry
        elif name:
            computations[name].append(line)
    return computations, entry


def _counted(computations: dict[str, list[str]], name: str) -> Counter:
    found: Counter = Counter()
    for line in computations.get(name, ()):
        if match := _OPERATION.search(line):
            found[match[2], _shapes(match[1])] += 1
            continue
        turns = int(trips[1]) if (trips := _TRIPS.search(line)) else 1
        for called in _called(line):
            for key, times in _counted(computations, called).items():
                found[key] += turns * times
    return found


def _called(line: str) -> Iterator[str]:
    for _, name in _CALL.findall(line):
        yield name
    if match := _BRANCHES.search(line):
        yield from (name.strip().lstrip("%") for name in match[1].split(","))


def _shapes(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        (kind, tuple(int(n) for n in sizes.split(",") if n)) for kind, sizes in _SHAPE.findall(text)
    )
