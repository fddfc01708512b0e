"""Memory: how much is free, how much a compiled program needs, and a warning if that is more."""

from pathlib import Path

import jax

GIB = 2**30
_MEMINFO = Path("/proc/meminfo")


def available() -> int | None:
    """Return the free bytes of the first device or, on a CPU, of the machine; None if unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def needed(program: jax.stages.Compiled) -> int | None:
    """Return the bytes that a compiled program needs for arguments, results and temporaries; None if unknown."""
    sizes = program.memory_analysis()
    if sizes is None:
        return None
    own_results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + own_results + sizes.temp_size_in_bytes


def shortage(wanted: int | None) -> str | None:
    """Return a warning if `wanted` bytes exceed the free memory, else None."""
    free = available()
    if wanted is None or free is None or wanted <= free:
        return None
    return (
        f"a step needs {wanted / GIB:.1f} GiB and {free / GIB:.1f} GiB are free: the run may be killed. Use fewer "
        "particles, a smaller batch_size, or a generator whose last layer is factorised (rank=)"
    )
