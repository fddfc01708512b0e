"""Plots of draws, of importance weights and of training, on Matplotlib axes that are given or made."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpvi.errors import InputError, UnknownOptionError, require_extra
from gpvi.targets.density import expensive
from gpvi.targets.target import Target

COLOUR, OTHER_COLOUR = "#3f7fe0", "#e07b39"
DRAWS = 2_000
"""Draws of a plot, unless another number is asked for."""
MOST_PAIRS, MOST_MARGINALS = 5, 12
"""Quantities that are shown if none are named."""
SHARES = (0.99, 0.9, 0.5)
"""The shares of the posterior that contours enclose."""
GRID = 80
"""Points of the grid of contours, along each axis."""

Contours = Callable[[np.ndarray], np.ndarray]
"""log p at points (n, 2)."""


def new_axes(rows: int, columns: int, width: float = 2.6, height: float = 2.2) -> np.ndarray:
    """Make a figure by pyplot, which notebooks show, and return its axes, (rows, columns)."""
    require_extra("plots", "matplotlib", "a plot")
    import matplotlib.pyplot as plt

    size = max(4.0, width * columns), max(3.0, height * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return axes


def one_axes(ax: Any) -> Any:
    """Return the axes that were given, or new ones."""
    if ax is None:
        return new_axes(1, 1, 5.0, 3.2)[0, 0]
    if not hasattr(ax, "plot"):
        raise InputError(f"ax is {ax!r:.80}; pass Matplotlib axes, or omit it.")
    return ax


def chosen(
    names: Sequence[str], wanted: Sequence[str] | str | None, kind: str, ax: Any
) -> list[int]:
    """Return which columns are shown: those of the wanted names, or the first few.

    A name stands for a number, such as `theta[3]`, or for all entries of an array, such as `theta`.
    """
    if wanted is None:
        most = MOST_PAIRS if kind == "pairs" else MOST_MARGINALS
        return list(range(min(len(names), 2 if hasattr(ax, "plot") else most)))
    columns = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        found = [i for i, each in enumerate(names) if each == name or each.startswith(f"{name}[")]
        if not found:
            raise UnknownOptionError("name", name, names)
        columns += found
    return columns


def plot_draws(
    x: Float[np.ndarray, "n m"],
    names: Sequence[str],
    kind: str,
    ax: Any,
    contours: Contours | None = None,
) -> Any:
    """Draw the columns of x as marginals, or as pairs below the diagonal; one panel for one or two of them."""
    count = len(names)
    if count == 1 or (count == 2 and kind == "pairs" and hasattr(ax, "plot")):
        panel = one_axes(ax)
        (_marginal if count == 1 else _pair)(panel, x, names, *([] if count == 1 else [contours]))
        return panel
    if kind == "marginals":
        columns = min(4, count)
        panels = _panels(ax, (-(-count // columns), columns))
        for panel in panels.flat[count:]:
            panel.set_axis_off()
        for i in range(count):
            _marginal(panels.flat[i], x[:, [i]], [names[i]])
        return panels
    panels = _panels(ax, (count, count))
    for row in range(count):
        for column in range(count):
            panel = panels[row, column]
            if column > row:
                panel.set_axis_off()
            elif column == row:
                _marginal(panel, x[:, [row]], [names[row]])
            else:
                pair = [column, row]
                _pair(panel, x[:, pair], [names[i] for i in pair], contours if count == 2 else None)
    return panels


def contours_of(target: Target) -> Contours | None:
    """Return log p of a target whose two coordinates are what is plotted; None if it would take long."""
    if target.dim != 2 or target.stream is not None or expensive(target):
        return None

    def log_density(points: np.ndarray) -> np.ndarray:
        with target.precision():
            return np.asarray(target.log_densities(jnp.asarray(points, target.dtype)))

    return log_density


def plot_weights(
    log_ratios: Float[np.ndarray, " n"],
    log_weights: Float[np.ndarray, " n"],
    k_hat: float,
    share: float,
    ax: Any,
) -> Any:
    """Draw importance weights by rank, before and after smoothing, with k̂."""
    panel, n = one_axes(ax), len(log_ratios)
    finite = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    plain = finite - np.logaddexp.reduce(finite)
    ranks = np.arange(1, n + 1)
    for logs, colour, label in (
        (plain, OTHER_COLOUR, "p/q"),
        (log_weights, COLOUR, "smoothed"),
    ):
        panel.plot(ranks, n * np.exp(np.sort(logs)[::-1]), color=colour, label=label, lw=1.5)
    panel.axhline(1, color="0.7", lw=0.8, zorder=0)
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="rank of the draw",
        ylabel="weight, 1 on average",
        title=f"k̂ = {k_hat:.2f}, effective share {share:.3f}",
    )
    panel.legend(frameon=False)
    _bare(panel)
    return panel


def plot_curve(values: Float[np.ndarray, " n"], name: str, ax: Any) -> Any:
    """Draw what every step reported, and its running mean."""
    panel, n = one_axes(ax), len(values)
    window = max(1, n // 50)
    panel.plot(np.arange(1, n + 1), values, color="0.8", lw=0.6)
    if window > 1:
        smooth = np.convolve(values, np.full(window, 1 / window), "valid")
        panel.plot(np.arange(window, n + 1), smooth, color=COLOUR, lw=1.5)
        low, high = smooth.min(), smooth.max()
        last = values[n // 2 :]
        low, high = min(low, *np.quantile(last, [0.01])), max(high, *np.quantile(last, [0.99]))
        panel.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9)
    panel.set(xlabel="step", ylabel=name.replace("_", " "))
    _bare(panel)
    return panel


def _panels(ax: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return axes of this shape: new ones, or the array that was given."""
    if ax is None:
        return new_axes(*shape)
    panels = np.asarray(ax, dtype=object)
    if panels.size != shape[0] * shape[1]:
        raise InputError(
            f"ax holds {panels.size} axes, but {shape[0]} × {shape[1]} are needed: "
            f"plt.subplots({shape[0]}, {shape[1]}), or name one quantity for a single one."
        )
    return panels.reshape(shape)


