"""The reliability diagram: accuracy against confidence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpvi.metrics import Reliability
from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import INK, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 0.005
"""The smallest share of predictions for which a bin is drawn. With fewer, accuracy is dominated by chance."""


def reliability_diagram(curves: Mapping[str, Reliability], salt: str = "reliability") -> str:
    """Draw one curve per method as an SVG, with its calibration error in the legend."""
    with canvas.figure(5.2, 3.2 + 0.17 * ((len(curves) + 1) // 2), salt) as (figure, axes):
        draw_reliability(axes, curves, ink=INK)
        canvas.legend_above(axes)
        return canvas.svg(figure)


def draw_reliability(
    axes: "Axes", curves: Mapping[str, Reliability], *, ink: str = "black"
) -> None:
    """Draw the curves; the area of a dot is the share of predictions in its bin."""
    axes.plot((0, 1), (0, 1), color=ink, alpha=0.35, linewidth=0.8, linestyle=(0, (4, 3)))
    lowest = 1.0
    for (line, colour), (name, bins) in zip(LINES, curves.items(), strict=False):
        kept = np.asarray(bins.share) >= LEAST
        confidence, accuracy, share = (np.asarray(part)[kept] for part in bins)
        label = f"{name} (ECE {float(bins.error):.3f})"
        axes.plot(confidence, accuracy, color=colour, linestyle=line, linewidth=1.2, label=label)
        axes.scatter(confidence, accuracy, s=12 + 160 * share, color=colour, linewidths=0)
        lowest = min(lowest, confidence.min(), accuracy.min())
    low = max(0.0, np.floor(10 * lowest - 0.2) / 10)
    axes.set(xlim=(low, 1.02), ylim=(low, 1.02), xlabel="confidence", ylabel="accuracy")
    axes.legend(loc="upper left", fontsize=7.5, handlelength=1.4, frameon=False)
