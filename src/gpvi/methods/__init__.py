"""Methods: frozen specifications with `init` and `step`."""

from gpvi.methods.base import Method as Method
from gpvi.methods.ensemble import DeepEnsemble as DeepEnsemble
from gpvi.methods.gpvi import GPVI as GPVI
from gpvi.methods.mcmc import HMC as HMC
from gpvi.methods.mcmc import NUTS as NUTS
from gpvi.methods.mcmc import MarkovChains
from gpvi.methods.pathfinder import Pathfinder as Pathfinder
from gpvi.methods.transport import GFSD as GFSD
from gpvi.methods.transport import GFSF as GFSF
from gpvi.methods.transport import KSD as KSD
from gpvi.methods.transport import SVGD as SVGD
from gpvi.methods.transport import AmortizedGFSD as AmortizedGFSD
from gpvi.methods.transport import AmortizedGFSF as AmortizedGFSF
from gpvi.methods.transport import AmortizedKSD as AmortizedKSD
from gpvi.methods.transport import AmortizedSVGD as AmortizedSVGD
from gpvi.methods.transport import Annealing as Annealing
from gpvi.methods.variational import FullRankVI as FullRankVI
from gpvi.methods.variational import MeanFieldVI as MeanFieldVI
from gpvi.methods.variational import NormalizingFlow as NormalizingFlow

METHODS = (
    GPVI,
    NormalizingFlow,
    FullRankVI,
    MeanFieldVI,
    Pathfinder,
    SVGD,
    GFSF,
    GFSD,
    KSD,
    AmortizedSVGD,
    AmortizedGFSF,
    AmortizedGFSD,
    AmortizedKSD,
    DeepEnsemble,
    HMC,
    NUTS,
)


def held_draws(method: Method) -> int | None:
    """The number of draws a method ends with; None if it can make any number."""
    if method.generative:
        return None
    if isinstance(method, MarkovChains):
        return method.chains * method.draws
    return getattr(method, "particles", None)
