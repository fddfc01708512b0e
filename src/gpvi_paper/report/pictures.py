"""The pictures of each experiment beside its tables.

A function takes the experiment and its records, and yields blocks of HTML. It draws from the records alone, and skips
what a record lacks. A new experiment gets pictures by one line in `PICTURES`.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

import jax.numpy as jnp
import numpy as np

from gpvi.metrics import Reliability
from gpvi_paper.experiments import Experiment
from gpvi_paper.experiments.images.open_category import HISTOGRAM
from gpvi_paper.placing import SHOWN
from gpvi_paper.records import Record
from gpvi_paper.report.charts import planes
from gpvi_paper.report.charts.bands import Band, bands_chart
from gpvi_paper.report.charts.curves import error_curves, scaling_chart
from gpvi_paper.report.charts.maps import map_panel
from gpvi_paper.report.charts.outliers import ScoreHistogram, outlier_histograms
from gpvi_paper.report.charts.reliability import reliability_diagram
from gpvi_paper.report.elements import (
    badge,
    chart,
    charts,
    folded,
    key,
    multiples,
    panel,
    panels,
    picture,
)

Pictures = Callable[[Experiment, Sequence[Record]], Iterator[str]]


def draws(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw the target of each problem in the plane beside the draws of each method."""
    blocks = []
    for case, title in experiment.cases.items():
        drawn = [record for record in records if key(case, "draws") in record.arrays]
        if not drawn:
            continue
        target = drawn[0].arrays[key(case, "target")]
        half_width = float(drawn[0].arrays[key(case, "half_width")])
        row = [panel(planes.density_panel(target), "Target", f"the density of {title}")]
        for record in drawn:
            points = record.arrays[key(case, "draws")]
            image = planes.draws_panel(target, points, half_width)
            caption = f"{escape(record.method)} {badge(record.preset)}"
            row.append(panel(image, caption, f"{len(points)} draws of {record.method}"))
        blocks.append(panels(title, row))
    if blocks:
        yield (
            "<h3>Draws of the first seed</h3><p class='caption'>The target’s density, then each method’s draws as dots "
            "over lines of equal density of the target.</p>"
        )
        yield f'<div class="blocks">{"".join(blocks)}</div>'


