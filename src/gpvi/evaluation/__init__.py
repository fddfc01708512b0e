"""Methods judged over several fits: `compare` on one posterior, `sbc` (simulation-based calibration) over a model.

May import: `training` and all below it. Start reading at `comparison.py`.
"""

from gpvi.evaluation.calibration import sbc as sbc
from gpvi.evaluation.comparison import compare as compare
