"""Experiments: one module for each table or figure of the paper."""

from gpvi.errors import UnknownOptionError
from gpvi_paper.experiments.base import PRESETS as PRESETS
from gpvi_paper.experiments.base import Experiment as Experiment
from gpvi_paper.experiments.base import KeepsReference as KeepsReference
from gpvi_paper.experiments.base import Metric as Metric
from gpvi_paper.experiments.base import Published as Published
from gpvi_paper.experiments.base import ReadsData as ReadsData
from gpvi_paper.experiments.base import Recipe as Recipe
from gpvi_paper.experiments.base import matching as matching
from gpvi_paper.experiments.energy import EnergyPotentials
from gpvi_paper.experiments.images.cifar10 import CIFAR10
from gpvi_paper.experiments.images.digits import Digits
from gpvi_paper.experiments.images.mnist import MNIST
from gpvi_paper.experiments.linear.blr import BayesianLinearRegression
from gpvi_paper.experiments.linear.collapse import VarianceCollapse
from gpvi_paper.experiments.linear.density import DensityEstimation
from gpvi_paper.experiments.linear.drift import FunctionalDrift
from gpvi_paper.experiments.linear.solvers import LinearSolvers
from gpvi_paper.experiments.overhead import StepOverhead
from gpvi_paper.experiments.reference.posteriordb import PosteriorDB
from gpvi_paper.experiments.toys.classification import Classification
from gpvi_paper.experiments.toys.regression1d import GappedRegression
from gpvi_paper.experiments.uci import UCI

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
