"""Targets: a posterior known up to a constant, from a function, a NumPyro or PyMC model, a pytree or a stream of data.

May import: `_compute`, `_inputs`, `parallel`, `specs`. Start reading at `target.py`, then `density.py` (all that a
method asks of a posterior), `coordinates.py` (those of training), `models` (what names and constrains the coordinates)
and `preflight` (the checks before training).
"""

from gpvi.targets.coordinates import Affine as Affine
from gpvi.targets.coordinates import Whitened as Whitened
from gpvi.targets.density import Density as Density
from gpvi.targets.semiseparable import Semiseparable as Semiseparable
from gpvi.targets.stream import Stream as Stream
from gpvi.targets.target import Target as Target
