r"""What a step of GPVI costs beside a step of amortised SVGD with the same generator (the paper's Sec. 4.5).

Both programs are those that `gpvi.fit` runs, compiled and warmed up, and take turns in one process, so that other load
on the machine affects both; a ratio is the median over the turns. Time does not depend on the values of the data:
images are noise.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

import gpvi
from gpvi import bnn, specs
from gpvi.generators import AffineFlow, Generator, Residual, SplineFlow, Triangular
from gpvi.methods import Method
from gpvi.parallel.memory import needed
from gpvi.solvers import Helper
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training.program import CHUNKS, Plan, compile_chunk
from gpvi_paper.experiments.base import Experiment, Published, Recipe, Results, Table, lower
from gpvi_paper.experiments.images.cifar10 import SmallConvolutional
from gpvi_paper.experiments.linear.blr import BATCH, regression
from gpvi_paper.experiments.linear.gaussians import LINEAR

TURNS = {"paper": 7, "best": 7, "demo": 5, "smoke": 2}
ACCELERATED = 20
"""On an accelerator a turn has this many times as many steps."""
DATA = 500
START_SCALE = 0.05
OTHER_PROGRAMS = "The published ratio is for other programs on another machine; here both steps are fully compiled."


class Size(NamedTuple):
    """A problem, and the sizes of the networks that the paper's appendix uses for it."""

    title: str
    target: Callable[[], gpvi.Target]
    batch: int
    particles: int
    latent: int
    hidden: tuple[int, ...]
    helper: int
    """The width of the helper network."""
    steps: int
    """The number of steps in a turn on a CPU."""


def images(network: Callable[[], bnn.Network], *shape: int) -> Callable[[], gpvi.Target]:
    """A classification of noise into ten classes."""

    def make() -> gpvi.Target:
        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((DATA, *shape)).astype(np.float32)
        return bnn.target(network(), "categorical", "normal", inputs, rng.integers(0, 10, DATA))

    return make


def four_classes() -> gpvi.Target:
    """A network 2-10-10-4 on noise in four classes."""
    rng = np.random.default_rng(0)
    inputs, classes = rng.standard_normal((DATA, 2)), rng.integers(0, 4, DATA)
    return bnn.target(bnn.mlp((2, 10, 10, 4)), "categorical", "normal", inputs, classes)


SIZES: dict[str, Size] = {
    "blr": Size(
        "linear regression, d = 3", lambda: regression(0).target, BATCH, 100, 3, (), 10, 100
    ),
    "classes": Size("4 classes, d = 184, k = 64", four_classes, 100, 100, 64, (64, 64), 544, 5),
    "mnist": Size(
        "LeNet-5, d = 61,706, k = 256",
        images(bnn.lenet5, 28, 28, 1),
        50,
        10,
        256,
        (256, 512, 1024),
        512,
        2,
    ),
    "cifar": Size(
        "CIFAR net, d = 90,506, k = 256",
        images(lambda: bnn.Network.from_definition(SmallConvolutional()), 32, 32, 3),
        50,
        10,
        256,
        (400, 600, 1000),
        512,
        2,
    ),
}
SMALL = ("blr", "classes")


@dataclasses.dataclass(frozen=True)
class Row:
    """A method at every size: GPVI's gradient, solver and kernel, and the generator's head."""

    gradient: str
    solver: str = "block"
    head: str = "residual"
    kernel: str = "head"
    sizes: tuple[str, ...] = tuple(SIZES)

    def generator(self, size: Size) -> Generator:
        """The paper's network, in its residual form or with an affine or a spline head."""
        if not size.hidden:
            return LINEAR
        if self.head != "residual":
            flow = AffineFlow if self.head == "affine" else SplineFlow
            return Triangular(
                latent=size.latent,
                head=flow(scale=START_SCALE),
                hidden=size.hidden,
                scale=START_SCALE,
            )
        learned = self.solver != "least_squares"  # which needs a fixed λ
        return Residual(size.latent, size.hidden, scale=START_SCALE, learn_scale=learned)

    def method(self, size: Size) -> gpvi.GPVI:
        """GPVI at this size."""
        solver = Helper(width=size.helper) if self.solver == "helper" else self.solver
        return gpvi.GPVI(
            generator=self.generator(size),
            gradient=self.gradient,  # pyright: ignore[reportArgumentType]
            solver=solver,
            kernel=self.kernel,
            particles=size.particles,
            learning_rate=1e-4,
        )

    def baseline(self, size: Size) -> gpvi.AmortizedSVGD:
        """Amortised SVGD with the same generator, particles and number of batches of noise."""
        return gpvi.AmortizedSVGD(
            generator=self.generator(size),
            particles=size.particles,
            batches=2 if self.gradient == "functional" else 1,
            learning_rate=1e-4,
        )


