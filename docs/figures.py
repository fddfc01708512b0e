"""The pictures of README.md and docs/networks.md: `make docs-figures`, a few minutes on two cores.

Those of the README come from the records in results: `python docs/figures.py potentials classes outliers`, a few
seconds.
"""

import sys
from collections.abc import Callable
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
from gpvi_paper import records
from gpvi_paper.bench import results
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.images.open_category import HISTOGRAM, SPLIT
from gpvi_paper.report.charts.maps import maps_chart
from gpvi_paper.report.charts.outliers import ScoreHistogram, draw_histogram
from gpvi_paper.report.charts.reliability import draw_reliability

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
TOYS = {
    "GPVI (pathwise)": "GPVI",
    "MF-VI": "Mean-field VI",
    "SVGD": "SVGD",
    "Deep ensemble": "Deep ensemble",
}
"""What stands beside the long chains: the label of a record → its title."""
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
    ax.set_aspect("equal")
    save(figure, "networks-reliability.png")


def recorded(experiment: str) -> dict[str, records.Record]:
    """The newest records of an experiment under `best`, by method."""
    found = records.latest(records.find([RESULTS / experiment]))
    return {record.method: record for record in found if record.preset == "best"}


def potentials() -> None:
    """Four densities, and draws of what was fitted to them with nothing chosen."""
    arrays = recorded("energy")["GPVI (default)"].arrays
    cases = EXPERIMENTS["energy"].cases
    figure, panels = plt.subplots(2, len(cases), figsize=(6.8, 3.5))
    for (case, title), (above, below) in zip(cases.items(), panels.T, strict=True):
        half = float(arrays[f"{case}/half_width"])
        extent = (-half, half, -half, half)
        above.imshow(arrays[f"{case}/target"], origin="lower", extent=extent, cmap="Blues")
        below.scatter(*arrays[f"{case}/draws"].T, s=0.7, color=BLUE, alpha=0.8, linewidths=0)
        below.set(xlim=(-half, half), ylim=(-half, half), aspect="equal")
        above.set_title(title)
    for ax in panels.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(True)
    panels[0, 0].set_ylabel("density")
    panels[1, 0].set_ylabel(f"{len(arrays[f'{case}/draws']):,} draws")
    save(figure, "potentials.png")


def classes() -> None:
    """Where the networks of four classes disagree, by long chains and by four methods."""
    found = recorded("classification4")
    first = found["GPVI (pathwise)"].arrays
    maps = {"HMC, 128 chains": first["reference_map"]} | {
        title: found[label].arrays["map"] for label, title in TOYS.items()
    }
    labels = first["labels"].astype(int)
    image = maps_chart(maps, first["inputs"], labels, float(first["half_width"]))
    (HERE / "four-classes.png").write_bytes(image)


def outliers() -> None:
    """The score by which unknown digits are found, for three ways to predict."""
    found = recorded("mnist")
    titles = {
        "GPVI (pathwise)": ("GPVI, variance", "auroc_variance"),
        "Deep ensemble": ("Deep ensemble, variance", "auroc_variance"),
        "Softmax": ("One network, entropy", "auroc_entropy"),
    }
    figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.0), sharey=True)
    for ax, (label, (title, score)) in zip(panels, titles.items(), strict=True):
        record = found[label]
        known, unknown = (record.arrays[f"{SPLIT}/{part}_scores"] for part in ("inlier", "outlier"))
        auroc = f"AUROC {record.rows[f'{SPLIT}/{score}'][0]:.3f}"
        draw_histogram(ax, title, ScoreHistogram(HISTOGRAM, known, unknown, auroc), ink="black")
        ax.set_xlabel("log₁₀ of the score, −8 and less at the left")
    panels[0].legend(loc="upper center", fontsize=7.5, frameon=False)
    save(figure, "outliers.png")


GREY, RED = "#888a85", "#a40000"
FORMS = {
    "GPVI (pathwise, affine head)": "pathwise, affine head",
    "GPVI (functional, affine head)": "functional, affine head",
    "GPVI (functional, block)": "functional, residual",
}


def speed() -> None:
    """Growth with d, and steps of GPVI beside those of amortised SVGD, from the reports of `gpvi bench` kept here.

    Where two of them have a row, it is that of the later.
    """
    reports = {"CPU": ("speed-cpu.json",), "H200": ("speed-h200.json", "speed-h200-blocks.json")}
    found = {
        where: [r for name in names for r in results.read(HERE / name).results]
        for where, names in reports.items()
    }
    figure, (growth, ratios) = plt.subplots(1, 2, figsize=(7.6, 2.8), width_ratios=(1, 1.3))
    for line, colour in (("pathwise, d", BLUE), ("functional, d", RED)):
        points = [
            (int(r.contender.replace(",", "")), r.values["processor ms"])
            for r in found["CPU"]
            if r.row == line and "ms" in r.values
        ]
        d, ms = np.array(points).T
        growth.plot(
            d, 1e6 * ms / d, "o-", color=colour, markersize=3.5, linewidth=1, label=line[:-3]
        )
    growth.set(
        xscale="log", ylim=(0, None), xlabel="d", ylabel="ns of a core a step and coordinate"
    )
    growth.legend(frameon=False, fontsize=7.5)
    sizes = {"steps-classes": "s", "steps-mnist": "o", "steps-cifar": "^"}
    for where, colour in (("CPU", GREY), ("H200", BLUE)):
        for case, marker in sizes.items():
            here = [r for r in found[where] if r.case == case and r.contender in FORMS]
            own = list({r.contender: r for r in here}.values())
            if own:
                heights = [list(FORMS).index(r.contender) for r in own]
                shift = 0.12 if where == "CPU" else -0.12
                ratios.plot(
                    [r.values["ratio"] for r in own],
                    [height + shift for height in heights],
                    marker,
                    color=colour,
                    markersize=4.5,
                    label=f"{where}, {own[0].row.split(', d')[0]}",
                )
    ratios.axvline(1.0, color="black", linewidth=0.8)
    ratios.set(xscale="log", xlim=(0.4, 8), xlabel="time of a step over that of amortised SVGD")
    ratios.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    ratios.set_xticks([], minor=True)
    ratios.set_yticks(range(len(FORMS)), list(FORMS.values()))
    ratios.set_ylim(len(FORMS) - 0.5, -0.5)
    ratios.legend(frameon=False, fontsize=6.5, loc="upper right")
    save(figure, "speed.png")


def save(figure: Figure, name: str) -> None:
    """Without what changes from run to run."""
    figure.tight_layout()
    figure.savefig(HERE / name, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    plt.rc("figure", dpi=160)
    plt.rc("font", size=9)
    plt.rc("axes.spines", top=False, right=False)
    pictures: dict[str, Callable[[], None]] = {
        draw.__name__: draw for draw in (potentials, classes, outliers, band, reliability, speed)
    }
    for name in sys.argv[1:] or pictures:
        pictures[name]()
