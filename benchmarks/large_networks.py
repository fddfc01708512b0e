"""Peak memory and time of GPVI on large networks: `python benchmarks/large_networks.py [NAME...] [--steps N]`.

Each row is a process of its own, whose largest resident size the system counts (ru_maxrss): Python, JAX and the data
are in it. A row trains by `gpvi.bnn.method` on random images, batches of 100, then draws a network and predicts.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

DATA, BATCH = 1_000, 100
NETWORKS = ("lenet5", "mlp-1e5", "mlp-1e6", "mlp-4e6")
SIZES = {
    "mlp-1e5": (784, 126, 10),
    "mlp-1e6": (784, 1_000, 200, 10),
    "mlp-4e6": (784, 2_000, 1_200, 10),
}


def measured(name: str, steps: int, rank: int | None, diagnosed: bool) -> dict[str, float]:
    """Train, predict and, where asked, diagnose; figures of this process."""
    import dataclasses

    import jax

    import gpvi
    from gpvi import bnn

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, DATA)
    shape = (28, 28, 1) if name == "lenet5" else (784,)
    images = rng.standard_normal((DATA, *shape)).astype(np.float32)
    network = bnn.lenet5() if name == "lenet5" else bnn.mlp(SIZES[name])
    target = bnn.target(network, "categorical", "fan-in", images, labels)
    method = bnn.method(target.dim)
    if rank is not None:
        generator = dataclasses.replace(method.generator, rank=rank)
        method = dataclasses.replace(method, generator=generator)
    chunks = []
    posterior = gpvi.fit(
        target,
        method,
        key=jax.random.key(0),
        steps=steps,
        batch_size=BATCH,
        progress=False,
        callbacks=[lambda event: chunks.append((event.step, time.perf_counter()))],
    )
    (first, began), (last, ended) = chunks[0], chunks[-1]
    predictive = bnn.Predictive(posterior, network, "categorical")
    predictive.predict(images[:BATCH], key=jax.random.key(1), draws=8)
    if diagnosed:
        posterior.diagnose(key=jax.random.key(2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "weights": target.dim,
        "draws": method.particles or 0,
        "rank": getattr(method.generator, "rank", None) or 0,
        "step_ms": 1e3 * (ended - began) / max(1, last - first),
        "peak_mib": peak / (2**20 if sys.platform == "darwin" else 2**10),
    }


def main() -> None:
    """A table, one process to a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NETWORKS, metavar="NAME", help=f"{NETWORKS}")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, help="of the generator's last layer")
    parser.add_argument("--diagnose", action="store_true", help="diagnose the posterior too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (name,) = options.names
        print(json.dumps(measured(name, options.steps, options.rank, options.diagnose)))
        return
    print(f"{'network':<10}{'weights':>12}{'draws':>7}{'rank':>6}{'ms a step':>11}{'peak MiB':>10}")
    more = ["--diagnose"] * options.diagnose
    more += [] if options.rank is None else ["--rank", str(options.rank)]
    for name in options.names:
        command = [sys.executable, __file__, name, "--here", "--steps", str(options.steps), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:<10} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:<10}{row['weights']:>12,}{row['draws']:>7}{row['rank']:>6}{row['step_ms']:>11.0f}"
            f"{row['peak_mib']:>10,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
