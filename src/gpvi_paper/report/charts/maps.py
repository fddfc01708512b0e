"""Where networks disagree over the plane: the predictive standard deviation, with the data on top."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from gpvi_paper.report.charts import canvas
from gpvi_paper.report.charts.canvas import ACCENT, CYCLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 5
"""Panels side by side."""
SHADES, FINER = 40, 9
"""Number of shades, which look smooth in a file a tenth as large as with all shades; and pixels per grid point."""
MAP_DPI = 100
"""Of a map beside many others, whose shades are soft."""
CLASS_COLOURS = (CYCLE[1], CYCLE[2], CYCLE[3], CYCLE[6])


def map_panel(
    sd: Float[np.ndarray, "s s"],
    highest: float,
    inputs: Float[np.ndarray, "n 2"],
    labels: Int[np.ndarray, " n"],
    half_width: float,
) -> bytes:
    """Draw one map as a transparent PNG: opacity is the sd, full at `highest`; rows run along the second input."""
    with canvas.figure(2.3, 2.3) as (figure, axes):
        canvas.bare(figure, axes)
        draw_map(axes, sd, highest, inputs, labels, half_width)
        return canvas.few_colours(canvas.png(figure, dpi=MAP_DPI))


def maps_chart(
    maps: Mapping[str, Float[np.ndarray, "s s"]],
    inputs: Float[np.ndarray, "n 2"],
    labels: Int[np.ndarray, " n"],
    half_width: float,
    highest: float | None = None,
) -> bytes:
    """Draw one panel per method as a PNG on white, all on one scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    highest = max(float(sd.max()) for sd in maps.values()) if highest is None else highest
    columns = min(COLUMNS, len(maps))
    rows = -(-len(maps) // columns)
    with canvas.empty_figure(1.75 * columns + 0.6, 1.96 * rows) as figure:
        panels = canvas.grid(figure, len(maps), columns)
        for axes, (name, sd) in zip(panels, maps.items(), strict=True):
            draw_map(axes, sd, highest, inputs, labels, half_width)
            axes.set_title(fill(name, 24), fontsize=8, loc="left", pad=3)
            axes.set(xticks=(), yticks=())
        figure.subplots_adjust(0.01, 0.01, 0.92, 1 - 0.28 / (1.96 * rows), 0.06, 0.24)
        bar = figure.add_axes((0.94, 0.12, 0.012, 0.7))
        shades = LinearSegmentedColormap.from_list("sd", ["white", ACCENT])
        figure.colorbar(ScalarMappable(Normalize(0, highest), shades), cax=bar)
        bar.tick_params(labelsize=7)
        bar.set_title("sd", fontsize=8)
        return canvas.png(figure, white=True)


def draw_map(
    axes: "Axes",
    sd: Float[np.ndarray, "s s"],
    highest: float,
    inputs: Float[np.ndarray, "n 2"],
    labels: Int[np.ndarray, " n"],
    half_width: float,
) -> None:
    """Draw one panel: the darker, the less the networks agree."""
    image = canvas.tinted(np.round(SHADES * finer(np.clip(sd / highest, 0, 1))) / SHADES)
    extent = (-half_width, half_width, -half_width, half_width)
    axes.imshow(image, origin="lower", extent=extent, interpolation="nearest")
    for label in np.unique(labels):
        own = inputs[labels == label]
        colour = CLASS_COLOURS[int(label) % len(CLASS_COLOURS)]
        axes.scatter(own[:, 0], own[:, 1], s=3.5, color=colour, linewidths=0)
    axes.set(xlim=extent[:2], ylim=extent[2:])


def finer(values: Float[np.ndarray, "s s"]) -> Float[np.ndarray, "p p"]:
    """Interpolate linearly along both axes."""
    for _ in range(2):
        at = (np.arange(FINER * len(values)) + 0.5) / FINER - 0.5
        places = np.arange(len(values))
        values = np.stack([np.interp(at, places, column) for column in values.T])
    return values
