"""How long it takes until something is there: the import, the first steps, the first draws of a fit in two dimensions.

Each is measured in a process of its own, cold and with a compilation cache that an earlier process has filled; beside
the clock's seconds until the first draws stand those of all processors, which other processes do not lengthen.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpvi_paper.bench import process
from gpvi_paper.bench.results import Result, Setting

CASE = "startup"
EXAMPLE = """
import json, os, sys, time

began = time.perf_counter()
import gpvi

stages = {"import s": time.perf_counter() - began}
import jax

cache, steps = sys.argv[1], int(sys.argv[2]) or None
if cache:
    gpvi.cache.use(cache)


def log_density(x):
    return -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - 0.25 * x[0] ** 2) / 0.5) ** 2


def note(event):
    stages.setdefault("first steps s", time.perf_counter() - began)


target = gpvi.Target(log_density, dim=2)
posterior = gpvi.fit(target, key=jax.random.key(0), steps=steps, progress=False, callbacks=[note])
stages["fit s"] = time.perf_counter() - began
posterior.sample(10_000, key=jax.random.key(1)).block_until_ready()
stages["first draws s"] = time.perf_counter() - began
stages["processor s"] = time.process_time()
posterior.diagnose(key=jax.random.key(2))
stages["diagnosis s"] = time.perf_counter() - began
print(json.dumps(stages))
"""
RUNS = 3


def results(setting: Setting) -> Iterator[Result]:
    """Cold, and warm; medians of several processes."""
    runs = 1 if setting.quick else RUNS
    with tempfile.TemporaryDirectory() as empty:
        cold = [_process("", setting) for _ in range(runs)]
        yield Result(CASE, "2-D example", "cold", _medians(cold))
        filling = _process(empty, setting)
        yield Result(CASE, "2-D example", "filling the cache", filling)
        warm = [_process(empty, setting) for _ in range(runs)]
        size = sum(path.stat().st_size for path in Path(empty).rglob("*") if path.is_file())
        yield Result(CASE, "2-D example", "warm", _medians(warm) | {"cache MiB": size / 2**20})


def _process(cache: str, setting: Setting) -> dict[str, float]:
    steps = "50" if setting.quick else "0"
    return json.loads(process.lines("the example of the bench", EXAMPLE, cache, steps)[-1])


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    middle = len(runs) // 2
    return {name: sorted(run[name] for run in runs)[middle] for name in runs[0]}