def _marginal(panel: Any, x: np.ndarray, names: Sequence[str]) -> None:
    low, high = _range(x[:, 0])
    panel.hist(x[:, 0], np.linspace(low, high, 41), density=True, color=COLOUR, alpha=0.8)
    panel.set(xlabel=names[0], yticks=[])
    _bare(panel)


def _pair(panel: Any, x: np.ndarray, names: Sequence[str], contours: Contours | None) -> None:
    panel.plot(x[:, 0], x[:, 1], ".", ms=2, alpha=0.4, color=COLOUR)
    limits = [_range(x[:, i]) for i in range(2)]
    if contours is not None:
        _draw_contours(panel, limits, contours)
    panel.set(xlabel=names[0], ylabel=names[1], xlim=limits[0], ylim=limits[1])
    _bare(panel)


def _draw_contours(panel: Any, limits: Sequence[tuple[float, float]], contours: Contours) -> None:
    """Draw the lines that enclose `SHARES` of the target's mass within the panel."""
    along = [np.linspace(*each, GRID) for each in limits]
    grid = np.stack(np.meshgrid(*along), -1)
    log_p = contours(grid.reshape(-1, 2)).reshape(GRID, GRID)
    log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
    if not np.isfinite(log_p.max()):
        return
    p = np.exp(log_p - log_p.max())
    ordered = np.sort(p.ravel())[::-1]
    enclosed = np.cumsum(ordered) / ordered.sum()
    levels = [ordered[np.searchsorted(enclosed, share)] for share in SHARES]
    levels = sorted({float(level) for level in levels if 0 < level < 1})
    if levels:
        panel.contour(*along, p, levels=levels, colors="0.25", linewidths=0.9)


def _range(x: np.ndarray) -> tuple[float, float]:
    """Return an interval that holds nearly all draws, with a margin."""
    low, high = np.quantile(x[np.isfinite(x)], [0.002, 0.998]) if np.isfinite(x).any() else (0, 1)
    margin = 0.08 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def _bare(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
