"""Generators x = f_θ(z): specifications that a user configures, and the maps they build.

May import: `targets` (for its coordinates), `specs`, `parallel`, `_compute`. Start reading at `base.py`, then
`residual.py` (the paper's generator) and `triangular.py` (the default, injective by construction).
"""

from gpvi.generators.base import AbstractGenerator as AbstractGenerator
from gpvi.generators.base import Generator as Generator
from gpvi.generators.base import Head as Head
from gpvi.generators.flows import Autoregressive as Autoregressive
from gpvi.generators.flows import Planar as Planar
from gpvi.generators.gaussian import Copula as Copula
from gpvi.generators.gaussian import Diagonal as Diagonal
from gpvi.generators.gaussian import FullRank as FullRank
from gpvi.generators.gaussian import Linear as Linear
from gpvi.generators.mixture import Mixture as Mixture
from gpvi.generators.mlp import MLP as MLP
from gpvi.generators.preconditioned import Preconditioned as Preconditioned
from gpvi.generators.residual import Residual as Residual
from gpvi.generators.triangular import AffineFlow as AffineFlow
from gpvi.generators.triangular import SplineFlow as SplineFlow
from gpvi.generators.triangular import Triangular as Triangular
