r"""Checks of a log-density before training: what is wrong, where, and what to do about it.

Start reading at `_run.py`, which makes the checks of `_checks.py` and `_resolution.py` at the points of `_points.py`.
"""

from gpvi.targets.preflight._report import Finding as Finding
from gpvi.targets.preflight._report import Preflight as Preflight
from gpvi.targets.preflight._resolution import rounded as rounded
from gpvi.targets.preflight._run import preflight as preflight
