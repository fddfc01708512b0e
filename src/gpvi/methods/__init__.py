"""Methods: frozen specifications with `init` and `step`, which `gpvi.fit` compiles and repeats.

May import: `targets`, `generators`, `solvers`, `directions` and all below them. Start reading at `base.py` (the
contract), then `gpvi.py` (Algorithm 1).
"""

from gpvi.methods.base import About as About
from gpvi.methods.base import Learner as Learner
from gpvi.methods.base import Method as Method
from gpvi.methods.base import State as State
from gpvi.methods.carriers import Particles as Particles
from gpvi.methods.ensemble import DeepEnsemble as DeepEnsemble
from gpvi.methods.gpvi import GPVI as GPVI
from gpvi.methods.mcmc import HMC as HMC
from gpvi.methods.mcmc import NUTS as NUTS
from gpvi.methods.names import METHODS as METHODS
from gpvi.methods.names import as_method as as_method
from gpvi.methods.names import method_name as method_name
from gpvi.methods.particle import GFSD as GFSD
from gpvi.methods.particle import GFSF as GFSF
from gpvi.methods.particle import KSD as KSD
from gpvi.methods.particle import SVGD as SVGD
from gpvi.methods.particle import AmortizedGFSD as AmortizedGFSD
from gpvi.methods.particle import AmortizedGFSF as AmortizedGFSF
from gpvi.methods.particle import AmortizedKSD as AmortizedKSD
from gpvi.methods.particle import AmortizedMethod as AmortizedMethod
from gpvi.methods.particle import AmortizedSVGD as AmortizedSVGD
from gpvi.methods.particle import Annealing as Annealing
from gpvi.methods.particle import ParticleMethod as ParticleMethod
from gpvi.methods.pathfinder import Pathfinder as Pathfinder
from gpvi.methods.schedules import decaying as decaying
from gpvi.methods.schedules import decaying_adam as decaying_adam
from gpvi.methods.variational import FullRankVI as FullRankVI
from gpvi.methods.variational import MeanFieldVI as MeanFieldVI
from gpvi.methods.variational import NormalizingFlow as NormalizingFlow
