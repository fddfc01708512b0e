"""Dot charts: one line per method, one dot per seed, beside the paper's figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import CYCLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "paper": "#e07b39",
    "authors": "#b5489b",
    "earlier": "#b9aea6",
    "best": "#3f7fe0",
    "demo": "#12a594",
    "smoke": "#8a8f98",
}
"""The colour of each preset."""


class Mark(NamedTuple):
    """The values of one preset on a line of the chart, or the paper's figure: a mean and its standard deviation."""

    preset: str
    values: tuple[float, ...]
    sd: float | None = None


def dot_chart(
    lines: Mapping[str, Sequence[Mark]], label: str, floor: float | None, salt: str
) -> str:
    """Draw one line per method as an SVG: a dot for each seed, a bar at the mean, a diamond for the paper's figure.

    Parameters
    ----------
    lines
        The values of each method.
    label
        The label of the axis.
    floor
        The value for exact draws, if there is one.
    salt
        A text of its own for each SVG of a page.
    """
    with canvas.figure(5.2, 0.6 + 0.46 * len(lines), salt) as (figure, axes):
        rng = np.random.default_rng(0)
        for height, (name, marks) in enumerate(reversed(list(lines.items()))):
            axes.text(
                0.0,
                height + 0.36,
                name,
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8.5,
            )
            axes.axhline(height, color=INK, alpha=0.12, linewidth=0.6, zorder=0)
            for mark in marks:
                _draw_mark(axes, mark, height, rng)
        values = [v for marks in lines.values() for mark in marks for v in mark.values]
        positive = min((v for v in values if v > 0), default=1.0)
        if floor is not None:
            axes.axvline(floor, color=INK, alpha=0.45, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(
                "exact draws",
                (floor, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=7.5,
                alpha=0.75,
                ha="center",
                va="bottom",
            )
        if min(values) > 0 and max(values) > 8 * positive:
            axes.set_xscale("log")
            canvas.log_ticks(axes.xaxis, positive, max(values))
        elif (edge := _edge(lines)) < max(values):
            axes.set_xlim(min(values) - 0.05 * (edge - min(values)), edge)
            _draw_beyond(axes, lines, edge)
        axes.set(xlabel=label, ylim=(-0.5, len(lines) - 0.1), yticks=[])
        axes.spines["left"].set_visible(False)
        return canvas.svg(figure)


def _edge(lines: Mapping[str, Sequence[Mark]]) -> float:
    """Return the upper end of a linear axis, so that a few distant methods leave room for the others."""
    means = [float(np.mean(mark.values)) for marks in lines.values() for mark in marks]
    low, high = np.quantile(means, (0.25, 0.75))
    return float(high + 5 * (high - low)) if high > low else np.inf


def _draw_beyond(axes: "Axes", lines: Mapping[str, Sequence[Mark]], edge: float) -> None:
    """Draw an arrow and the number for each mean beyond the edge."""
    for height, marks in enumerate(reversed(list(lines.values()))):
        far = [m for m in marks if np.mean(m.values) > edge]
        for number, mark in enumerate(far):
            axes.annotate(
                f"{np.mean(mark.values):.2g} →",
                (1, height),
                xycoords=("axes fraction", "data"),
                xytext=(-1, 8 * (len(far) - 1 - 2 * number) / 2),
                textcoords="offset points",
                fontsize=7.5,
                color=COLOURS.get(mark.preset, INK),
                ha="right",
                va="center",
            )


def _draw_mark(axes: "Axes", mark: Mark, height: int, rng: np.random.Generator) -> None:
    if mark.preset == "published":
        (value,) = mark.values
        if mark.sd:
            low = max(value - mark.sd, value / 10)
            axes.plot([low, value + mark.sd], [height, height], color=INK, linewidth=0.9, alpha=0.6)
        axes.plot(
            value,
            height,
            marker="D",
            markersize=5,
            color=INK,
            fillstyle="none",
            markeredgewidth=1.0,
        )
        return
    colour = COLOURS.get(mark.preset, CYCLE[-1])
    jitter = rng.uniform(-0.11, 0.11, len(mark.values)) if len(mark.values) > 1 else [0.0]
    axes.plot(
        mark.values,
        height + np.asarray(jitter),
        ".",
        color=colour,
        markersize=5.5,
        alpha=0.6,
        markeredgewidth=0,
    )
    mean = float(np.mean(mark.values))
    axes.plot([mean, mean], [height - 0.17, height + 0.17], color=colour, linewidth=2.0)
