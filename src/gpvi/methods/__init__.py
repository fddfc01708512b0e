"""Methods: frozen specifications with `init` and `step`."""

from gpvi.methods.base import Method as Method
from gpvi.methods.gpvi import GPVI as GPVI
from gpvi.methods.transport import GFSD as GFSD
from gpvi.methods.transport import GFSF as GFSF
from gpvi.methods.transport import KSD as KSD
from gpvi.methods.transport import SVGD as SVGD
from gpvi.methods.transport import AmortizedGFSD as AmortizedGFSD
from gpvi.methods.transport import AmortizedGFSF as AmortizedGFSF
from gpvi.methods.transport import AmortizedKSD as AmortizedKSD
from gpvi.methods.transport import AmortizedSVGD as AmortizedSVGD

METHODS = (GPVI, SVGD, GFSF, GFSD, KSD, AmortizedSVGD, AmortizedGFSF, AmortizedGFSD, AmortizedKSD)
