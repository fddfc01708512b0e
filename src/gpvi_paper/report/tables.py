"""The tables of an experiment, with the paper's figures beside ours."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from gpvi_paper.experiments import Metric, Published
from gpvi_paper.experiments.base import Table
from gpvi_paper.records import Summary, decimal, decimals
from gpvi_paper.report.differences import PRESET
from gpvi_paper.report.elements import badge, key
from gpvi_paper.report.experiment_records import ExperimentRecords

PUBLISHED = "published"
"""Stands for the paper in place of a preset."""
ARROWS = {"lower": "↓", "higher": "↑"}


class Column(NamedTuple):
    """A metric under one preset, or as the paper prints it."""

    metric: Metric
    preset: str


def table_html(data: ExperimentRecords, table: Table) -> str:
    """Return a table, with its caption and the meaning of its metrics.

    If there are published figures, presets are columns beside them. Otherwise each preset has rows of its own.
    """
    return _side_by_side(data, table) if data.experiment.published else _stacked(data, table)


def _side_by_side(data: ExperimentRecords, table: Table) -> str:
    """Return a table with one row per method; each metric has a column for the paper and for each preset."""
    columns = [
        column
        for name in table.metrics
        for preset in (PUBLISHED, *data.presets)
        if _has_values(data, column := Column(data.metrics[name], preset))
    ]
    metrics = list(dict.fromkeys(column.metric for column in columns))
    groups = {metric: [c for c in columns if c.metric == metric] for metric in metrics}
    firsts = {group[0] for group in groups.values()}
    head = [
        '<tr><th rowspan="2">Method</th>',
        *(
            f'<th colspan="{len(group)}" class="group" title="{escape(metric.meaning)}">'
            f"{with_arrow(metric)}</th>"
            for metric, group in groups.items()
        ),
        "</tr><tr>",
        *(
            f'<th class="{"first" if c in firsts else ""}">{_column_name(data, c.preset)}</th>'
            for c in columns
        ),
        "</tr>",
    ]
    names = [
        f"{c.metric.label}, {'paper’s figure' if c.preset == PUBLISHED else f'ours, {c.preset}'}"
        for c in columns
    ]
    first = [c in firsts for c in columns]

    def rows(case: str) -> list[str]:
        return [
            _row(escape(label), cells, names, first)
            for label in data.labels
            if any(cells := [_cell(data, label, column, case) for column in columns])
        ]

    body = [*_body(data, 1 + len(columns), rows), *_floor_rows(data, columns, names, first)]
    return _with_caption(table, metrics, "".join(head), body)


def _stacked(data: ExperimentRecords, table: Table) -> str:
    """Return a table with one row per method and preset, and one column per metric."""
    shown = {row.rpartition("/")[2] for record in data.records for row in record.rows}
    metrics = [data.metrics[name] for name in table.metrics if name in shown]
    head = "".join(f'<th title="{escape(m.meaning)}">{with_arrow(m)}</th>' for m in metrics)
    names, first = [m.label for m in metrics], [False] * len(metrics)

    def rows(case: str) -> Iterator[str]:
        for record in data.records:
            columns = [Column(metric, record.preset) for metric in metrics]
            cells = [_cell(data, record.method, c, case, stacked=True) for c in columns]
            if any(cells):
                name = f"{escape(record.method)} {badge(record.preset)}{_count(len(record.seeds))}"
                yield _row(name, cells, names, first)

    body = _body(data, 1 + len(metrics), rows)
    return _with_caption(table, metrics, f"<tr><th>Method</th>{head}</tr>", body)


def _body(
    data: ExperimentRecords, width: int, rows: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    """Yield the rows of each problem, after a row with its title if there are several problems."""
    for case, title in data.experiment.cases.items():
        made = list(rows(case))
        if made and len(data.experiment.cases) > 1:
            yield (
                f'<tr class="case"><th scope="rowgroup" colspan="{width}">{escape(title)}</th></tr>'
            )
        yield from made


def _has_values(data: ExperimentRecords, column: Column) -> bool:
    return any(
        _cell(data, label, column, case) for label in data.labels for case in data.experiment.cases
    )


def _column_name(data: ExperimentRecords, preset: str) -> str:
    if preset == PUBLISHED:
        return "paper’s figure"
    n = data.common_seeds(preset)
    return f"ours, <i>{escape(preset)}</i>" + (f"<br>{_count(n)}" if n else "")


def _floor_rows(
    data: ExperimentRecords, columns: Sequence[Column], names: Sequence[str], first: Sequence[bool]
) -> Iterator[str]:
    """Yield a last row with the values for exact draws, if the metrics have such."""
    if len(data.experiment.cases) > 1 or not any(c.metric.floor for c in columns):
        return
    cells = []
    for metric, preset in columns:
        record = next((r for r in data.records if r.preset == preset), None)
        summary = record.summary(metric.floor or "") if record else None
        cells.append(_number(summary, data.metrics[metric.floor or metric.key]) if summary else "")
    yield _row("<em>exact draws</em>", cells, names, first)


def cell_html(data: ExperimentRecords, label: str, metric: Metric, preset: str, case: str) -> str:
    """Return the number of a method under a preset on a problem, as the tables show it; "" if there is none."""
    return _cell(data, label, Column(metric, preset), case)


def _cell(
    data: ExperimentRecords, label: str, column: Column, case: str, *, stacked: bool = False
) -> str:
    """Return the content of a cell: the number, and what has to be known about it."""
    metric, preset = column
    row = key(case, metric.key)
    if preset == PUBLISHED:
        figure = data.published(label, row)
        return _published(figure) if figure else ""
    record = data.record(label, preset)
    summary = record.summary(row) if record else None
    if record is None or summary is None:
        return ""
    text = _number(summary, metric)
    if preset == PRESET:
        text += data.differences.mark(label, row)
    if summary.n != (len(record.seeds) if stacked else data.common_seeds(preset)):
        text += _count(summary.n)
    if metric.void_if and max(record.rows.get(key(case, metric.void_if), (0.0,))) > 0:
        reason = data.metrics[metric.void_if].label
        return f'<s title="invalid: {escape(reason)} is above 0">{text}</s><small>invalid</small>'
    floor = record.summary(key(case, metric.floor)) if stacked and metric.floor else None
    if floor:
        text += f"<small>exact {decimal(floor.mean, decimals(floor.mean, 2))}</small>"
    return text


def _number(summary: Summary, metric: Metric) -> str:
    """Return mean ± standard deviation with the unit, or for yes and no how often yes."""
    if metric.style == "yes or no":
        return f"{round(summary.mean * summary.n)} of {summary.n}"
    if metric.style == "seconds":
        return f"{summary.mean:,.0f} s" if summary.mean >= 10 else f"{summary.mean:.1f} s"
    scale, unit = (100.0, " %") if metric.style == "share" else (1.0, "")
    mean, sd, power = summary.rounded(scale)
    if power:
        exponent = f" · 10<sup>{power}</sup>".replace("-", "−")
        return f'<span class="sd">{f"({mean} ± {sd})" if sd else mean}{exponent}{unit}</span>'
    return f"{mean} {_deviation(f'{sd}{unit}')}" if sd else f"{mean}{unit}"


def _published(figure: Published) -> str:
    sd = f" {_deviation(f'{figure.sd:g}')}" if math.isfinite(figure.sd) else ""
    return f"{figure.mean:g}{sd}"


def _deviation(text: str) -> str:
    """Return ± and the standard deviation, kept on one line."""
    return f'<span class="sd">± {text}</span>'


def _count(n: int) -> str:
    return f'<span class="n">n = {n}</span>'


def _row(name: str, cells: Sequence[str], names: Sequence[str], first: Sequence[bool]) -> str:
    """Return a row. On a narrow screen each cell shows its name, and empty cells are omitted."""
    kinds = (
        " ".join(filter(None, ("first" * begins, "" if cell else "empty")))
        for cell, begins in zip(cells, first, strict=True)
    )
    marked = (
        f'<td class="{kind}" data-name="{escape(label)}"><span>{cell or "—"}</span></td>'
        for cell, label, kind in zip(cells, names, kinds, strict=True)
    )
    return f'<tr><th scope="row">{name}</th>{"".join(marked)}</tr>'


def _with_caption(table: Table, metrics: Sequence[Metric], head: str, body: Iterable[str]) -> str:
    meanings = "".join(
        f"<div><dt>{with_arrow(m)}</dt><dd>{escape(m.meaning)}</dd></div>" for m in metrics
    )
    return (
        f"<h3>{escape(table.title)}</h3><div class='scroll'><table><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div><p class='caption'>{escape(table.caption)}</p>"
        f"<dl class='meanings'>{meanings}</dl>"
    )


def with_arrow(metric: Metric) -> str:
    """Return the label of a metric, with an arrow up or down if higher or lower is better."""
    if metric.better is None:
        return escape(metric.label)
    return f'{escape(metric.label)} <span class="way">{ARROWS[metric.better]}</span>'
