"""Figures for the page: densities and draws in the plane, values by method, and terms along the training."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpvi_paper.report import canvas
from gpvi_paper.report.canvas import ACCENT, CYCLE, INK, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"paper": "#e07b39", "best": "#3f7fe0", "demo": "#12a594", "smoke": "#8a8f98"}
PALETTE = 64


class Mark(NamedTuple):
    """Values of one preset (or the paper's figure: a mean and its deviation) on a line of a dot chart."""

    preset: str
    values: tuple[float, ...]
    sd: float | None = None


def density_panel(density: np.ndarray) -> bytes:
    """A target as a PNG: the colour's opacity is the density."""
    with canvas.figure(2.3, 2.3) as (figure, axes):
        canvas.bare(figure, axes)
        axes.imshow(
            _tinted(density), origin="lower", extent=(-1, 1, -1, 1), interpolation="bilinear"
        )
        return canvas.png(figure)


def draws_panel(density: np.ndarray, draws: np.ndarray, half_width: float) -> bytes:
    """Draws as a PNG, over two contours of the target."""
    with canvas.figure(2.3, 2.3) as (figure, axes):
        canvas.bare(figure, axes)
        axis = np.linspace(-half_width, half_width, len(density))
        axes.contour(axis, axis, density, (0.1, 0.6), colors="#8a8f98", linewidths=0.7, alpha=0.9)
        axes.scatter(draws[:, 0], draws[:, 1], s=2.2, color=ACCENT, alpha=0.55, linewidths=0)
        axes.set(xlim=(-half_width, half_width), ylim=(-half_width, half_width))
        return _few_colours(canvas.png(figure))


def dot_chart(
    lines: Mapping[str, Sequence[Mark]], label: str, floor: float | None, salt: str
) -> str:
    """One line per method, one dot per seed, a bar at the mean; diamonds are the paper's figures."""
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
    """Upper end of a linear axis: a few methods far off would leave no room for the others."""
    means = [float(np.mean(mark.values)) for marks in lines.values() for mark in marks]
    low, high = np.quantile(means, (0.25, 0.75))
    return float(high + 5 * (high - low)) if high > low else np.inf


def _draw_beyond(axes: "Axes", lines: Mapping[str, Sequence[Mark]], edge: float) -> None:
    """An arrow and the number for each mean beyond the edge."""
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


def curves_chart(
    curves: Mapping[str, tuple[Sequence[int], np.ndarray]], label: str, salt: str
) -> str:
    """A term during training, one colour per method, the seeds' mean with their range shaded.

    The height is chosen for the second half of training; curves may start below the chart.
    """
    from matplotlib.ticker import MaxNLocator

    with canvas.figure(5.2, 2.5 + 0.17 * ((len(curves) + 1) // 2), salt) as (figure, axes):
        draw_with_ranges(axes, curves, lambda values: values.mean(0))
        tails = [values[:, len(steps) // 2 :] for steps, values in curves.values()]
        lowest, highest = min(t.min() for t in tails), max(t.max() for t in tails)
        span = (highest - lowest) or 1.0
        axes.set(xlabel="step", ylabel=label, ylim=(lowest - 2 * span, highest + span / 2))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        if len(curves) > 1:
            canvas.legend_above(axes)
        return canvas.svg(figure)


def draw_with_ranges(
    axes: "Axes",
    curves: Mapping[str, tuple[Sequence[int], np.ndarray]],
    middle: Callable[[np.ndarray], np.ndarray],
) -> None:
    """One line per method, the `middle` of its seeds, with their range shaded."""
    for (line, colour), (name, (steps, values)) in zip(LINES, curves.items(), strict=False):
        axes.plot(steps, middle(values), color=colour, linestyle=line, linewidth=1.4, label=name)
        if len(values) > 1:
            low, high, alpha = values.min(0), values.max(0), shade(len(curves))
            axes.fill_between(steps, low, high, color=colour, alpha=alpha, linewidth=0)


def scaling_chart(
    groups: Mapping[str, Mapping[str, tuple[Sequence[int], np.ndarray]]],
    theory: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    labels: tuple[str, str],
) -> bytes:
    """Values against a size, both logarithmic, as a PNG on white: a marker to a group, a colour to a line of it.

    Each line is (sizes, values of shape (seeds, sizes)), its seeds' mean with their range as a bar; what theory says of
    the line of the same name is dashed.
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


def shade(lines: int) -> float:
    """The opacity of a range, lower if many overlap."""
    return 0.18 / max(1.0, lines / 3)


def _tinted(density: np.ndarray) -> np.ndarray:
    from matplotlib.colors import to_rgb

    image = np.empty((*density.shape, 4))
    image[..., :3] = to_rgb(ACCENT)
    image[..., 3] = np.clip(density, 0, 1) ** 0.7
    return image


def _few_colours(png: bytes) -> bytes:
    """The same with a palette of `PALETTE` colours, for dots and lines: a quarter of the size, visually identical."""
    from PIL import Image

    small = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.quantize(PALETTE, method=Image.Quantize.FASTOCTREE).save(small, "png", optimize=True)
    return small.getvalue()
