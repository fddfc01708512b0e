"""Draws in a second, with and without their density, and networks' predictions in a second."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from gpvi import bnn
from gpvi.methods import GPVI, Method
from gpvi.posterior.posterior import Posterior
from gpvi.targets.target import Target
from gpvi.training.fit import fit
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import TURN, in_turns
from gpvi_paper.experiments.overhead import four_classes

DRAWS, PREDICTIONS = "draws", "predictions"
SEED = 1


class Call:
    """A call of the public interface, compiled by its first use."""

    peak_bytes = None

    def __init__(self, function: Callable[[], Any]):
        self._function, self._calls = function, 1
        first = self.turn()
        again = self.turn()
        self.compile_seconds = max(0.0, first - again)
        self._calls = max(1, round(TURN / again))

    def turn(self) -> float:
        """Call it, often where it is fast."""
        began, out = time.perf_counter(), None
        for _ in range(self._calls):
            out = self._function()
        jax.block_until_ready(out)
        return (time.perf_counter() - began) / self._calls


class Source(NamedTuple):
    """A posterior to draw from, and how many draws a call makes."""

    target: Callable[[], Target]
    method: Callable[[int], Method]
    draws: int


SOURCES = {
    "d = 2, spline": Source(lambda: _normal(2), lambda d: GPVI(), 10_000),
    "d = 20, spline": Source(lambda: _normal(20), lambda d: GPVI(), 10_000),
    "4 classes, d = 184": Source(four_classes, bnn.method, 10_000),
    "LeNet-5, d = 61,706": Source(lambda: _digits()[0], bnn.method, 200),
}


def draws(setting: Setting) -> Iterator[Result]:
    """The posterior's `sample` and `sample_and_log_prob`."""
    for row, source in SOURCES.items():
        if not setting.wants(row):
            continue
        n = 8 if setting.quick else source.draws
        posterior = _untrained(source.target(), source.method)
        calls = {
            "sample": Call(lambda p=posterior, n=n: p.sample(n, key=jax.random.key(SEED))),
            "sample_and_log_prob": Call(
                lambda p=posterior, n=n: p.sample_and_log_prob(n, key=jax.random.key(SEED))
            ),
        }
        timings = in_turns(calls, setting.seconds)
        for name, timing in timings.items():
            values = timing.values() | {"draws/s": n / timing.seconds}
            if name != "sample":
                values["ratio"] = timing.over(timings["sample"])
            yield Result(DRAWS, row, name, values, None if name == "sample" else "sample")


def predictions(setting: Setting) -> Iterator[Result]:
    """LeNet-5 by new networks of a generator: networks × images in a second."""
    target, network = _digits()
    posterior = _untrained(target, bnn.method)
    predictive = bnn.Predictive(posterior, network, "categorical")
    for count, draws in ((4, 2),) if setting.quick else ((100, 100), (1_000, 100)):
        images = np.random.default_rng(1).standard_normal((count, 28, 28, 1)).astype(np.float32)
        call = Call(
            lambda x=images, n=draws: predictive.predict(x, key=jax.random.key(SEED), draws=n)
        )
        timing = in_turns({"predict": call}, setting.seconds)["predict"]
        rate = {"networks × images/s": count * draws / timing.seconds}
        yield Result(
            PREDICTIONS,
            f"LeNet-5, {draws} networks, {count:,} images",
            "predict",
            timing.values() | rate,
        )


def _untrained(target: Target, method: Callable[[int], Method]) -> Posterior:
    """One step is enough: drawing takes as long whatever was learned."""
    batch = None if target.size is None else min(100, target.size)
    return fit(
        target,
        method(target.dim),
        key=jax.random.key(0),
        steps=1,
        batch_size=batch,
        init=None,
        progress=False,
    )


def _normal(dim: int) -> Target:
    return Target(lambda x: -0.5 * (x**2).sum(), dim=dim)


def _digits() -> tuple[Target, bnn.Network]:
    rng, network = np.random.default_rng(0), bnn.lenet5()
    images = rng.standard_normal((100, 28, 28, 1)).astype(np.float32)
    return bnn.target(network, "categorical", "normal", images, rng.integers(0, 10, 100)), network
