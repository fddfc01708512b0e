"""The speed of the library: against other libraries, against its own baselines, and against the machine's limits."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from gpvi_paper.bench.cases import (
    convolutions,
    drawing,
    flows,
    footprint,
    growth,
    guides,
    particles,
    startup,
    systems,
    training,
)
from gpvi_paper.bench.limits import ceilings, roofline, scaling
from gpvi_paper.bench.results import Report as Report
from gpvi_paper.bench.results import Result as Result
from gpvi_paper.bench.results import Setting as Setting
from gpvi_paper.experiments.overhead import SIZES


class Case(NamedTuple):
    """Something to measure, in several rows."""

    title: str
    results: Callable[[Setting], Iterator[Result]]


CASES: dict[str, Case] = {
    "ceilings": Case("what the machine can do at most", ceilings.results),
    "svgd": Case("a step of SVGD, particles × dimensions", particles.results),
    **{
        f"steps-{name}": Case(
            f"a step of GPVI beside amortised SVGD: {size.title}",
            partial(training.results, name=name),
        )
        for name, size in SIZES.items()
    },
    **{
        f"roofline-{name}": Case(
            f"training steps against the machine's limits: {problem.title}",
            partial(roofline.results, name=name),
        )
        for name, problem in roofline.PROBLEMS.items()
    },
    "growth": Case("how a step's cost grows with d, k, particles and N", growth.results),
    "draws": Case("draws in a second, with and without density", drawing.draws),
    "predictions": Case("networks × images in a second", drawing.predictions),
    "networks": Case("memory and time of a process that trains a network", footprint.results),
    "mesh": Case("what many devices send each other in a step", scaling.results),
    "mesh-network": Case("a network of 10⁷ weights on eight virtual devices", scaling.network),
    "convolution": Case("convolutions with a weight to each particle", convolutions.results),
    "systems": Case("systems with a block to each draw, beside factors", systems.results),
    "startup": Case("import, first steps and first draws, cold and warm", startup.results),
    "guides": Case("Gaussian families beside NumPyro's guides (--peers)", guides.results),
    "spline": Case("spline couplings beside FlowJAX's (--peers)", flows.results),
}
