"""Lines over training steps or sizes: one per method, with the range of its seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import CYCLE, INK, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = 1e-12
"""Drawn instead of an error of exactly zero."""

Curves = Mapping[str, tuple[Sequence[int], np.ndarray]]
"""Method → steps, and values of shape (seeds, steps)."""


def curves_chart(curves: Curves, label: str, salt: str) -> str:
    """Draw a term during training as an SVG, the mean of the seeds with their range shaded.

    The height is chosen for the second half of training; curves may start below the chart.
    """
    with _line_chart(curves, lambda values: values.mean(0), salt) as (figure, axes):
        tails = [values[:, len(steps) // 2 :] for steps, values in curves.values()]
        lowest, highest = min(t.min() for t in tails), max(t.max() for t in tails)
        span = (highest - lowest) or 1.0
        axes.set(xlabel="step", ylabel=label, ylim=(lowest - 2 * span, highest + span / 2))
        if len(curves) > 1:
            canvas.legend_above(axes)
        return canvas.svg(figure)


def error_curves(curves: Curves, labels: tuple[str, str], salt: str) -> str:
    """Draw errors on a logarithmic axis as an SVG, the geometric mean of the seeds with their range shaded."""
    positive = {name: (steps, np.maximum(v, SMALLEST)) for name, (steps, v) in curves.items()}
    with _line_chart(positive, lambda v: np.exp(np.log(v).mean(0)), salt) as (figure, axes):
        axes.set(xlabel=labels[0], ylabel=labels[1], yscale="log")
        canvas.log_ticks(axes.yaxis, *axes.get_ylim())
        canvas.legend_above(axes)
        return canvas.svg(figure)


@contextmanager
def _line_chart(
    curves: Curves, average: Callable[[np.ndarray], np.ndarray], salt: str
) -> Iterator[tuple["Figure", "Axes"]]:
    """Draw one line per method, the average of its seeds, with their range shaded."""
    from matplotlib.ticker import MaxNLocator

    alpha = 0.18 / max(1.0, len(curves) / 3)  # lower if many overlap
    with canvas.figure(5.2, 2.5 + 0.17 * ((len(curves) + 1) // 2), salt) as (figure, axes):
        for (dashes, colour), (name, (steps, values)) in zip(LINES, curves.items(), strict=False):
            style = {"color": colour, "linestyle": dashes, "linewidth": 1.4, "label": name}
            axes.plot(steps, average(values), **style)
            if len(values) > 1:
                low, high = values.min(0), values.max(0)
                axes.fill_between(steps, low, high, color=colour, alpha=alpha, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        yield figure, axes


def scaling_chart(
    groups: Mapping[str, Mapping[str, tuple[Sequence[int], np.ndarray]]],
    theory: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    labels: tuple[str, str],
) -> bytes:
    """Draw values against a size, both on logarithmic axes, as a PNG on white.

    Parameters
    ----------
    groups
        Lines by name, in groups by name: sizes, and values of shape (seeds, sizes). A group has a marker, a line of it
        a colour; points are means over the seeds, bars their range.
    theory
        Sizes and values that theory predicts for the lines of these names, dashed.
    labels
        The labels of the axes.
    """
    with canvas.figure(5.6, 3.6) as (figure, axes):
        for marker, (group, lines) in zip("osD^v", groups.items(), strict=False):
            for colour, (name, (sizes, values)) in zip(CYCLE, lines.items(), strict=False):
                mean = values.mean(0)
                axes.errorbar(
                    sizes,
                    mean,
                    yerr=np.abs(np.stack([values.min(0), values.max(0)]) - mean),
                    fmt=marker,
                    color=colour,
                    markersize=4.5,
                    linewidth=0.9,
                    label=f"{group}, {name}",
                )
                if marker == "o" and name in theory:
                    axes.plot(*theory[name], color=colour, linestyle=(0, (4, 2)), linewidth=1.1)
        axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(axis="y", alpha=0.15, linewidth=0.6)
        axes.legend(fontsize=7.5, ncols=max(1, len(groups)), loc="lower left")
        figure.tight_layout()
        return canvas.png(figure, white=True)
