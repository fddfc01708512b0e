"""Work in a process of its own: for what can be measured only once in a process, or would change this one."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpvi.errors import GPVIError
from gpvi.training.loop import Event

CACHE = "JAX_COMPILATION_CACHE"


def lines(what: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Run `python -c` in a new process and return the lines that it prints.

    The process does not see programs that an earlier one has compiled.

    Parameters
    ----------
    what
        What is run, as the subject of an error message.
    *arguments
        The program, and its arguments.
    environment
        Variables to set.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(CACHE)}
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | dict(environment or {}),
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GPVIError(f"{what} failed: {last}")
    return done.stdout.splitlines()


def documents(
    what: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run `python -c` in a new process and return the JSON objects that it prints, one to a line."""
    printed = lines(what, *arguments, environment=environment)
    return [json.loads(line) for line in printed if line.startswith("{")]


class StepTimer:
    """A callback of `gpvi.fit` that measures the time of a step, without the first chunk, which is compiled."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, float]] = []

    def __call__(self, event: Event) -> None:
        self._chunks.append((event.step, time.perf_counter()))

    @property
    def milliseconds(self) -> float:
        """The mean time of a step."""
        (first, began), (last, ended) = self._chunks[0], self._chunks[-1]
        return 1e3 * (ended - began) / max(1, last - first)


def peak_mebibytes() -> float:
    """Return the largest resident size of this process so far, as the system counts it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
