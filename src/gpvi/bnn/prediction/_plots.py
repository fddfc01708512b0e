"""The plot of a predictive distribution over one input."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from gpvi.posterior.plots import COLOUR, OTHER_COLOUR, one_axes

POINTS = 200
"""Inputs at which a curve is drawn."""
MARGIN = 0.1
"""How far a curve goes beyond the inputs that were given, as a share of their range."""


def grid(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "p 1"]:
    """Return evenly spaced inputs that cover the given ones, and a little more."""
    low, high = float(x.min()), float(x.max())
    margin = MARGIN * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, POINTS)[:, None]


def plot_band(
    x: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    level: float,
    ax: Any,
) -> Any:
    """Draw the mean, and the interval that holds y with probability `level`, for each output."""
    panel = one_axes(ax)
    for number, colour in zip(range(mean.shape[1]), _colours(mean.shape[1]), strict=True):
        band = f"{level:.0%} of y" if number == 0 else None
        panel.fill_between(
            x[:, 0], low[:, number], high[:, number], color=colour, alpha=0.2, lw=0, label=band
        )
        panel.plot(
            x[:, 0], mean[:, number], color=colour, lw=1.5, label="mean" if number == 0 else None
        )
    panel.set(xlabel="x", ylabel="y")
    return panel


def plot_classes(x: np.ndarray, probabilities: np.ndarray, ax: Any) -> Any:
    """Draw the probability of each class."""
    panel, count = one_axes(ax), probabilities.shape[1]
    for number, colour in zip(range(count), _colours(count), strict=True):
        name = "P(y = 1)" if count == 1 else f"P(y = {number})"
        panel.plot(x[:, 0], probabilities[:, number], color=colour, lw=1.5, label=name)
    panel.set(xlabel="x", ylabel="probability", ylim=(-0.05, 1.05))
    return panel


def add_data(panel: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Draw data as points."""
    for number in range(y.shape[1]):
        panel.plot(x, y[:, number], ".", ms=4, color="0.2", label="data" if number == 0 else None)


def finish(panel: Any) -> Any:
    """Add the legend."""
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    return panel


def _colours(count: int) -> list[Any]:
    if count <= 2:
        return [COLOUR, OTHER_COLOUR][:count]
    import matplotlib as mpl

    make: Callable[[float], Any] = mpl.colormaps["viridis"]
    return [make(i / (count - 1)) for i in range(count)]
