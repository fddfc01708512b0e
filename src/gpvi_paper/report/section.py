"""The section of one experiment: its tables, pictures, dot charts, training curves and notes."""

import math
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from gpvi_paper.experiments import Experiment, Metric
from gpvi_paper.report.charts.curves import curves_chart
from gpvi_paper.report.charts.dots import Mark, dot_chart
from gpvi_paper.report.elements import badge, chart, charts, folded, key
from gpvi_paper.report.experiment_records import ExperimentRecords
from gpvi_paper.report.pictures import PICTURES
from gpvi_paper.report.tables import PUBLISHED, table_html

CURVES = {"elbo": "ELBO", "log_density": "mean log p of the draws"}
"""Training terms to plot, the best first; a term is plotted if every method reports it."""
TRAINING = (
    "Means over the seeds, with their range shaded, each method on the target it was trained on: log p differs between "
    "whitened coordinates or temperatures, so heights are comparable only if these are the same."
)


def section_html(data: ExperimentRecords) -> str:
    """Return the section of an experiment."""
    experiment = data.experiment
    name, draw = escape(experiment.name), PICTURES.get(experiment.name)
    parts = [
        f'<section id="{name}"><h2>{escape(experiment.title)}</h2>',
        f'<p class="source">{escape(_source(experiment))}; '
        f'<a href="#from-{name}">where the numbers come from</a></p>',
        f"<p>{escape(experiment.summary)}</p>",
        *_tables(data),
        data.differences.html(),
        *(draw(experiment, data.records) if draw else ()),
        *_dot_charts(data),
        *_curves(data),
        _notes(data),
        "</section>",
    ]
    return "\n".join(parts)


def _tables(data: ExperimentRecords) -> Iterator[str]:
    """Yield the first table open, and the others folded."""
    first, *others = data.experiment.tables
    yield table_html(data, first)
    for table in others:
        heading = f"<h3>{escape(table.title)}</h3>"
        yield folded(table.title, table_html(data, table).removeprefix(heading))


def _source(experiment: Experiment) -> str:
    """Say which part of the paper the experiment repeats, if any."""
    source = experiment.source
    return source[:1].upper() + source[1:] if "beyond" in source else f"In the paper: {source}"


def _dot_charts(data: ExperimentRecords) -> Iterator[str]:
    """Yield a dot chart of each headline metric and problem for which two methods have values."""
    made = []
    for name in data.experiment.headline:
        metric = data.metrics[name]
        for case, title in data.experiment.cases.items():
            lines = {
                label: marks
                for label in data.labels
                if (marks := _marks(data, label, case, metric))
            }
            ours = [m for marks in lines.values() for m in marks if m.preset != PUBLISHED]
            if len(lines) < 2 or not ours:
                continue
            heading = f"{metric.label}: {metric.meaning}" + (f" · {title}" if case else "")
            salt = f"{data.experiment.name}-{case}-{name}-dots"
            svg = dot_chart(lines, metric.label, _floor(data, case, metric), salt)
            made.append(chart(svg, heading))
    if made:
        legend = _legend(data.presets, bool(data.experiment.published))
        yield folded("Seed by seed", f"{legend}{charts(made)}")


def _marks(data: ExperimentRecords, label: str, case: str, metric: Metric) -> list[Mark]:
    row, marks = key(case, metric.key), []
    if figure := data.published(label, row):
        sd = figure.sd if math.isfinite(figure.sd) else None
        marks.append(Mark(PUBLISHED, (figure.mean,), sd))
    for preset in data.presets:
        record = data.record(label, preset)
        values = record.rows.get(row, ()) if record else ()
        if finite := tuple(filter(math.isfinite, values)):
            marks.append(Mark(preset, finite))
    return marks


def _floor(data: ExperimentRecords, case: str, metric: Metric) -> float | None:
    """Return the mean value of a metric for exact draws, if it has such a value."""
    if metric.floor is None:
        return None
    floors = [record.summary(key(case, metric.floor)) for record in data.records]
    means = [summary.mean for summary in floors if summary]
    return float(np.mean(means)) if means else None


def _legend(presets: Sequence[str], published: bool) -> str:
    marks = [
        f'<span class="key {escape(p)}">ours, {escape(p)}: a dot for each seed, a bar at the mean</span>'
        for p in presets
    ]
    if published:
        marks.insert(0, '<span class="key published">the paper’s figure ± its deviation</span>')
    return f'<p class="legend">{"".join(marks)}</p>'


def _curves(data: ExperimentRecords) -> Iterator[str]:
    """Yield the training curves, one chart per preset and problem."""
    made = []
    for preset in data.presets:
        group = [r for r in data.records if r.preset == preset]
        for case, title in data.experiment.cases.items():
            shared = [t for t in CURVES if all(key(case, t) in r.curves for r in group)]
            if not shared:
                continue
            term = shared[0]
            curves = {
                r.method: (
                    r.curves[key(case, term)].steps,
                    np.array(r.curves[key(case, term)].values),
                )
                for r in group
            }
            svg = curves_chart(
                curves, CURVES[term], f"{data.experiment.name}-{preset}-{case}-curve"
            )
            where = " · ".join(filter(None, [title if case else "", preset]))
            where += f": {group[0].method}" if len(group) == 1 else ""
            made.append(chart(svg, where))
    if made:
        yield folded("Training", f"<p class='caption'>{TRAINING}</p>{charts(made)}")


def _notes(data: ExperimentRecords) -> str:
    methods_by_note: dict[tuple[str, str], list[str]] = {}
    for record in data.records:
        for note in record.notes:
            methods_by_note.setdefault((record.preset, note), []).append(record.method)
    notes = [
        f"<li>{escape('; '.join(dict.fromkeys(methods)))} {badge(preset)}: {escape(note)}</li>"
        for (preset, note), methods in methods_by_note.items()
    ]
    return (
        folded("Notes from training", f'<ul class="notes">{"".join(notes)}</ul>') if notes else ""
    )
