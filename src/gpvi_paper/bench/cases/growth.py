"""How the time and memory of a step grow with d, k, the number of particles and the number of data."""

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


class Line(NamedTuple):
    """Problems in which one size varies and the others are fixed."""

    label: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    problem: Callable[[int], tuple[GPVI, Target, int | None]]


def gaussian(dim: int) -> Target:
    """Return a target whose log-density is cheap beside a training step."""
    return Target(lambda x: (0.3 * x - 0.5 * x**2).sum(), dim=dim)


def rows(count: int) -> Target:
    """Return a linear regression with `count` data and 20 coefficients."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((count, 20), np.float32), rng.standard_normal(count, np.float32)

    def log_likelihood(x: Float[Array, " d"], batch: tuple[Array, Array]) -> Array:
        inputs, outputs = batch
        return -0.5 * (outputs - inputs @ x) ** 2

    return Target(
        log_likelihood=log_likelihood, log_prior=lambda x: -0.5 * (x**2).sum(), data=data, dim=20
    )


def narrow(particles: int, latent: int, gradient: str = "pathwise") -> GPVI:
    """Return GPVI whose generator has a last layer of 16 columns, as for networks: 19 parameters per dimension."""
    generator = Triangular(latent=latent, head=AffineFlow(0.1), hidden=(64,), rank=16, scale=0.1)
    return GPVI(generator, gradient, particles=particles)  # pyright: ignore[reportArgumentType]


def blocks(latent: int) -> GPVI:
    """Return GPVI with the paper's generator, whose k × k block is factored for every z′."""
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
    """Time each size by itself, from the smallest on, so that a large one cannot slow down a small one."""
    for line in LINES:
        if not setting.wants(line.label):
            continue
        sizes = line.quick if setting.quick else line.sizes
        timings = []
        for size in sizes:
            method, target, batch = line.problem(size)
            steps = Steps(method, target, batch, 1 if setting.quick else 5, key=jax.random.key(0))
            timed = in_turns({f"{size:,}": steps}, setting.seconds)
            timings += timed.values()
            yield setting.timed(line.label, f"{size:,}", timed)
        seconds = [timing.least for timing in timings]
        fitted = {
            "exponent": exponent(sizes, seconds),
            "last exponent": last_exponent(sizes, seconds),
        }
        memory = [timing.peak_bytes for timing in timings]
        if all(memory):
            fitted["memory exponent"] = exponent(sizes, [m for m in memory if m])
        yield setting.result(line.label, "fitted", fitted)
