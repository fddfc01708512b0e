"""The table at the top of the page: GPVI beside the best of all other methods, problem by problem."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from gpvi_paper.experiments import Metric
from gpvi_paper.report.elements import key
from gpvi_paper.report.experiment_records import ExperimentRecords
from gpvi_paper.report.tables import cell_html, with_arrow

PRESET = "best"
OURS = "GPVI"
"""The labels of the rows that are the library's own method begin with it."""
REFERENCE = "reference"
"""Rows with this word are long runs that others are compared with."""
MOST_PROBLEMS = 4
"""An experiment with more of them gets a single row, which counts on how many each side is better."""


class Best(NamedTuple):
    """The best method of a side on a problem."""

    label: str
    mean: float


def headline_html(sections: Sequence[ExperimentRecords]) -> str:
    """Return the table; nothing if no experiment has values of both sides."""
    rows = [row for data in sections for row in _rows(data)]
    if not rows:
        return ""
    return (
        "<section id='headline'><h2>At a glance</h2>"
        "<p>The first metric of each experiment under the preset best: GPVI’s best row beside the best of all other "
        "methods. The better of the two is marked ✓; long reference runs do not take part.</p>"
        "<div class='scroll'><table class='headline'><thead><tr><th scope='col'>Experiment</th>"
        "<th scope='col'>Metric</th><th scope='col'>GPVI</th><th scope='col'>Best other method</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _rows(data: ExperimentRecords) -> Iterator[str]:
    metric = _metric(data)
    if metric is None or PRESET not in data.presets:
        return
    cases = data.experiment.cases
    pairs = {
        case: (ours, others)
        for case in cases
        if (ours := _best(data, metric, case, True))
        and (others := _best(data, metric, case, False))
    }
    if len(pairs) > MOST_PROBLEMS:
        counts = [
            sum(_better(metric, *(pair if own else pair[::-1])) for pair in pairs.values())
            for own in (True, False)
        ]
        cells = [f"better on {count} of {len(pairs)} problems" for count in counts]
        yield _row(data, "", metric, cells, counts[0] - counts[1])
        return
    for case, (ours, others) in pairs.items():
        cells = [
            f"{cell_html(data, side.label, metric, PRESET, case)}<small>{escape(side.label)}</small>"
            for side in (ours, others)
        ]
        title = cases[case] if len(cases) > 1 else ""
        lead = _better(metric, ours, others) - _better(metric, others, ours)
        yield _row(data, title, metric, cells, lead)


def _row(
    data: ExperimentRecords, case: str, metric: Metric, cells: Sequence[str], lead: int
) -> str:
    """Return a row that marks our side if the lead is positive, and the other if it is negative."""
    experiment = data.experiment
    name = f"<a href='#{escape(experiment.name)}'>{escape(experiment.title)}</a>"
    name += f"<small>{escape(case)}</small>" if case else ""
    sides = (
        f"<td class='won' data-name='{side}'><span>✓ {cell}</span></td>"
        if won
        else f"<td data-name='{side}'><span>{cell}</span></td>"
        for side, cell, won in zip(("GPVI", "Best other"), cells, (lead > 0, lead < 0), strict=True)
    )
    label = f"<td data-name='Metric'><span title='{escape(metric.meaning)}'>{with_arrow(metric)}</span></td>"
    return f"<tr><th scope='row'>{name}</th>{label}{''.join(sides)}</tr>"


def _metric(data: ExperimentRecords) -> Metric | None:
    """Return the first metric with a better direction: of the headline, else of the tables."""
    names = [*data.experiment.headline, *(m for t in data.experiment.tables for m in t.metrics)]
    return next((data.metrics[n] for n in names if data.metrics[n].better is not None), None)


def _best(data: ExperimentRecords, metric: Metric, case: str, ours: bool) -> Best | None:
    """Return the best row of a side, without those whose value is invalid or missing for a seed."""
    found = []
    for label in data.labels:
        record = data.record(label, PRESET)
        if record is None or REFERENCE in label.lower() or label.startswith(OURS) != ours:
            continue
        void = metric.void_if and max(record.rows.get(key(case, metric.void_if), (0.0,))) > 0
        values = record.rows.get(key(case, metric.key), ())
        if values and not void and all(map(math.isfinite, values)):
            found.append(Best(label, sum(values) / len(values)))
    sign = 1 if metric.better == "lower" else -1
    return min(found, key=lambda one: sign * one.mean, default=None)


def _better(metric: Metric, one: Best, other: Best) -> bool:
    """Whether the mean of the first is the better one."""
    return one.mean < other.mean if metric.better == "lower" else one.mean > other.mean
