"""The picture of a report: ratios to the baseline, growth with size, and distance from the machine's limits."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpvi.errors import StorageError
from gpvi.persistence.writing import atomic
from gpvi_paper.bench.cases import growth, particles
from gpvi_paper.bench.limits import roofline
from gpvi_paper.bench.results import Result
from gpvi_paper.report import canvas
from gpvi_paper.report.canvas import CYCLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "bench.png"


def chart(results: Sequence[Result], directory: str | os.PathLike[str]) -> Path | None:
    """Write what can be drawn of the results; None where nothing can."""
    panels = [draw for draw, has in PANELS if any(has(result) for result in results)]
    if not panels:
        return None
    path = Path(directory) / FILE
    with canvas.figure(4.6 * min(2, len(panels)), 3.4 * -(-len(panels) // 2)) as (figure, single):
        single.remove()
        axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).ravel()
        for draw, each in zip(panels, axes, strict=False):
            draw(each, results)
        for each in axes[len(panels) :]:
            each.set_axis_off()
        figure.tight_layout()
        content = canvas.png(figure, white=True)
    try:
        with atomic(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise StorageError(
            f"the picture cannot be written to {path}: {error.strerror}. Choose another --out directory."
        ) from error
    return path


def _is_step(result: Result) -> bool:
    return result.case.startswith("steps-") and "ratio" in result.values


def _ratios(axes: "Axes", results: Sequence[Result]) -> None:
    """A dot to a size, a line to a form of GPVI."""
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
    """Milliseconds against d; a colour to a number of particles, a marker to a library."""
    own = [r for r in results if r.case == particles.CASE and "fixed" not in r.contender]
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
    """Milliseconds against each size, with the fitted exponent."""
    own = [r for r in results if r.case == growth.CASE]
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
    """Time over the least time, a bar to a method."""
    own = [r for r in results if r.case.startswith(roofline.CASE)]
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
    (_svgd, lambda result: result.case == particles.CASE),
    (_growth, lambda result: result.case == growth.CASE and "ms" in result.values),
    (_floors, lambda result: result.case.startswith(roofline.CASE)),
)
