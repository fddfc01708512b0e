"""Histograms of an outlier score: test images of the known classes beside those of unknown classes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import CYCLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KNOWN, UNKNOWN = CYCLE[0], CYCLE[1]


class ScoreHistogram(NamedTuple):
    """The shares of images in bins of log₁₀ of their score."""

    edges: Float[np.ndarray, " b+1"]
    inliers: Float[np.ndarray, " b"]
    outliers: Float[np.ndarray, " b"]
    label: str = ""
    """A number to show beside the title, such as the AUROC."""


def outlier_histograms(
    histograms: Mapping[str, ScoreHistogram], score: str, salt: str = "outliers"
) -> str:
    """Draw one panel per method as an SVG, one above the other with a common axis."""
    with canvas.empty_figure(5.2, 0.55 + 0.85 * len(histograms), salt) as figure:
        panels = canvas.grid(figure, len(histograms), 1, sharex=True)
        for panel, (name, histogram) in zip(panels, histograms.items(), strict=True):
            draw_histogram(panel, name, histogram)
        panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=7.5)
        panels[-1].set_xlabel(score)
        panels[-1].xaxis.set_major_formatter(_power)
        figure.subplots_adjust(hspace=0.35)
        return canvas.svg(figure)


def draw_histogram(axes: "Axes", name: str, histogram: ScoreHistogram, *, ink: str = INK) -> None:
    """Draw one panel: the shares of the known classes, with those of the unknown classes over them."""
    parts = ((histogram.inliers, KNOWN, "known classes"), (histogram.outliers, UNKNOWN, "unknown"))
    for shares, colour, label in parts:
        axes.stairs(shares, histogram.edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(shares, histogram.edges, color=colour, linewidth=1.1, label=label)
    axes.set(yticks=[], xlim=(histogram.edges[0], histogram.edges[-1]))
    axes.spines["left"].set_visible(False)
    title = f"{name}  {histogram.label}".strip()
    axes.set_title(title, loc="left", fontsize=8.5, color=ink, pad=2)


def _power(value: float, _: float | int | None = None) -> str:
    """Return the label of a logarithm: 10 to this power."""
    return f"{10.0**value:.0e}".replace("e-0", "e−") if value < -2 else f"{10.0**value:g}"