def errors_along(**terms: str) -> Pictures:
    """Return a function that draws terms during training, by name and label, one chart per preset and term."""

    def draw(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
        made = []
        for preset, group in _by_preset(records):
            for term, label in terms.items():
                lines = {
                    r.method: (r.curves[term].steps, np.array(r.curves[term].values))
                    for r in group
                    if term in r.curves
                }
                if lines:
                    salt = f"{experiment.name}-{preset}-{term}"
                    made.append(
                        chart(error_curves(lines, ("step", label), salt), f"{label} · {preset}")
                    )
        if made:
            caption = "Geometric means over the seeds, with their range shaded."
            yield folded("During training", f"<p class='caption'>{caption}</p>{charts(made)}")

    return draw


def solvers(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw the errors during training, and the residual of BiCGSTAB after each iteration."""
    yield from errors_along(
        product_error="error of J⁻ᵀ∇k", residual="residual", covariance_error="Σ error"
    )(experiment, records)
    by_iteration = "residual_by_iteration"
    lines = {
        f"{r.method}, {r.preset}": (range(len(values)), values[None])
        for r in records
        if (values := r.arrays.get(by_iteration)) is not None
    }
    if lines:
        svg = error_curves(lines, ("iteration", "residual"), f"{experiment.name}-iterations")
        caption = "Residual of BiCGSTAB by number of iterations, at the end of training"
        yield charts([chart(svg, caption)])


def bands(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw what the networks of each method predict along one input, the reference first."""
    drawn = [record for record in records if {"grid", "mean", "sd"} <= record.arrays.keys()]
    if not drawn:
        return
    first = drawn[0].arrays
    grid, truth, data = first["grid"], first["truth"], first["data"]
    lines = {"reference": ("reference", Band(first["reference_mean"], first["reference_sd"]))}
    for record in drawn:
        found = Band(record.arrays["mean"], record.arrays["sd"])
        caption = f"{escape(record.method)} {badge(record.preset)}"
        lines[f"{record.method} {record.preset}"] = caption, found
    made = [
        f"<figure>{bands_chart(grid, {'': band}, truth, data, f'{experiment.name}-{name}')}"
        f"<figcaption>{caption}</figcaption></figure>"
        for name, (caption, band) in lines.items()
    ]
    yield (
        "<h3>Predictions of the first seed</h3><p class='caption'>Mean, and one and two standard deviations; the truth "
        "is dashed.</p>"
    )
    yield multiples(made)


def maps(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw where the networks of each method disagree over the plane, the reference first."""
    drawn = [record for record in records if {"map", "reference_map"} <= record.arrays.keys()]
    if not drawn:
        return
    first = drawn[0].arrays
    inputs, half_width = first["inputs"], float(first["half_width"])
    labels = first["labels"].astype(int)
    shown = [("reference", first["reference_map"])] + [
        (f"{escape(r.method)} {badge(r.preset)}", r.arrays["map"]) for r in drawn
    ]
    highest = max(float(sd.max()) for _, sd in shown)
    row = [
        panel(map_panel(sd, highest, inputs, labels, half_width), caption, "predictive deviation")
        for caption, sd in shown
    ]
    yield (
        f"<h3>Disagreement of the first seed's networks</h3><p class='caption'>The predictive standard deviation over "
        f"[−{half_width:g}, {half_width:g}]², from none to {highest:.2f} at full colour; dots are the data.</p>"
    )
    yield f'<div class="blocks">{panels("", row)}</div>'


def collapse(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw the estimated variance against the dimension, beside the theory's."""
    for preset, group in _by_preset(records):
        by_method, theory = {}, {}
        for record in group:
            lines = {}
            for case, title in experiment.cases.items():
                prefix = key(case, "variance_d")
                found = {
                    int(row.removeprefix(prefix)): values
                    for row, values in record.rows.items()
                    if row.startswith(prefix)
                }
                if not found:
                    continue
                sizes = sorted(found)
                lines[title] = sizes, np.array([found[size] for size in sizes]).T
                theory[title] = (
                    sizes,
                    [record.rows[key(case, f"theory_d{size}")][0] for size in sizes],
                )
            by_method[record.method] = lines
        image = scaling_chart(by_method, theory, ("dimension", "variance ratio"))
        yield (
            f'<figure class="wide">{picture(image, "variance ratio against dimension")}<figcaption>Estimated over '
            f"true variance {badge(preset)}; dashed: theory for SVGD.</figcaption></figure>"
        )


def open_category(experiment: Experiment, records: Sequence[Record]) -> Iterator[str]:
    """Draw the outlier scores of known and unknown classes, and the reliability of the confidence.

    There is one chart of each kind per preset, for the first split whose records have the arrays.
    """
    made = []
    for preset, group in _by_preset(records):
        case = next((c for c in experiment.cases if _arrays(group, c, "inlier_scores")), None)
        if case is not None:
            score = "predictive variance (of a single network, entropy)"
            histograms = {
                r.method: ScoreHistogram(
                    HISTOGRAM,
                    r.arrays[key(case, "inlier_scores")],
                    r.arrays[key(case, "outlier_scores")],
                    _auroc(r, case),
                )
                for r in _arrays(group, case, "inlier_scores")
            }
            salt = f"{experiment.name}-{preset}"
            svg = outlier_histograms(histograms, score, f"{salt}-outliers")
            made.append(
                chart(svg, f"Test images by outlier score · {_where(experiment, case, preset)}")
            )
        case = next((c for c in experiment.cases if _arrays(group, c, "reliability")), None)
        if case is not None:
            curves = {
                r.method: Reliability(*map(jnp.asarray, r.arrays[key(case, "reliability")]))
                for r in _arrays(group, case, "reliability")
            }
            svg = reliability_diagram(curves, f"{experiment.name}-{preset}-reliability")
            made.append(chart(svg, f"Accuracy by confidence · {_where(experiment, case, preset)}"))
    if made:
        yield f"<h3>Outliers and calibration of the first seed</h3>{charts(made)}"


def _arrays(records: Sequence[Record], case: str, name: str) -> list[Record]:
    return [record for record in records if key(case, name) in record.arrays]


def _auroc(record: Record, case: str) -> str:
    """Return the AUROC of the score that is drawn, for the first seed."""
    for score in ("variance", "entropy"):
        values = record.rows.get(key(case, f"auroc_{score}"))
        if values:
            return f"AUROC {values[0]:.3f}"
    return ""


def _where(experiment: Experiment, case: str, preset: str) -> str:
    return f"{experiment.cases[case]} · {preset}" if case else preset


PICTURES: dict[str, Pictures] = {
    "energy": draws,
    "mnist": open_category,
    "cifar10": open_category,
    "digits": open_category,
    "regression1d": bands,
    "classification4": maps,
    "classification2": maps,
    "collapse": collapse,
    "solvers": solvers,
    "drift": errors_along(kl="KL(q‖p)", conditioning="condition number of J"),
}


def _by_preset(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for preset in SHOWN:
        group = [record for record in records if record.preset == preset]
        if group:
            yield preset, group
