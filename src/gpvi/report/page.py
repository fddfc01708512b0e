"""The page: tables with the paper's figures beside ours, pictures, curves, and where every number comes from."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpvi.errors import StorageError
from gpvi.experiments import EXPERIMENTS, PRESETS, Experiment, Metric, Published
from gpvi.experiments.base import Table
from gpvi.records import Record, Summary, latest, slug
from gpvi.report import figures
from gpvi.report.differences import PRESET, Differences
from gpvi.report.elements import badge, chart, charts, key
from gpvi.report.pictures import PICTURES

PAGE = "index.html"
SMALL, LARGE = 1e-4, 1e5
"""Below and from where numbers are written with a power of ten."""
MOST = 5
"""Significant digits of a mean."""
CURVES = {"elbo": "ELBO", "log_density": "mean log p of the draws"}
"""The training terms that are drawn, the best one first: a term is drawn where every method reports it."""


def write(records: Iterable[Record], directory: str | os.PathLike[str]) -> Path:
    """Write the page into `directory` and return its path."""
    path = Path(directory) / PAGE
    content = render(records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    except OSError as error:
        raise StorageError(
            f"the report cannot be written to {path}: {error.strerror}. Choose another --out directory."
        ) from error
    return path


def render(records: Iterable[Record]) -> str:
    """The whole page; of records of one experiment, preset and method the newest is shown."""
    given = list(records)
    shown = sorted(latest(given), key=_place)
    by_experiment: dict[str, list[Record]] = {}
    for record in shown:
        by_experiment.setdefault(record.experiment, []).append(record)
    sections = [
        Section(EXPERIMENTS[name], group)
        for name, group in sorted(by_experiment.items(), key=lambda item: _known(item[0]))
        if name in EXPERIMENTS
    ]
    foreign = [name for name in by_experiment if name not in EXPERIMENTS]
    body = [
        _head(sections, shown, len(given) - len(shown), foreign),
        *(section.html() for section in sections),
        _provenance(shown),
    ]
    return _PAGE.format(style=_style(), body="\n".join(body))


class Column(NamedTuple):
    """A metric as one preset gave it, or as the paper prints it."""

    metric: Metric
    preset: str


class Section:
    """One experiment on the page."""

    def __init__(self, experiment: Experiment, records: Sequence[Record]):
        self.experiment = experiment
        self.records = records
        self.presets = [preset for preset in PRESETS if any(r.preset == preset for r in records)]
        self.metrics = {metric.key: metric for metric in experiment.metrics}
        self.by_place = {(record.method, record.preset): record for record in records}
        self.differences = Differences(experiment, records)

    def html(self) -> str:
        """Summary, tables, pictures, charts, curves."""
        name, e = self.experiment.name, self.experiment
        parts = [
            f'<section id="{escape(name)}"><h2>{escape(e.title)}</h2>',
            f'<p class="source">{escape(_source(e))}</p><p>{escape(e.summary)}</p>',
            *(self._table(table) for table in e.tables),
            self.differences.html(),
            *self._pictures(),
            *self._charts(),
            *self._curves(),
            self._notes(),
            "</section>",
        ]
        return "\n".join(parts)

    @property
    def labels(self) -> list[str]:
        """Every method that has a row, in the experiment's order, then those only the paper has."""
        order = dict.fromkeys(
            label for preset in PRESETS for label in self.experiment.recipes(preset)
        )
        order |= dict.fromkeys(record.method for record in self.records)
        return list(order | dict.fromkeys(self.experiment.published))

    def _table(self, table: Table) -> str:
        if self.experiment.published:
            return self._side_by_side(table)
        return self._stacked(table)

    def _side_by_side(self, table: Table) -> str:
        """Methods down; under each metric the paper's figure, where it prints one, and one column to a preset."""
        columns = [
            column
            for metric in table.metrics
            for preset in ("published", *self.presets)
            if self._has(column := Column(self.metrics[metric], preset))
        ]
        groups = [
            (metric, [c for c in columns if c.metric.key == metric]) for metric in table.metrics
        ]
        groups = [(self.metrics[metric], group) for metric, group in groups if group]
        firsts = {group[0] for _, group in groups}
        head = [
            '<tr><th rowspan="2">Method</th>',
            *(
                f'<th colspan="{len(group)}" class="group" title="{escape(metric.meaning)}">'
                f"{escape(metric.label)}</th>"
                for metric, group in groups
            ),
            "</tr><tr>",
            *(
                f'<th class="{"first" if c in firsts else ""}">{self._column_name(c.preset)}</th>'
                for c in columns
            ),
            "</tr>",
        ]
        names = [
            f"{c.metric.label}, {'paper’s figure' if c.preset == 'published' else f'ours, {c.preset}'}"
            for c in columns
        ]
        first = [c in firsts for c in columns]
        body: list[str] = []
        for case, title in self.experiment.cases.items():
            rows = [
                _row(escape(label), cells, names, first)
                for label in self.labels
                if any(cells := [self._cell(label, column, case) for column in columns])
            ]
            if rows and len(self.experiment.cases) > 1:
                body.append(_group_row(title, 1 + len(columns)))
            body += rows
        body += self._floor_rows(columns, names, first)
        return _figure_table(table, "".join(head), body)

    def _has(self, column: Column) -> bool:
        """Whether a cell of this column holds anything."""
        return any(
            self._cell(label, column, case)
            for label in self.labels
            for case in self.experiment.cases
        )

    def _column_name(self, preset: str) -> str:
        if preset == "published":
            return "paper’s figure"
        n = self._common_count(preset)
        return f"ours, <i>{escape(preset)}</i>" + (f"<br>{_count(n)}" if n else "")

    def _common_count(self, preset: str) -> int | None:
        """The number of seeds, where all records of a preset have the same."""
        counts = {len(record.seeds) for record in self.records if record.preset == preset}
        return counts.pop() if len(counts) == 1 else None

    def _floor_rows(
        self, columns: Sequence[Column], names: Sequence[str], first: Sequence[bool]
    ) -> Iterator[str]:
        """What exact draws have, as a last row."""
        if len(self.experiment.cases) > 1 or not any(c.metric.floor for c in columns):
            return
        cells = []
        for column in columns:
            record = next((r for r in self.records if r.preset == column.preset), None)
            summary = record.summary(column.metric.floor or "") if record else None
            cells.append(
                _number(summary, self.metrics[column.metric.floor or column.metric.key])
                if summary
                else ""
            )
        yield _row("<em>exact draws</em>", cells, names, first)

    def _stacked(self, table: Table) -> str:
        """Problems and, under each, methods with their presets down; metrics across."""
        shown = {row.rpartition("/")[2] for record in self.records for row in record.rows}
        metrics = [self.metrics[name] for name in table.metrics if name in shown]
        head = "<tr><th>Method</th>" + "".join(
            f'<th title="{escape(m.meaning)}">{escape(m.label)}</th>' for m in metrics
        )
        names, first = [m.label for m in metrics], [False] * len(metrics)
        body: list[str] = []
        for case, title in self.experiment.cases.items():
            rows = []
            for record in self.records:
                name = f"{escape(record.method)} {badge(record.preset)}{_count(len(record.seeds))}"
                cells = [
                    self._cell(record.method, Column(metric, record.preset), case, stacked=True)
                    for metric in metrics
                ]
                if any(cells):
                    rows.append(_row(name, cells, names, first))
            if rows and len(self.experiment.cases) > 1:
                body.append(_group_row(title, 1 + len(metrics)))
            body += rows
        return _figure_table(table, head + "</tr>", body)

    def _cell(self, label: str, column: Column, case: str, *, stacked: bool = False) -> str:
        metric, preset = column
        row = key(case, metric.key)
        if preset == "published":
            figure = self.experiment.published.get(label, {}).get(row)
            return _published(figure) if figure else ""
        record = self.by_place.get((label, preset))
        summary = record.summary(row) if record else None
        if record is None or summary is None:
            return ""
        text = _number(summary, metric)
        if preset == PRESET:
            text += self.differences.mark(label, row)
        said = len(record.seeds) if stacked else self._common_count(preset)
        if summary.n != said:
            text += _count(summary.n)
        if metric.void_if and max(record.rows.get(key(case, metric.void_if), (0.0,))) > 0:
            reason = self.metrics[metric.void_if].label
            return (
                f'<s title="invalid: {escape(reason)} is above 0">{text}</s><small>invalid</small>'
            )
        lowest = record.summary(key(case, metric.floor)) if stacked and metric.floor else None
        beside = (
            f"<small>floor {_decimal(lowest.mean, _digits(lowest.mean, 2))}</small>"
            if lowest
            else ""
        )
        return text + beside

    def _pictures(self) -> Iterator[str]:
        """What the experiment shows beside numbers."""
        draw = PICTURES.get(self.experiment.name)
        return iter(()) if draw is None else draw(self.experiment, self.records)

    def _charts(self) -> Iterator[str]:
        """A dot chart of each headline metric and problem that two methods share."""
        made = []
        for name in self.experiment.headline:
            metric = self.metrics[name]
            for case, title in self.experiment.cases.items():
                lines = {
                    label: marks
                    for label in self.labels
                    if (marks := self._marks(label, case, metric))
                }
                ours = [m for marks in lines.values() for m in marks if m.preset != "published"]
                if len(lines) < 2 or not ours:
                    continue
                heading = f"{metric.label}: {metric.meaning}" + (f" · {title}" if case else "")
                svg = figures.dot_chart(
                    lines,
                    metric.label,
                    self._floor(case, metric),
                    f"{self.experiment.name}-{case}-{name}-dots",
                )
                made.append(chart(svg, heading))
        if made:
            yield f"<h3>Seed by seed</h3>{_legend(self.presets, bool(self.experiment.published))}"
            yield charts(made)

    def _marks(self, label: str, case: str, metric: Metric) -> list[figures.Mark]:
        row, marks = key(case, metric.key), []
        figure = self.experiment.published.get(label, {}).get(row)
        if figure:
            sd = figure.sd if math.isfinite(figure.sd) else None
            marks.append(figures.Mark("published", (figure.mean,), sd))
        for preset in self.presets:
            record = self.by_place.get((label, preset))
            values = record.rows.get(row, ()) if record else ()
            finite = tuple(value for value in values if math.isfinite(value))
            if finite:
                marks.append(figures.Mark(preset, finite))
        return marks

    def _floor(self, case: str, metric: Metric) -> float | None:
        if metric.floor is None:
            return None
        floors = [r.summary(key(case, metric.floor)) for r in self.records]
        means = [summary.mean for summary in floors if summary]
        return float(np.mean(means)) if means else None

    def _curves(self) -> Iterator[str]:
        """Training curves, one chart to a preset and problem."""
        made = []
        for preset in self.presets:
            group = [r for r in self.records if r.preset == preset]
            for case, title in self.experiment.cases.items():
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
                svg = figures.curves_chart(
                    curves, CURVES[term], f"{self.experiment.name}-{preset}-{case}-curve"
                )
                where = " · ".join(filter(None, [title if case else "", preset]))
                where += f": {group[0].method}" if len(group) == 1 else ""
                made.append(chart(svg, where))
        if made:
            yield "<h3>Training</h3><p class='caption'>Means over the seeds, with their range shaded.</p>"
            yield charts(made)

    def _notes(self) -> str:
        notes = [
            f"<li>{escape(r.method)} ({escape(r.preset)}): {escape(note)}</li>"
            for r in self.records
            for note in r.notes
        ]
        return f'<h3>What happened</h3><ul class="notes">{"".join(notes)}</ul>' if notes else ""


