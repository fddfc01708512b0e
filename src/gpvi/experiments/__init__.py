"""Experiments: one module for each table or figure of the paper."""

from gpvi.errors import UnknownOptionError
from gpvi.experiments.base import PRESETS as PRESETS
from gpvi.experiments.base import Experiment as Experiment
from gpvi.experiments.base import KeepsReference as KeepsReference
from gpvi.experiments.base import Metric as Metric
from gpvi.experiments.base import Published as Published
from gpvi.experiments.base import ReadsData as ReadsData
from gpvi.experiments.base import Recipe as Recipe
from gpvi.experiments.base import matching as matching
from gpvi.experiments.blr import BayesianLinearRegression
from gpvi.experiments.cifar10 import CIFAR10
from gpvi.experiments.classification import Classification
from gpvi.experiments.collapse import VarianceCollapse
from gpvi.experiments.density import DensityEstimation
from gpvi.experiments.digits import Digits
from gpvi.experiments.drift import FunctionalDrift
from gpvi.experiments.energy import EnergyPotentials
from gpvi.experiments.mnist import MNIST
from gpvi.experiments.overhead import StepOverhead
from gpvi.experiments.posteriordb import PosteriorDB
from gpvi.experiments.regression1d import GappedRegression
from gpvi.experiments.solvers import LinearSolvers
from gpvi.experiments.uci import UCI

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        DensityEstimation(),
        BayesianLinearRegression(),
        EnergyPotentials(),
        GappedRegression(),
        Classification(4),
        Classification(2),
        MNIST(),
        CIFAR10(),
        Digits(),
        LinearSolvers(),
        StepOverhead(),
        FunctionalDrift(),
        VarianceCollapse(),
        PosteriorDB(),
        UCI(),
    )
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise UnknownOptionError("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
