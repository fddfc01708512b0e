"""Directions φ: where each particle should move, one equation to a module.

May import: `solvers`, `generators`, `kernels` and all below them. Start reading at `base.py`, then `svgd.py` and
`functional.py` (Thm 3.1).
"""

from gpvi.directions.base import Direction as Direction
from gpvi.directions.base import Points as Points
from gpvi.directions.functional import FunctionalDirection as FunctionalDirection
from gpvi.directions.functional import functional_direction as functional_direction
from gpvi.directions.gfsd import GFSDDirection as GFSDDirection
from gpvi.directions.gfsf import GFSFDirection as GFSFDirection
from gpvi.directions.ksd import KSDDirection as KSDDirection
from gpvi.directions.l2 import l2_direction as l2_direction
from gpvi.directions.l2 import model_score as model_score
from gpvi.directions.svgd import SVGDDirection as SVGDDirection
