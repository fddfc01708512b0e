"""The pictures of docs/networks.md: `make docs-figures`, a few minutes on two cores."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

from gpvi import metrics
from gpvi.bnn import BayesianMLPClassifier, BayesianMLPRegressor
from gpvi.report.reliability import draw_reliability

HERE = Path(__file__).parent
BLUE = "#3465a4"


def curve(x: np.ndarray) -> np.ndarray:
    """The function that the bands should hold."""
    return -(1 + x) * np.sin(1.2 * x)


def band() -> None:
    """80 points with a gap, and what two methods make of them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, -0.5, 40), rng.uniform(1.5, 4, 40)])
    y = curve(x) + 0.2 * rng.standard_normal(80)
    grid = np.linspace(-6, 6, 241)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True)
    for ax, method in zip(axes, ("gpvi", "nuts"), strict=True):
        model = BayesianMLPRegressor(activation="tanh", method=method, random_state=0)
        model.fit(x[:, None], y)
        low, middle, high = model.predict_quantiles(grid[:, None]).T
        scaled = model.x_scaler_.transform(grid[:, None])
        parts = model.predictive_.predict(scaled, key=jax.random.key(0))
        spread = 1.645 * np.sqrt(np.asarray(parts.epistemic)[:, 0]) * model.y_scaler_.scale[0]
        ax.fill_between(grid, low, high, color=BLUE, alpha=0.18, linewidth=0, label="90 % of y")
        ax.fill_between(
            grid,
            middle - spread,
            middle + spread,
            color=BLUE,
            alpha=0.35,
            linewidth=0,
            label="90 % of the networks",
        )
        ax.plot(grid, middle, color=BLUE, linewidth=1.2)
        ax.plot(grid, curve(grid), color="black", linewidth=0.8, linestyle=(0, (4, 3)))
        ax.scatter(x, y, s=5, color="black", linewidths=0)
        ax.set(title=method.upper(), xlabel="x", ylim=(-7, 8))
    axes[0].set_ylabel("y")
    axes[0].legend(loc="lower left", fontsize=7.5, frameon=False)
    save(figure, "networks-band.png")


def reliability() -> None:
    """Confidence and accuracy on two moons."""
    X, y = make_moons(280, noise=0.3, random_state=0)
    new_X, new_y = make_moons(4_000, noise=0.3, random_state=1)
    figure, ax = plt.subplots(figsize=(3.4, 3.4))
    curves = {}
    for name, method in (("GPVI", "gpvi"), ("deep ensemble", "ensemble")):
        model = BayesianMLPClassifier(method=method, random_state=0).fit(X, y)
        curves[name] = metrics.reliability(model.predict_proba(new_X), new_y)
    draw_reliability(ax, curves)
    save(figure, "networks-reliability.png")


def save(figure: Figure, name: str) -> None:
    """Without what changes from run to run."""
    figure.tight_layout()
    figure.savefig(HERE / name, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    plt.rc("figure", dpi=160)
    plt.rc("font", size=9)
    plt.rc("axes.spines", top=False, right=False)
    band()
    reliability()
