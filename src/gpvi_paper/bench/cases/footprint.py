"""Memory and time of GPVI on large networks, each in a process of its own.

The process trains by `gpvi.bnn.method` on random images in batches of 100, draws networks and predicts. Its memory is
its largest resident size, with Python, JAX and the data.
"""

import json
from collections.abc import Iterator

import jax
import numpy as np

from gpvi import bnn
from gpvi.training.fit import fit
from gpvi_paper.bench import process
from gpvi_paper.bench.results import Result, Setting

DATA, BATCH, STEPS = 1_000, 100, 20
WIDTHS: dict[str, tuple[int, ...]] = {
    "LeNet-5": (),
    "10⁵ weights": (784, 126, 10),
    "10⁶ weights": (784, 1_000, 200, 10),
    "4·10⁶ weights": (784, 2_000, 1_200, 10),
}


def results(setting: Setting) -> Iterator[Result]:
    """Measure each network in a new process."""
    names = ["10⁵ weights"] if setting.quick else list(WIDTHS)
    for name in names:
        if not setting.wants(name):
            continue
        steps = 5 if setting.quick else STEPS
        call = f"from {__name__} import main; main({name!r}, {steps})"
        (values,) = process.documents(f"the network with {name}", call)
        yield setting.result(name, "gpvi.bnn.method", values)


def main(name: str, steps: int) -> None:
    """Train and predict in this process, and print its memory and time as JSON."""
    rng, widths = np.random.default_rng(0), WIDTHS[name]
    shape = widths[:1] or (28, 28, 1)
    images = rng.standard_normal((DATA, *shape)).astype(np.float32)
    network = bnn.mlp(widths) if widths else bnn.lenet5()
    target = bnn.target(network, "categorical", "fan-in", images, rng.integers(0, 10, DATA))
    timer = process.StepTimer()
    posterior = fit(
        target,
        bnn.method(target.dim),
        key=jax.random.key(0),
        steps=steps,
        batch_size=BATCH,
        progress=False,
        callbacks=[timer],
    )
    predictive = bnn.Predictive(posterior, network, "categorical")
    predictive.predict(images[:BATCH], key=jax.random.key(1), draws=8)
    values = {
        "weights": target.dim,
        "ms": timer.milliseconds,
        "process MiB": process.peak_mebibytes(),
    }
    print(json.dumps(values))
