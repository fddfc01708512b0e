"""Python in a process of its own: for what can be measured once, or would change this process."""

import os
import subprocess
import sys
from collections.abc import Mapping

from gpvi.errors import GPVIError

CACHE = "JAX_COMPILATION_CACHE"


def lines(what: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """What `python -c …` prints; programs that an earlier process has compiled are not at hand."""
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
