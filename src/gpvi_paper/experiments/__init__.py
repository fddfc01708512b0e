"""Experiments: one module for each table or figure of the paper, imported when its experiment is first used.

Start reading at `base.py`, which says what an experiment is, then at `linear/blr.py`, the simplest. A new experiment is
one line in `EXPERIMENTS`; a new row is one entry of what the experiment's `recipes` returns.
"""

import importlib
from collections.abc import Iterator, Mapping

from gpvi.errors import UnknownOptionError
from gpvi_paper.experiments.base import PRESETS as PRESETS
from gpvi_paper.experiments.base import Experiment as Experiment
from gpvi_paper.experiments.base import KeepsReference as KeepsReference
from gpvi_paper.experiments.base import Metric as Metric
from gpvi_paper.experiments.base import Published as Published
from gpvi_paper.experiments.base import ReadsData as ReadsData
from gpvi_paper.experiments.base import Recipe as Recipe
from gpvi_paper.experiments.base import RunsCases as RunsCases
from gpvi_paper.experiments.base import matching as matching


class Registry(Mapping[str, Experiment]):
    """Experiments by name, each built when it is first looked up. Names alone import nothing."""

    def __init__(self, places: Mapping[str, str]):
        self._places = places
        self._built: dict[str, Experiment] = {}

    def __getitem__(self, name: str) -> Experiment:
        if name not in self._built:
            module, _, build = self._places[name].partition(":")
            found = importlib.import_module(f"{__name__}.{module}")
            self._built[name] = getattr(found, build)()
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


EXPERIMENTS = Registry(
    {
        "density": "linear.density:DensityEstimation",
        "blr": "linear.blr:BayesianLinearRegression",
        "energy": "energy:EnergyPotentials",
        "regression1d": "toys.regression1d:GappedRegression",
        "classification4": "toys.classification:FourClasses",
        "classification2": "toys.classification:TwoClasses",
        "mnist": "images.mnist:MNIST",
        "cifar10": "images.cifar10:CIFAR10",
        "digits": "images.digits:Digits",
        "solvers": "linear.solvers:LinearSolvers",
        "overhead": "overhead:StepOverhead",
        "drift": "linear.drift:FunctionalDrift",
        "collapse": "linear.collapse:VarianceCollapse",
        "posteriordb": "reference.posteriordb:PosteriorDB",
        "frontier": "frontier.verdicts:Frontier",
        "witness": "frontier.witnesses:Witnesses",
        "spikes": "frontier.witnesses:Spikes",
        "gallery": "reference.gallery:PyMCGallery",
        "uci": "uci:UCI",
    }
)
"""Name → the module below this package and the class that builds the experiment."""


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise UnknownOptionError("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
