"""gpvi: neural samplers of a posterior that can be trusted."""

from importlib.metadata import PackageNotFoundError as _NotFound
from importlib.metadata import version as _version

from gpvi import bnn as bnn
from gpvi import cache as cache
from gpvi import diagnostics as diagnostics
from gpvi import directions as directions
from gpvi import errors as errors
from gpvi import generators as generators
from gpvi import kernels as kernels
from gpvi import methods as methods
from gpvi import metrics as metrics
from gpvi import progress as progress
from gpvi import solvers as solvers
from gpvi import specs as specs
from gpvi import supports as supports
from gpvi import targets as targets
from gpvi.evaluation.calibration import sbc as sbc
from gpvi.evaluation.comparison import compare as compare
from gpvi.methods import GFSD as GFSD
from gpvi.methods import GFSF as GFSF
from gpvi.methods import GPVI as GPVI
from gpvi.methods import HMC as HMC
from gpvi.methods import KSD as KSD
from gpvi.methods import NUTS as NUTS
from gpvi.methods import SMC as SMC
from gpvi.methods import SVGD as SVGD
from gpvi.methods import AmortizedGFSD as AmortizedGFSD
from gpvi.methods import AmortizedGFSF as AmortizedGFSF
from gpvi.methods import AmortizedKSD as AmortizedKSD
from gpvi.methods import AmortizedSVGD as AmortizedSVGD
from gpvi.methods import Annealing as Annealing
from gpvi.methods import DeepEnsemble as DeepEnsemble
from gpvi.methods import FullRankVI as FullRankVI
from gpvi.methods import MeanFieldVI as MeanFieldVI
from gpvi.methods import NormalizingFlow as NormalizingFlow
from gpvi.methods import Pathfinder as Pathfinder
from gpvi.parallel import hosts as hosts
from gpvi.posterior.posterior import Posterior as Posterior
from gpvi.posterior.posterior import load as load
from gpvi.targets.stream import Stream as Stream
from gpvi.targets.target import Target as Target
from gpvi.training.cost import estimate as estimate
from gpvi.training.fit import fit as fit
from gpvi.training.fit import fit_seeds as fit_seeds
from gpvi.training.loop import Event as Event

try:
    __version__ = _version("gpvi")
except _NotFound:
    __version__ = "0+unknown"

__all__ = [
    "GFSD",
    "GFSF",
    "GPVI",
    "HMC",
    "KSD",
    "NUTS",
    "SMC",
    "SVGD",
    "AmortizedGFSD",
    "AmortizedGFSF",
    "AmortizedKSD",
    "AmortizedSVGD",
    "Annealing",
    "DeepEnsemble",
    "Event",
    "FullRankVI",
    "MeanFieldVI",
    "NormalizingFlow",
    "Pathfinder",
    "Posterior",
    "Stream",
    "Target",
    "bnn",
    "cache",
    "compare",
    "diagnostics",
    "directions",
    "errors",
    "estimate",
    "fit",
    "fit_seeds",
    "generators",
    "hosts",
    "kernels",
    "load",
    "methods",
    "metrics",
    "progress",
    "sbc",
    "solvers",
    "specs",
    "supports",
    "targets",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that hold them."""
    return [*__all__, "__doc__", "__version__"]
