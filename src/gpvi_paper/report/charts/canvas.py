"""What all charts share: colours, style, axes, and conversion to bytes.

Charts are SVG whose text and axes inherit the text colour of the page, and panels are transparent PNG. Both look right
on a light page, on a dark one and on paper.
"""

import io
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#010203"
"""Stands for the colour of the page's text, and is replaced by it in an SVG."""
CYCLE = ("#3f7fe0", "#e07b39", "#12a594", "#b65fcf", "#d6455d", "#8a8f98", "#a3a021", "#5b6ee1")
LINES = tuple(itertools.product(("-", (0, (4, 1.5)), (0, (1, 1))), CYCLE))
"""Enough pairs of a dash pattern and a colour for 24 methods."""
ACCENT = "#4c7ef3"
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "gpvi",
}


@contextmanager
def empty_figure(width: float, height: float, salt: str = "gpvi") -> Iterator["Figure"]:
    """Give a figure in the style of the page; it must be drawn and converted within the `with` block.

    Parameters
    ----------
    width, height
        Its size in inches.
    salt
        A text of its own for each SVG of a page, which keeps their identifiers distinct.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE | {"svg.hashsalt": salt}):  # pyright: ignore[reportArgumentType]
        yield Figure(figsize=(width, height))


@contextmanager
def figure(width: float, height: float, salt: str = "gpvi") -> Iterator[tuple["Figure", "Axes"]]:
    """Give a figure with a single pair of axes, as `empty_figure` does."""
    with empty_figure(width, height, salt) as figure:
        yield figure, figure.subplots()


def grid(figure: "Figure", count: int, columns: int, **options: Any) -> "list[Axes]":
    """Divide a figure into `count` panels, in rows of as many columns."""
    panels = figure.subplots(-(-count // columns), columns, squeeze=False, **options).ravel()
    for axes in panels[count:]:
        axes.remove()
    return list(panels[:count])


def tinted(opacity: np.ndarray) -> np.ndarray:
    """Return an image in the accent colour with this opacity at each pixel."""
    from matplotlib.colors import to_rgb

    return np.concatenate(
        [np.broadcast_to(to_rgb(ACCENT), (*opacity.shape, 3)), opacity[..., None]], -1
    )


def bare(figure: "Figure", axes: "Axes") -> None:
    """Let the axes fill the figure, and hide their frame, ticks and labels."""
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set_axis_off()


def legend_above(axes: "Axes") -> None:
    """Put the legend over the chart, in two columns."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        fontsize=7.5,
        handlelength=1.6,
        borderaxespad=0.2,
    )


def log_ticks(axis: "Axis", low: float, high: float) -> None:
    """Label a logarithmic axis from low to high by plain numbers, at 1, 2 and 5 of each decade if these are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    few = high < 300 * low
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if few else LogLocator(numticks=7))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def png(figure: "Figure", *, white: bool = False) -> bytes:
    """Return the figure as a PNG: transparent, or on white for a page of unknown colour."""
    if white:
        figure.patch.set_facecolor("white")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=160, transparent=not white, metadata={"Software": None}
    )
    return buffer.getvalue()


def svg(figure: "Figure") -> str:
    """Return the figure as an SVG element, without the prologue, metadata and namespaces that HTML does not need.

    Coordinates are cut to two decimals: a hundredth of a point is invisible, and the file is half as large.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.05)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    return text.replace(INK, "currentColor")
