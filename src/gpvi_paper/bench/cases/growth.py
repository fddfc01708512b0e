"""How the cost of a step grows with d, k, the particles and the data, and its memory with d."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from gpvi.generators import AffineFlow, Residual, Triangular
from gpvi.methods import GPVI
from gpvi.targets.target import Target
from gpvi_paper.bench.exponents import exponent, last_exponent
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import in_turns
from gpvi_paper.experiments.overhead import Steps

CASE = "growth"


class Line(NamedTuple):
    """One size varied, the others held."""

    label: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    problem: Callable[[int], tuple[GPVI, Target, int | None]]


def gaussian(dim: int) -> Target:
    """Cheap beside the step."""
    return Target(lambda x: (0.3 * x - 0.5 * x**2).sum(), dim=dim)


def rows(count: int) -> Target:
    """A regression with so many data and 20 coefficients."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((count, 20), np.float32), rng.standard_normal(count, np.float32)

    def log_likelihood(x: Float[Array, " d"], batch: tuple[Array, Array]) -> Array:
        inputs, outputs = batch
        return -0.5 * (outputs - inputs @ x) ** 2

    return Target(
        log_likelihood=log_likelihood, log_prior=lambda x: -0.5 * (x**2).sum(), data=data, dim=20
    )


def narrow(particles: int, latent: int, gradient: str = "pathwise") -> GPVI:
    """A generator whose last layer has 16 columns, as networks get: 19 parameters to a dimension."""
    generator = Triangular(latent=latent, head=AffineFlow(0.1), hidden=(64,), rank=16, scale=0.1)
    return GPVI(generator, gradient, particles=particles)  # pyright: ignore[reportArgumentType]


def blocks(latent: int) -> GPVI:
    """The paper's form, whose k × k block is factored for every z′."""
    generator = Residual(latent=latent, hidden=(64,), scale=0.1, learn_scale=True)
    return GPVI(generator, "functional", particles=20)


LINES = (
    Line(
        "pathwise, d",
        (1_000, 10_000, 100_000, 1_000_000),
        (50, 100),
        lambda d: (narrow(10, 16), gaussian(d), None),
    ),
    Line(
        "functional, d",
        (1_000, 10_000, 100_000, 1_000_000),
        (50, 100),
        lambda d: (narrow(10, 16, "functional"), gaussian(d), None),
    ),
    Line(
        "functional, block, k",
        (16, 32, 64, 128, 256),
        (2, 4),
        lambda k: (blocks(k), gaussian(300), None),
    ),
    Line(
        "functional, particles",
        (10, 32, 100, 316, 1_000),
        (2, 4),
        lambda n: (narrow(n, 16, "functional"), gaussian(1_000), None),
    ),
    Line(
        "pathwise, N",
        (1_000, 10_000, 100_000, 1_000_000),
        (100, 200),
        lambda count: (narrow(10, 8), rows(count), 100),
    ),
)


def results(setting: Setting) -> Iterator[Result]:
    """A point to each size, one after the other: what a large one leaves behind is not to slow down a small one."""
    for line in LINES:
        if not setting.wants(line.label):
            continue
        sizes = line.quick if setting.quick else line.sizes
        timings = []
        for size in sizes:
            method, target, batch = line.problem(size)
            steps = Steps(method, target, batch, 1 if setting.quick else 5, key=jax.random.key(0))
            timings.append(in_turns({line.label: steps}, setting.seconds)[line.label])
            yield Result(CASE, line.label, f"{size:,}", timings[-1].values())
        seconds = [timing.work for timing in timings]
        fitted = {
            "exponent": exponent(sizes, seconds),
            "last exponent": last_exponent(sizes, seconds),
        }
        memory = [timing.peak_bytes for timing in timings]
        if all(memory):
            fitted["memory exponent"] = exponent(sizes, [m for m in memory if m])
        yield Result(CASE, line.label, "fitted", fitted)
