"""Memory and time of GPVI on large networks, each in a process of its own.

The system counts the largest resident size of the process, Python, JAX and the data included. It trains by
`gpvi.bnn.method` on random images in batches of 100, draws networks and predicts.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np

from gpvi import bnn
from gpvi.training.fit import fit
from gpvi_paper.bench import process
from gpvi_paper.bench.results import Result, Setting

CASE = "networks"
DATA, BATCH, STEPS = 1_000, 100, 20
WIDTHS: dict[str, tuple[int, ...]] = {
    "LeNet-5": (),
    "10⁵ weights": (784, 126, 10),
    "10⁶ weights": (784, 1_000, 200, 10),
    "4·10⁶ weights": (784, 2_000, 1_200, 10),
}


def results(setting: Setting) -> Iterator[Result]:
    """A process to a row."""
    names = ["10⁵ weights"] if setting.quick else list(WIDTHS)
    for name in names:
        if not setting.wants(name):
            continue
        steps = 5 if setting.quick else STEPS
        call = f"from gpvi_paper.bench import footprint; footprint.main({name!r}, {steps})"
        found = json.loads(process.lines(f"the network with {name}", call)[-1])
        values = {kind: float(value) for kind, value in found.items()}
        yield Result(CASE, name, "gpvi.bnn.method", values)


def main(name: str, steps: int) -> None:
    """Train and predict in this process, and print what it took."""
    rng, widths = np.random.default_rng(0), WIDTHS[name]
    shape = widths[:1] or (28, 28, 1)
    images = rng.standard_normal((DATA, *shape)).astype(np.float32)
    network = bnn.mlp(widths) if widths else bnn.lenet5()
    target = bnn.target(network, "categorical", "fan-in", images, rng.integers(0, 10, DATA))
    chunks: list[tuple[int, float]] = []
    posterior = fit(
        target,
        bnn.method(target.dim),
        key=jax.random.key(0),
        steps=steps,
        batch_size=BATCH,
        progress=False,
        callbacks=[lambda event: chunks.append((event.step, time.perf_counter()))],
    )
    predictive = bnn.Predictive(posterior, network, "categorical")
    predictive.predict(images[:BATCH], key=jax.random.key(1), draws=8)
    (first, began), (last, ended) = chunks[0], chunks[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {
        "weights": target.dim,
        "ms": 1e3 * (ended - began) / max(1, last - first),
        "process MiB": peak / (2**20 if sys.platform == "darwin" else 2**10),
    }
    print(json.dumps(values))
