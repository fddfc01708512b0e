"""Predictions of networks along one input: mean, and one and two standard deviations, with one panel per method."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import ACCENT, CYCLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4
"""Panels side by side."""


class Band(NamedTuple):
    """The mean of a function and its standard deviation, along a grid."""

    mean: Float[np.ndarray, " g"]
    sd: Float[np.ndarray, " g"]


def bands_chart(
    grid: Float[np.ndarray, " g"],
    bands: Mapping[str, Band],
    truth: Float[np.ndarray, " g"],
    data: Float[np.ndarray, "n 2"],
    salt: str = "bands",
) -> str:
    """Draw one panel per method as an SVG: data as dots, the truth dashed, ±1 and ±2 standard deviations shaded.

    The height fits the truth and the data with a margin; a wider band leaves the panel.
    """
    columns = min(COLUMNS, len(bands))
    rows = -(-len(bands) // columns)
    with canvas.empty_figure(2.15 * columns, 1.9 * rows, salt) as figure:
        panels = canvas.grid(figure, len(bands), columns, sharex=True, sharey=True)
        lowest, highest = min(truth.min(), data[:, 1].min()), max(truth.max(), data[:, 1].max())
        margin = 0.35 * (highest - lowest)
        for axes, (name, band) in zip(panels, bands.items(), strict=True):
            draw_band(axes, grid, band, truth, data, ink=INK)
            axes.set_title(fill(name, 26), fontsize=8.5, loc="left", pad=3)
            axes.tick_params(labelbottom=True)
            axes.set(xlim=(grid[0], grid[-1]), ylim=(lowest - margin, highest + margin))
        figure.tight_layout(pad=0.4)
        return canvas.svg(figure)


def draw_band(
    axes: "Axes",
    grid: Float[np.ndarray, " g"],
    band: Band,
    truth: Float[np.ndarray, " g"],
    data: Float[np.ndarray, "n 2"],
    *,
    ink: str = "black",
) -> None:
    """Draw one panel."""
    for deviations, alpha in ((2, 0.16), (1, 0.26)):
        axes.fill_between(
            grid,
            band.mean - deviations * band.sd,
            band.mean + deviations * band.sd,
            color=ACCENT,
            alpha=alpha,
            linewidth=0,
        )
    axes.plot(grid, truth, color=ink, alpha=0.55, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.plot(grid, band.mean, color=ACCENT, linewidth=1.3)
    axes.plot(data[:, 0], data[:, 1], ".", color=CYCLE[1], markersize=3, markeredgewidth=0)
