"""How long a user waits for the import, the first steps and the first draws of a fit in two dimensions.

Each run has a process of its own: cold, or with a compilation cache that an earlier process has filled. Beside the
elapsed time until the first draws stands the processor time, which other processes do not lengthen.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpvi_paper.bench import process
from gpvi_paper.bench.results import Result, Setting

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
ROW = "2-D example"


def results(setting: Setting) -> Iterator[Result]:
    """Measure cold and warm runs: medians of several processes."""
    runs = 1 if setting.quick else RUNS
    with tempfile.TemporaryDirectory() as empty:
        cold = [_process("", setting) for _ in range(runs)]
        yield setting.result(ROW, "cold", _medians(cold))
        yield setting.result(ROW, "filling the cache", _process(empty, setting))
        warm = [_process(empty, setting) for _ in range(runs)]
        size = sum(path.stat().st_size for path in Path(empty).rglob("*") if path.is_file())
        yield setting.result(ROW, "warm", _medians(warm) | {"cache MiB": size / 2**20})


def _process(cache: str, setting: Setting) -> dict[str, float]:
    steps = "50" if setting.quick else "0"
    (stages,) = process.documents("the example of the bench", EXAMPLE, cache, steps)
    return stages


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median_high(run[name] for run in runs) for name in runs[0]}