def _source(experiment: Experiment) -> str:
    """Which part of the paper it repeats, if any."""
    source = experiment.source
    return source.capitalize() if "beyond" in source else f"{source} of the paper"


def _style() -> str:
    return resources.files("gpvi.report").joinpath("style.css").read_text("utf-8")


def _place(record: Record) -> tuple[int, int, str]:
    """Presets in their order, methods in the experiment's."""
    experiment = EXPERIMENTS.get(record.experiment)
    preset = list(PRESETS).index(record.preset) if record.preset in PRESETS else len(PRESETS)
    labels = (
        list(experiment.recipes(record.preset)) if experiment and record.preset in PRESETS else []
    )
    return (
        preset,
        labels.index(record.method) if record.method in labels else len(labels),
        record.method,
    )


def _known(name: str) -> tuple[int, str]:
    order = list(EXPERIMENTS)
    return (order.index(name) if name in order else len(order)), name


def _number(summary: Summary, metric: Metric) -> str:
    """Mean ± deviation; the deviation has one digit, or two where the first is a 1."""
    scale, unit = {"share": (100.0, " %"), "seconds": (1.0, " s"), "number": (1.0, "")}[
        metric.style
    ]
    mean, sd = scale * summary.mean, scale * summary.sd
    if metric.style == "seconds":
        return f"{mean:,.0f}{unit}" if mean >= 10 else f"{mean:.1f}{unit}"
    if 0 < abs(mean) < SMALL or LARGE <= abs(mean) < math.inf:
        return " ".join(filter(None, (_power(mean), _deviation(_power(sd)) if sd > 0 else "")))
    if not sd > 0:
        return f"{_decimal(mean, _digits(mean, 3))}{unit}"
    digits = min(_digits(sd, 2 if f"{sd:e}"[0] == "1" else 1), _digits(mean, MOST))
    return f"{_decimal(mean, digits)} {_deviation(f'{_decimal(sd, digits)}{unit}')}"


