"""Training steps on images, beside the least time that their bytes and operations take on this machine."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax

from gpvi.generators import AffineFlow, Triangular
from gpvi.methods import GPVI
from gpvi_paper.bench import counting
from gpvi_paper.bench.counting import convolution_flops, dense_flops
from gpvi_paper.bench.limits import ceilings
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import in_turns
from gpvi_paper.experiments import overhead
from gpvi_paper.experiments.images import cifar10, mnist
from gpvi_paper.experiments.images.recipes import (
    EXACT,
    HELPER,
    PARTICLES,
    PaperSetting,
    paper_recipes,
)
from gpvi_paper.experiments.overhead import SIZES, Size, Steps

LENET5 = (
    convolution_flops((28, 28), (5, 5, 1, 6))
    + convolution_flops((10, 10), (5, 5, 6, 16))
    + dense_flops(400, 120, 84, 10)
)
SMALL_CONVOLUTIONAL = (
    convolution_flops((30, 30), (3, 3, 3, 32))
    + convolution_flops((13, 13), (3, 3, 32, 64))
    + convolution_flops((4, 4), (3, 3, 64, 64))
    + dense_flops(256, 128, 10)
)


class Problem(NamedTuple):
    """A data set of images with the generator of the paper's appendix."""

    title: str
    size: Size
    setting: PaperSetting
    image_flops: float


PROBLEMS = {
    "mnist": Problem("LeNet-5, batch 100", SIZES["mnist"], mnist.PAPER, LENET5),
    "cifar": Problem("CIFAR net, batch 100", SIZES["cifar"], cifar10.PAPER, SMALL_CONVOLUTIONAL),
}


def methods(problem: Problem) -> dict[str, Any]:
    """Return the paper's methods, which share a generator, and the library's own with an affine head."""
    recipes = paper_recipes(problem.setting)
    affine = Triangular(
        latent=problem.setting.latent,
        head=AffineFlow(problem.setting.scale),
        hidden=problem.setting.hidden,
        scale=problem.setting.scale,
    )
    rate = problem.setting.learning_rate
    return {
        "Amortized SVGD": recipes["Amortized SVGD"].method,
        EXACT: recipes[EXACT].method,
        HELPER: recipes[HELPER].method,
        "GPVI (functional, affine head)": GPVI(
            affine, "functional", particles=PARTICLES, learning_rate=rate
        ),
        "GPVI (pathwise, affine head)": GPVI(affine, particles=PARTICLES, learning_rate=rate),
    }


def results(setting: Setting) -> Iterator[Result]:
    """Time each method, beside ceilings measured in the same run."""
    problem = PROBLEMS[setting.case.removeprefix("roofline-")]
    if setting.quick:
        problem = problem._replace(setting=_small(problem.setting))
    wanted = {label: method for label, method in methods(problem).items() if setting.wants(label)}
    if not wanted:
        return
    limits = ceilings.measured(setting)
    batch = 4 if setting.quick else problem.setting.batch_size
    target = problem.size.target()
    length = overhead.turn_length(problem.size, "smoke" if setting.quick else "best")
    for label, method in wanted.items():
        steps = Steps(method, target, batch, length, key=jax.random.key(0))
        timings = in_turns({label: steps}, setting.seconds)
        generator = method.generator.build(target.dim, key=jax.random.key(0), dtype=target.dtype)
        work = counting.Work(
            counting.numbers(eqx.filter(generator, eqx.is_inexact_array)),
            PARTICLES,
            target.dim,
            batch * problem.image_flops,
        )
        floors = beside_floors(limits, work, steps, timings[label].least)
        yield setting.timed(problem.title, label, timings, more=floors)
        del steps


def beside_floors(
    limits: ceilings.Ceilings, work: counting.Work, steps: Steps, seconds: float
) -> dict[str, float]:
    """Return the least bytes and operations, those the compiler counts, and the time over its floor.

    The floor is the larger of the least times for moving the bytes and for doing the operations.
    """
    least = counting.least(work)
    moving, doing = least.bytes / limits.bandwidth, least.flops / limits.flops
    values = {
        "least MB": least.bytes / 1e6,
        "least GFLOP": least.flops / 1e9,
        "floor ms": 1e3 * max(moving, doing),
        "over floor": seconds / max(moving, doing),
        "over bandwidth floor": seconds / moving,
        "GB/s of this machine": limits.bandwidth / 1e9,
        "GFLOP/s of this machine": limits.flops / 1e9,
    }
    counted = counting.compiled(steps.executable)
    if counted is not None:
        values |= {"compiled MB": counted.bytes / 1e6, "compiled GFLOP": counted.flops / 1e9}
    return values


def _small(setting: PaperSetting) -> PaperSetting:
    return dataclasses.replace(setting, latent=2, hidden=(4,))
