"""Densities and draws in the plane, as square panels."""

import numpy as np

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import ACCENT

DOT_COLOURS = 32
"""Colours of a panel with dots over lines."""


def density_panel(density: np.ndarray) -> bytes:
    """Draw a target as a PNG: opacity is the density."""
    with canvas.figure(2.3, 2.3) as (figure, axes):
        canvas.bare(figure, axes)
        axes.imshow(
            canvas.tinted(np.clip(density, 0, 1) ** 0.7),
            origin="lower",
            extent=(-1, 1, -1, 1),
            interpolation="bilinear",
        )
        return canvas.few_colours(canvas.png(figure))


def draws_panel(density: np.ndarray, draws: np.ndarray, half_width: float) -> bytes:
    """Draw samples as a PNG, over two contours of the target."""
    with canvas.figure(2.3, 2.3) as (figure, axes):
        canvas.bare(figure, axes)
        axis = np.linspace(-half_width, half_width, len(density))
        axes.contour(axis, axis, density, (0.1, 0.6), colors="#8a8f98", linewidths=0.7, alpha=0.9)
        axes.scatter(draws[:, 0], draws[:, 1], s=2.2, color=ACCENT, alpha=0.55, linewidths=0)
        axes.set(xlim=(-half_width, half_width), ylim=(-half_width, half_width))
        return canvas.few_colours(canvas.png(figure), DOT_COLOURS)
