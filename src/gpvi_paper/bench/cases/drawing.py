"""Draws per second, with and without their density, and predictions of networks per second."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from gpvi import bnn
from gpvi.methods import GPVI, Method
from gpvi.posterior.posterior import Posterior
from gpvi.targets.target import Target
from gpvi.training.fit import fit
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Call, in_turns
from gpvi_paper.experiments.overhead import four_classes

SEED = 1


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
    """Time `sample` and `sample_and_log_prob` of posteriors."""
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
            against = None if name == "sample" else "sample"
            yield setting.timed(row, name, timings, against, {"draws/s": n / timing.seconds})


def predictions(setting: Setting) -> Iterator[Result]:
    """Time predictions of LeNet-5 by networks that a generator draws."""
    target, network = _digits()
    posterior = _untrained(target, bnn.method)
    predictive = bnn.Predictive(posterior, network, "categorical")
    for count, draws in ((4, 2),) if setting.quick else ((100, 100), (1_000, 100)):
        images = np.random.default_rng(1).standard_normal((count, 28, 28, 1)).astype(np.float32)
        call = Call(
            lambda x=images, n=draws: predictive.predict(x, key=jax.random.key(SEED), draws=n)
        )
        timings = in_turns({"predict": call}, setting.seconds)
        row = f"LeNet-5, {draws} networks, {count:,} images"
        rate = {"networks × images/s": count * draws / timings["predict"].seconds}
        yield setting.timed(row, "predict", timings, more=rate)


def _untrained(target: Target, method: Callable[[int], Method]) -> Posterior:
    """Fit by a single step: the time of drawing does not depend on what was learned."""
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
