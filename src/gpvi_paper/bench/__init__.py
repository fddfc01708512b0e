"""The speed of the library: beside other libraries, beside its own baselines, and beside the limits of the machine.

Start reading at `timing.py`, which says how programs are timed in turns, then at a case, such as `cases/particles.py`.
A new case is a function of a `Setting` that yields `Result`s, and one line in `CASES`.
"""

import importlib
from collections.abc import Iterator
from typing import NamedTuple

from gpvi_paper.bench.results import Report as Report
from gpvi_paper.bench.results import Result as Result
from gpvi_paper.bench.results import Setting as Setting


class Case(NamedTuple):
    """Something to measure, in several rows."""

    title: str
    place: str
    """The module below this package, and the function in it that measures."""
    only: bool = False
    """Whether there is a single row, which cannot be chosen."""


CASES: dict[str, Case] = {
    "ceilings": Case("what the machine can do at most", "limits.ceilings:results", only=True),
    "svgd": Case("a step of SVGD, particles × dimensions", "cases.particles:results"),
    **{
        f"steps-{size}": Case(
            f"a step of GPVI beside amortised SVGD: {title}", "cases.training:results"
        )
        for size, title in {
            "blr": "linear regression, d = 3",
            "classes": "4 classes, d = 184, k = 64",
            "mnist": "LeNet-5, d = 61,706, k = 256",
            "cifar": "CIFAR net, d = 90,506, k = 256",
        }.items()
    },
    **{
        f"roofline-{name}": Case(
            f"training steps beside the limits of the machine: {title}", "limits.roofline:results"
        )
        for name, title in {
            "mnist": "LeNet-5, batch 100",
            "cifar": "CIFAR net, batch 100",
        }.items()
    },
    "growth": Case("how a step's cost grows with d, k, particles and N", "cases.growth:results"),
    "draws": Case("draws per second, with and without density", "cases.drawing:draws"),
    "predictions": Case("networks × images per second", "cases.drawing:predictions", only=True),
    "networks": Case("memory and time of training a network", "cases.footprint:results"),
    "mesh": Case("what many devices send each other in a step", "limits.scaling:results"),
    "mesh-network": Case(
        "10⁷ weights on eight virtual devices", "limits.scaling:network", only=True
    ),
    "convolution": Case("convolutions, each particle its weights", "cases.convolutions:results"),
    "systems": Case("linear systems, one block per draw", "cases.systems:results"),
    "startup": Case(
        "import, first steps and draws, cold and warm", "cases.startup:results", only=True
    ),
    "cold": Case("a first fit, stage by stage, d = 2 to 1,600", "cases.cold:results"),
    "guides": Case("Gaussians beside NumPyro's guides (--peers)", "cases.guides:results"),
    "spline": Case("spline couplings beside FlowJAX's (--peers)", "cases.flows:results"),
}
"""Name → case. A module is imported when its case is measured."""


def rows(case: str) -> list[str]:
    """Return the names of the rows of a case, other libraries' among them, without measuring anything."""
    if CASES[case].only:
        return []
    found: list[str] = []
    for _ in measure(Setting(case, peers=True, listed=found)):
        raise AssertionError(f"{case} measures rows that nobody wants")
    return list(dict.fromkeys(found))


def measure(setting: Setting) -> Iterator[Result]:
    """Measure the case that the setting names, and yield each result as soon as it is known."""
    module, _, function = CASES[setting.case].place.partition(":")
    yield from getattr(importlib.import_module(f"{__name__}.{module}"), function)(setting)