def _power(value: float) -> str:
    """Two digits and a power of ten."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits} · 10<sup>{int(exponent)}</sup>".replace("-", "−")


def _digits(value: float, significant: int) -> int:
    """How many decimals show so many significant digits of the value, at most six."""
    if value == 0 or not math.isfinite(value):
        return 0
    return min(max(significant - 1 - math.floor(math.log10(abs(value))), 0), 6)


def _decimal(value: float, decimals: int) -> str:
    comma = "," if abs(value) >= 10_000 else ""
    return f"{value:{comma}.{decimals}f}".replace("-", "−")


def _count(n: int) -> str:
    return f'<span class="n">n = {n}</span>'


def _published(figure: Published) -> str:
    given = math.isfinite(figure.sd)
    return f"{figure.mean:g}" + (f" {_deviation(f'{figure.sd:g}')}" if given else "")


def _deviation(text: str) -> str:
    """± and what follows, kept on one line."""
    return f'<span class="sd">± {text}</span>'


def _row(name: str, cells: Sequence[str], names: Sequence[str], first: Sequence[bool]) -> str:
    """A line of a table; on a narrow screen each cell says what it is, and empty ones are left out."""
    kinds = (
        " ".join(filter(None, ("first" * begins, "" if cell else "empty")))
        for cell, begins in zip(cells, first, strict=True)
    )
    marked = (
        f'<td class="{kind}" data-name="{escape(label)}"><span>{cell or "—"}</span></td>'
        for cell, label, kind in zip(cells, names, kinds, strict=True)
    )
    return f'<tr><th scope="row">{name}</th>{"".join(marked)}</tr>'


def _group_row(title: str, width: int) -> str:
    return f'<tr class="case"><th scope="rowgroup" colspan="{width}">{escape(title)}</th></tr>'


def _figure_table(table: Table, head: str, body: Iterable[str]) -> str:
    return (
        f"<h3>{escape(table.title)}</h3><div class='scroll'><table><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div><p class='caption'>{escape(table.caption)}</p>"
    )


def _legend(presets: Sequence[str], published: bool) -> str:
    marks = [
        f'<span class="key {escape(p)}">ours, {escape(p)}: a dot for each seed, a bar at the mean</span>'
        for p in presets
    ]
    if published:
        marks.insert(0, '<span class="key published">the paper’s figure ± its deviation</span>')
    return f'<p class="legend">{"".join(marks)}</p>'


def _head(
    sections: Sequence[Section], records: Sequence[Record], older: int, foreign: Sequence[str]
) -> str:
    links = "".join(
        f'<li><a href="#{escape(s.experiment.name)}">{escape(s.experiment.title)}</a> '
        f"<span>{escape(s.experiment.source)}</span></li>"
        for s in sections
    )
    presets = dict.fromkeys(record.preset for record in records)
    meanings = "".join(
        f"<li>{badge(p)} {escape(meaning)}</li>" for p, meaning in PRESETS.items() if p in presets
    )
    remarks = []
    if older:
        remarks.append(f"{older} older record{'s' * (older > 1)} of the same runs left out.")
    if foreign:
        remarks.append(
            f"Records of unknown experiments left out: {', '.join(map(escape, foreign))}."
        )
    return (
        "<header><p class='kicker'>gpvi</p><h1>Neural samplers of a posterior, measured</h1>"
        "<p>Figures are mean ± standard deviation over n seeds. The paper’s own figures "
        "(<cite>Generative Particle Variational Inference via Estimation of Functional Gradients</cite>, ICML 2021) "
        "stand beside ours and are never mixed with them.</p>"
        f"<ul class='presets'>{meanings}</ul><ul class='contents'>{links}"
        "<li><a href='#provenance'>Where the numbers come from</a></li></ul>"
        f"<p class='remark'>{' '.join(remarks)}</p></header>"
    )


def _provenance(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        place = record.environment
        commit = f", commit {escape(place.commit)}" if place.commit else ""
        specification = escape(json.dumps(record.specification, ensure_ascii=False, indent=1))
        rows.append(
            f"<article id='{escape(slug(f'{record.experiment} {record.preset} {record.method}'))}'>"
            f"<h3>{escape(record.experiment)} · {escape(record.method)} {badge(record.preset)}</h3>"
            f"<p><code>{escape(record.command)}</code></p>"
            f"<p>gpvi {escape(place.library)}{commit} · Python {escape(place.python)} · JAX {escape(place.jax)} · "
            f"{escape(place.system)}, {place.cpus} CPUs, device {escape(place.device)} · "
            f"seeds {', '.join(map(str, record.seeds))} · started {escape(record.started)} · "
            f"{record.seconds:,.0f} s in all</p>"
            f"<details><summary>specification</summary><pre>{specification}</pre></details></article>"
        )
    return f"<footer id='provenance'><h2>Where the numbers come from</h2>{''.join(rows)}</footer>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>gpvi: results</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""
