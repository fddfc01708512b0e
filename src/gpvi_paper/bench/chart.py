"""The chart of a report: ratios to the baseline, growth with size, and distance from the limits of the machine."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpvi_paper.bench.results import Result
from gpvi_paper.files import write_file
from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import CYCLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "bench.png"


def chart(results: Sequence[Result], directory: str | os.PathLike[str]) -> Path | None:
    """Draw the results as a PNG in the directory, and return its path; None if there is nothing to draw."""
    panels = [draw for draw, has in PANELS if any(has(result) for result in results)]
    if not panels:
        return None
    path = Path(directory) / FILE
    columns = min(2, len(panels))
    with canvas.empty_figure(4.6 * columns, 3.4 * -(-len(panels) // columns)) as figure:
        for draw, axes in zip(panels, canvas.grid(figure, len(panels), columns), strict=True):
            draw(axes, results)
        figure.tight_layout()
        content = canvas.png(figure, white=True)
    write_file(path, content, "the chart")
    return path


def _is_step(result: Result) -> bool:
    return result.case.startswith("steps-") and "ratio" in result.values


def _is_svgd(result: Result) -> bool:
    return result.case == "svgd"


def _is_growth(result: Result) -> bool:
    return result.case == "growth" and "ms" in result.values


def _is_roofline(result: Result) -> bool:
    return result.case.startswith("roofline-")


def _ratios(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw ratios: a line for each form of GPVI, with a dot for each size."""
    steps = [r for r in results if _is_step(r)]
    labels = list(dict.fromkeys(r.contender for r in steps))
    for colour, case in zip(CYCLE, dict.fromkeys(r.case for r in steps), strict=False):
        own = [r for r in steps if r.case == case]
        heights = [len(labels) - labels.index(r.contender) for r in own]
        ratios = [r.values["ratio"] for r in own]
        axes.plot(ratios, heights, "o", color=colour, markersize=4.5, label=own[0].row)
    axes.axvline(1.0, color=INK, linewidth=0.8, alpha=0.5)
    axes.axvline(1.1, color=INK, linewidth=0.8, alpha=0.3, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="time of a step over that of amortised SVGD")
    axes.set_yticks(range(len(labels), 0, -1), labels, fontsize=7)
    axes.legend(fontsize=6.5, loc="upper right")


def _svgd(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw milliseconds against d: a colour for each number of particles, a marker for each library."""
    own = [r for r in results if _is_svgd(r) and "fixed" not in r.contender]
    for marker, who in zip("os^", dict.fromkeys(r.contender for r in own), strict=False):
        for colour, n in zip(CYCLE, sorted({_numbers(r.row)[0] for r in own}), strict=False):
            line = sorted(
                (_numbers(r.row)[1], r.values["ms"])
                for r in own
                if r.contender == who and _numbers(r.row)[0] == n
            )
            if line:
                d, ms = zip(*line, strict=True)
                axes.plot(
                    d,
                    ms,
                    marker=marker,
                    color=colour,
                    markersize=4,
                    linewidth=1,
                    label=f"{who}, n = {n:,}",
                )
    axes.set(xscale="log", yscale="log", xlabel="d", ylabel="ms a step of SVGD")
    axes.legend(fontsize=6.5)


def _growth(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw milliseconds against each size, with the fitted exponent."""
    own = [r for r in results if r.case == "growth"]
    for colour, label in zip(CYCLE, dict.fromkeys(r.row for r in own), strict=False):
        points = [
            (_numbers(r.contender)[0], r.values["ms"])
            for r in own
            if r.row == label and "ms" in r.values
        ]
        fitted = [r.values["exponent"] for r in own if r.row == label and "exponent" in r.values]
        power = f": exponent {fitted[0]:.2f}" if fitted else ""
        axes.plot(
            *zip(*points, strict=True),
            "o-",
            color=colour,
            markersize=4,
            linewidth=1,
            label=label + power,
        )
    axes.set(xscale="log", yscale="log", xlabel="size", ylabel="ms a step")
    axes.legend(fontsize=6.5)


def _floors(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw the time of a step over its least time: a bar for each method."""
    own = [r for r in results if _is_roofline(r)]
    labels = [f"{r.contender}\n{r.row}" for r in own]
    times = [r.values["over floor"] for r in own]
    heights = range(len(own), 0, -1)
    axes.barh(heights, times, color=CYCLE[0], height=0.6)
    axes.axvline(1.0, color=INK, linewidth=0.8)
    axes.set_yticks(heights, labels, fontsize=6.5)
    axes.set(xlabel="time of a step over its floor")


def _numbers(text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", text)]


PANELS: tuple[tuple[Callable[["Axes", Sequence[Result]], None], Callable[[Result], bool]], ...] = (
    (_ratios, _is_step),
    (_svgd, _is_svgd),
    (_growth, _is_growth),
    (_floors, _is_roofline),
)
"""How a panel is drawn, and which results it needs."""
