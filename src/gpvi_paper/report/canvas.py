"""Basics of figures: colours, sizes, axes, and conversion to bytes.

Charts are SVG whose text and axes inherit the text colour of the page, panels are transparent PNG: both look right on a
light page, on a dark one and on paper.
"""

import io
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#010203"
"""Stands for the colour of the text, and is replaced by it."""
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
def figure(width: float, height: float, salt: str = "gpvi") -> Iterator[tuple["Figure", "Axes"]]:
    """A figure without a window system; `salt` keeps the identifiers of several SVGs distinct."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE | {"svg.hashsalt": salt}):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(width, height))
        yield figure, figure.subplots()


def bare(figure: "Figure", axes: "Axes") -> None:
    """Fill the figure with invisible axes."""
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set_axis_off()


def legend_above(axes: "Axes") -> None:
    """In two columns over the chart."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        fontsize=7.5,
        handlelength=1.6,
        borderaxespad=0.2,
    )


def log_ticks(axis: "Axis", low: float, high: float) -> None:
    """Plain numbers along a logarithmic axis from low to high, at 1, 2 and 5 of each decade where these are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    few = high < 300 * low
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if few else LogLocator(numticks=7))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def png(figure: "Figure", *, white: bool = False) -> bytes:
    """Transparent, or on white for a page of unknown colour."""
    if white:
        figure.patch.set_facecolor("white")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=160, transparent=not white, metadata={"Software": None}
    )
    return buffer.getvalue()


def svg(figure: "Figure") -> str:
    """The bare element, without prologue, metadata and namespaces: HTML needs none of them.

    Coordinates have two decimals: a hundredth of a point is invisible, and the file is half as large.
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
