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
SHORT = 1e-12
"""The square of a length that counts as none."""
UNSEEN = 0.15
"""Points of a line nearer than this to it, in points of a 72nd of an inch, are left out."""
BARE = re.compile(r"<g>((?:[^<]|<(?!/?g\b))*)</g>")
"""A group of SVG without attributes, and without groups in it."""
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


def png(figure: "Figure", *, white: bool = False, dpi: int = 160) -> bytes:
    """Return the figure as a PNG: transparent, or on white for a page of unknown colour."""
    if white:
        figure.patch.set_facecolor("white")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=dpi, transparent=not white, metadata={"Software": None}
    )
    return buffer.getvalue()


def few_colours(image: bytes, colours: int = 256) -> bytes:
    """Reduce a PNG to its most frequent colours and opacities, and every other pixel to the nearest of them.

    Panels have one colour in many opacities, and a few dots: they look the same in a third of the size.
    """
    from PIL import Image

    with Image.open(io.BytesIO(image)) as picture:
        pixels = np.asarray(picture.convert("RGBA"))
    packed = np.ascontiguousarray(pixels).view(np.uint32).ravel()
    found, at, counts = np.unique(packed, return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(counts)[::-1][:colours])
    rgba = found.view(np.uint8).reshape(-1, 4).astype(np.int32)
    nearest = ((rgba[:, None] - rgba[kept]) ** 2).sum(2).argmin(1)
    palette = rgba[kept].astype(np.uint8)
    small = Image.fromarray(nearest[at].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    small.putpalette(palette[:, :3].tobytes())
    buffer = io.BytesIO()
    small.save(buffer, "png", optimize=True, transparency=palette[:, 3].tobytes())
    return buffer.getvalue()


def svg(figure: "Figure") -> str:
    """Return the figure as an SVG element, without the prologue, metadata and namespaces that HTML does not need.

    Lines lose the points that nobody would see, and are written as steps from point to point (`compact`).
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.05)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{compact(found[1])}"', text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r">\s+<", "><", text).replace(" xlink:href=", " href=")
    text = re.sub(r'<path d="([^"]*)"', lambda found: rounded(found[1]) or found[0], text)
    return ungrouped(text).replace(INK, "currentColor")


def ungrouped(text: str) -> str:
    """Return SVG without groups that have no attributes, from the innermost outwards."""
    while (fewer := BARE.sub(r"\1", text)) != text:
        text = fewer
    return text


def rounded(path: str) -> str:
    """Return the beginning of a circle for a path that Matplotlib draws as one, of eight curves; "" for any other."""
    if re.sub(r"[^A-Za-z]", "", path) != "MCCCCCCCCz":
        return ""
    ends = np.array(re.findall(r"-?[\d.]+", path), float).reshape(-1, 2)[::3]
    centre = (ends.min(0) + ends.max(0)) / 2
    radii = np.hypot(*(ends - centre).T)
    if np.ptp(radii) > UNSEEN:
        return ""
    x, y = centre
    return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radii.mean():.2f}"'


def compact(path: str) -> str:
    """Return the `d` of an SVG path in fewer characters.

    Straight lines are reduced to points at most `UNSEEN` away from them, and then to steps in tenths of a point, whose
    rounding does not add up. Paths with curves are small markers: they only lose blanks.
    """
    if not set(re.findall("[A-Za-z]", path)) <= set("MLz"):
        return re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"\s*([A-Za-z])\s*", r"\1", path))
    pieces = []
    for piece in re.findall("M[^M]*", path):
        points = np.array(re.findall(r"-?[\d.]+", piece), float).reshape(-1, 2)
        tenths = np.round(10 * points[_seen(points)]).astype(int)
        steps = np.diff(tenths, axis=0)
        line = "l" + " ".join(f"{x / 10:g} {y / 10:g}" for x, y in steps) if len(steps) else ""
        x, y = tenths[0] / 10
        pieces.append(f"M{x:g} {y:g}{line}{'z' if 'z' in piece else ''}")
    return "".join(pieces)


def _seen(points: np.ndarray) -> np.ndarray:
    """Return which points a line needs, by Ramer, Douglas and Peucker: the others are nearly on it."""
    kept = np.zeros(len(points), bool)
    kept[[0, -1]] = True
    pending = [(0, len(points) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        start, inner = points[first], points[first + 1 : last]
        chord, offset = points[last] - start, inner - start
        along = np.clip((offset * chord).sum(1) / max((chord**2).sum(), SHORT), 0, 1)
        far = np.hypot(*(offset - along[:, None] * chord).T)
        if far.max() > UNSEEN:
            middle = first + 1 + int(far.argmax())
            kept[middle] = True
            pending += [(first, middle), (middle, last)]
    return kept
