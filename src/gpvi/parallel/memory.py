"""Free memory, and a warning if a run needs more."""

from pathlib import Path

import jax

GIB = 2**30
_MEMINFO = Path("/proc/meminfo")


def available() -> int | None:
    """Free bytes on the device of a computation, or on the machine; None if unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        found = device.memory_stats() or {}
        limit = found.get("bytes_limit")
        return None if limit is None else limit - found.get("bytes_in_use", 0)
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def needed(program: jax.stages.Compiled) -> int | None:
    """Bytes of a compiled program: arguments, results and temporaries; None if unknown."""
    found = program.memory_analysis()
    if found is None:
        return None
    beyond = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + beyond + found.temp_size_in_bytes


def shortage(wanted: int | None) -> str | None:
    """A warning if `wanted` bytes exceed the free memory, else None."""
    there = available()
    if wanted is None or there is None or wanted <= there:
        return None
    return (
        f"a step needs {wanted / GIB:.1f} GiB and {there / GIB:.1f} GiB are free: the run may be killed. Use fewer "
        "particles, a smaller batch_size, or a generator whose last layer is factorised (rank=)"
    )
