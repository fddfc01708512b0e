"""Errors along a training or an iteration: logarithmic, one line to a method, the range of the seeds shaded."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpvi.report.figures import INK, LINES, _figure, _svg, shade

SMALLEST = 1e-12
"""What is drawn in place of an error of exactly zero."""


def error_curves(
    curves: Mapping[str, tuple[Sequence[int], np.ndarray]], labels: tuple[str, str], salt: str
) -> str:
    """An SVG of values (seeds × steps) against steps; `labels` are those of the axes."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    with _figure(5.2, 2.5 + 0.17 * ((len(curves) + 1) // 2), salt) as (figure, axes):
        for (line, colour), (name, (steps, values)) in zip(LINES, curves.items(), strict=False):
            shown = np.maximum(values, SMALLEST)
            middle = np.exp(np.log(shown).mean(0))
            axes.plot(steps, middle, color=colour, linestyle=line, linewidth=1.4, label=name)
            if len(shown) > 1:
                axes.fill_between(
                    steps,
                    shown.min(0),
                    shown.max(0),
                    color=colour,
                    alpha=shade(len(curves)),
                    linewidth=0,
                )
        axes.set(xlabel=labels[0], ylabel=labels[1], yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        low, high = axes.get_ylim()
        few = high < 300 * low
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if few else LogLocator(numticks=7))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=2,
            fontsize=7.5,
            handlelength=1.6,
            borderaxespad=0.2,
        )
        return _svg(figure)