ROWS: dict[str, dict[str, Row]] = {
    "paper": {
        "GPVI (functional, helper)": Row("functional", "helper", kernel="full"),
        "GPVI (functional, exact Jacobian)": Row("functional", "dense", kernel="full", sizes=SMALL),
        "GPVI (functional, exact blocks)": Row("functional", kernel="full", sizes=tuple(SIZES)[1:]),
        "GPVI (functional, least squares)": Row(
            "functional", "least_squares", sizes=tuple(SIZES)[1:]
        ),
    },
    "best": {
        "GPVI (functional, helper)": Row("functional", "helper"),
        "GPVI (functional, exact Jacobian)": Row("functional"),
        "GPVI (pathwise)": Row("pathwise"),
        "GPVI (l2)": Row("l2"),
        "GPVI (functional, affine head)": Row("functional", head="affine", sizes=tuple(SIZES)[1:]),
        "GPVI (pathwise, affine head)": Row("pathwise", head="affine", sizes=tuple(SIZES)[1:]),
        "GPVI (l2, affine head)": Row("l2", head="affine", sizes=tuple(SIZES)[1:]),
    },
}
"""The published kernel is on all d coordinates of the noise, and the published exact inverse is that of all of J; exact
blocks are what `GPVI.paper` does."""


@dataclasses.dataclass(frozen=True)
class Timed(Recipe):
    """A row as a recipe: `method` is that of the row's largest size."""

    row: Row = Row("pathwise")

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen, at every size."""
        sizes = {
            name: {
                "method": specs.to_json(self.row.method(SIZES[name])),
                "baseline": specs.to_json(self.row.baseline(SIZES[name])),
                "batch_size": SIZES[name].batch,
            }
            for name in self.row.sizes
        }
        return super().to_json() | {"sizes": sizes}


class Steps:
    """The compiled training steps of one method, ready to be timed `length` at a time."""

    def __init__(
        self,
        method: Method,
        target: gpvi.Target,
        batch: int | None,
        length: int,
        *,
        key: PRNGKeyArray,
    ):
        optimizer = method.default_optimizer(CHUNKS * length)
        plan = Plan(method, optimizer, CHUNKS * length, batch)
        density = Whitened(target, Affine.identity(target.dim, target.dtype))
        state = method.init(density, optimizer, key=key)
        self.length, _ = plan.chunk
        self._arrays: PyTree = eqx.filter(state, eqx.is_array)
        self._target, self._key = eqx.filter(density, eqx.is_array), key
        self.state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays))
        began = time.perf_counter()
        self.executable = compile_chunk(plan, density, state).compiled(*self._arguments())
        self.compile_seconds = time.perf_counter() - began
        self.peak_bytes = needed(self.executable)
        self.turn()

    def turn(self) -> float:
        """Take one chunk of steps, and return the seconds per step."""
        began = time.perf_counter()
        self._arrays, _ = self.executable(*self._arguments())
        jax.block_until_ready(self._arrays)
        return (time.perf_counter() - began) / self.length

    def _arguments(self) -> tuple[PyTree, ...]:
        return self._arrays, self._target, self._key, jnp.asarray(0), None


class StepOverhead(Experiment[Timed]):
    """The times of Section 4.5."""

    name = "overhead"
    title = "Time of a training step"
    source = "Section 4.5, time"
    summary = (
        "A step of GPVI beside a step of amortised SVGD with the same generator, particles, batches of noise and data, "
        "in turns in one process, without compilation. The paper reports 1.28 on MNIST and 1.78 on CIFAR-10, for the "
        "helper network with a kernel on all of the noise (preset paper). Its authors' code on two cores: 7 at d = 3, "
        "over 100 at d = 184. Ours (preset best) has the kernel on the head of the noise and needs no helper: the "
        "inverse is a k × k block, or diagonal for an affine head. The generators' networks are those of the appendix, "
        "k = 256 on both image sets; images are noise."
    )
    cases = MappingProxyType({name: size.title for name, size in SIZES.items()})
    metrics = (
        lower("ratio", "ratio", "time of a step over that of amortised SVGD, median of the turns"),
        lower("milliseconds", "ms per step", "median over the turns"),
        lower("baseline_milliseconds", "amortised SVGD, ms", "median over the turns"),
        lower("compile_seconds", "compiling", "time until the first step is done", "seconds"),
    )
    tables = (
        Table(
            "Time of a step over that of amortised SVGD",
            ("ratio",),
            "Medians over turns, ± over repetitions. Below 1 GPVI is faster: its kernel is on k coordinates, not d.",
        ),
        Table(
            "Times",
            ("milliseconds", "baseline_milliseconds", "compile_seconds"),
            "Of one step; the machine is named at the end of the page.",
        ),
    )
    headline = ("ratio",)

    @property
    def published(self) -> dict[str, dict[str, Published]]:
        """The two ratios of Sec. 4.5."""
        ratios = {"mnist/ratio": 1.28, "cifar/ratio": 1.78}
        return {
            "GPVI (functional, helper)": {
                row: Published(ratio, math.nan, OTHER_PROGRAMS) for row, ratio in ratios.items()
            }
        }

    def recipes(self, preset: str) -> dict[str, Timed]:
        """The paper's helper and dense inverse, or ours; the short presets have ours at the two small sizes."""
        if preset == "authors":
            return {}
        rows = ROWS.get(preset, ROWS["best"])
        if preset not in ROWS:
            rows = {
                label: dataclasses.replace(row, sizes=tuple(s for s in row.sizes if s in SMALL))
                for label, row in rows.items()
            }
        return {
            label: Timed(
                row.method(SIZES[row.sizes[-1]]), batch_size=SIZES[row.sizes[-1]].batch, row=row
            )
            for label, row in rows.items()
            if row.sizes
        }

    def measure(self, results: Results[Timed]) -> None:
        """Time every size, once for each seed."""
        row, preset, meter = results.recipe.row, results.preset, results.meter()
        turns, done = TURNS[preset], 0
        meter.start(len(row.sizes) * len(results.seeds) * turns, self.name)
        try:
            for name in row.sizes:
                size = SIZES[name]
                target, length = size.target(), turn_length(size, preset)
                for repetition, seed in enumerate(results.seeds):
                    key = jax.random.key(seed)
                    ours = Steps(row.method(size), target, size.batch, length, key=key)
                    theirs = Steps(row.baseline(size), target, size.batch, length, key=key)
                    times = []
                    for _ in range(turns):
                        times.append((ours.turn(), theirs.turn()))
                        done += 1
                        meter.update(done, name)
                    results.add(summarised(np.array(times)), name)
                    compiling = math.nan if repetition else ours.compile_seconds
                    results.add({"compile_seconds": compiling}, name)
        finally:
            meter.close()


def turn_length(size: Size, preset: str) -> int:
    """The number of steps in a turn: one for `smoke`, more for fast steps and on accelerators."""
    if preset == "smoke":
        return 1
    return size.steps * (1 if jax.default_backend() == "cpu" else ACCELERATED)


def summarised(times: np.ndarray) -> dict[str, float]:
    """Medians over the turns; the ratio is the median of the ratios of each turn."""
    ours, theirs = 1_000 * np.median(times, 0)
    return {
        "ratio": float(np.median(times[:, 0] / times[:, 1])),
        "milliseconds": float(ours),
        "baseline_milliseconds": float(theirs),
    }
