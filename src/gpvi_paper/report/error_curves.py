"""Errors during training or an iteration: logarithmic, one line per method, the range of the seeds shaded."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpvi_paper.report import canvas
from gpvi_paper.report.canvas import INK
from gpvi_paper.report.figures import draw_with_ranges

SMALLEST = 1e-12
"""Drawn instead of an error of exactly zero."""


def error_curves(
    curves: Mapping[str, tuple[Sequence[int], np.ndarray]], labels: tuple[str, str], salt: str
) -> str:
    """An SVG of values (seeds × steps) against steps; `labels` are those of the axes."""
    from matplotlib.ticker import MaxNLocator

    with canvas.figure(5.2, 2.5 + 0.17 * ((len(curves) + 1) // 2), salt) as (figure, axes):
        shown = {name: (steps, np.maximum(v, SMALLEST)) for name, (steps, v) in curves.items()}
        draw_with_ranges(axes, shown, lambda values: np.exp(np.log(values).mean(0)))
        axes.set(xlabel=labels[0], ylabel=labels[1], yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        canvas.log_ticks(axes.yaxis, *axes.get_ylim())
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        canvas.legend_above(axes)
        return canvas.svg(figure)
