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
from gpvi.persistence.writing import atomic
from gpvi.progress import Meter, as_meter
from gpvi_paper.experiments import EXPERIMENTS, PRESETS, Experiment, Metric, Published
from gpvi_paper.experiments.base import Table
from gpvi_paper.records import Record, Summary, decimal, decimals, latest, slug
from gpvi_paper.report import figures
from gpvi_paper.report.differences import PRESET, Differences
from gpvi_paper.report.elements import badge, chart, charts, key
from gpvi_paper.report.pictures import PICTURES

PAGE = "index.html"
CURVES = {"elbo": "ELBO", "log_density": "mean log p of the draws"}
"""Training terms to plot, the best first; a term is plotted if every method reports it."""
ARROWS = {"lower": "↓", "higher": "↑"}
TRAINING = (
    "Means over the seeds, with their range shaded, each method on the target it was trained on: log p differs between "
    "whitened coordinates or temperatures, so heights are comparable only if these are the same."
)
READING = (
    "↓ lower is better, ↑ higher is better; labels without an arrow are descriptive. — not run, or not measured for "
    "this method. “exact” is the value for the same number of draws from the posterior itself, or from the reference."
)
"""How the tables are read."""


def write(
    records: Iterable[Record],
    directory: str | os.PathLike[str],
    *,
    unread: int = 0,
    progress: bool | Meter = False,
) -> Path:
    """Write the page into `directory` and return its path; the page says how many records were unreadable."""
    path = Path(directory) / PAGE
    content = render(records, unread=unread, progress=progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part:
            part.write_text(content, "utf-8")
    except OSError as error:
        raise StorageError(
            f"the report cannot be written to {path}: {error.strerror}. Choose another --out directory."
        ) from error
    return path


def render(records: Iterable[Record], *, unread: int = 0, progress: bool | Meter = False) -> str:
    """The whole page, with the newest record of each experiment, preset and method."""
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
        _head(sections, shown, _remarks(len(given) - len(shown), foreign, unread)),
        *_drawn(sections, as_meter(progress)),
        _provenance(shown),
    ]
    return _PAGE.format(style=_style(), body="\n".join(body))


def _drawn(sections: "Sequence[Section]", meter: Meter) -> list[str]:
    """The sections one after the other: pictures take time."""
    made: list[str] = []
    meter.start(len(sections), "page")
    try:
        for section in sections:
            meter.update(len(made), section.experiment.name)
            made.append(section.html())
    finally:
        meter.close()
    return made


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
            f'<p class="source">{escape(_source(e))}; '
            f'<a href="#from-{escape(name)}">where the numbers come from</a></p>',
            f"<p>{escape(e.summary)}</p>",
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
        """Every method that has a row, in the experiment's order, then those only in the paper."""
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
        """One row per method; under each metric the paper's figure, if any, and one column per preset."""
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
                f"{_labelled(metric)}</th>"
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
        return _figure_table(table, [metric for metric, _ in groups], "".join(head), body)

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
        """The number of seeds, if the same in all records of a preset."""
        counts = {len(record.seeds) for record in self.records if record.preset == preset}
        return counts.pop() if len(counts) == 1 else None

    def _floor_rows(
        self, columns: Sequence[Column], names: Sequence[str], first: Sequence[bool]
    ) -> Iterator[str]:
        """The values for exact draws, as a last row."""
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
            f'<th title="{escape(m.meaning)}">{_labelled(m)}</th>' for m in metrics
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
        return _figure_table(table, metrics, head + "</tr>", body)

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
            f"<small>exact {decimal(lowest.mean, decimals(lowest.mean, 2))}</small>"
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
        """Training curves, one chart per preset and problem."""
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
            yield f"<h3>Training</h3><p class='caption'>{TRAINING}</p>"
            yield charts(made)

    def _notes(self) -> str:
        said: dict[tuple[str, str], list[str]] = {}
        for record in self.records:
            for note in record.notes:
                said.setdefault((record.preset, note), []).append(record.method)
        notes = [
            f"<li>{escape('; '.join(dict.fromkeys(methods)))} {badge(preset)}: {escape(note)}</li>"
            for (preset, note), methods in said.items()
        ]
        return (
            f'<h3>Notes from training</h3><ul class="notes">{"".join(notes)}</ul>' if notes else ""
        )


def _source(experiment: Experiment) -> str:
    """Which part of the paper it repeats, if any."""
    source = experiment.source
    return source[:1].upper() + source[1:] if "beyond" in source else f"In the paper: {source}"


def _style() -> str:
    return resources.files("gpvi_paper.report").joinpath("style.css").read_text("utf-8")


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
    """Mean ± deviation with the unit; of yes and no, how often yes."""
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


def _count(n: int) -> str:
    return f'<span class="n">n = {n}</span>'


def _published(figure: Published) -> str:
    given = math.isfinite(figure.sd)
    return f"{figure.mean:g}" + (f" {_deviation(f'{figure.sd:g}')}" if given else "")


def _deviation(text: str) -> str:
    """± and what follows, kept on one line."""
    return f'<span class="sd">± {text}</span>'


def _row(name: str, cells: Sequence[str], names: Sequence[str], first: Sequence[bool]) -> str:
    """A row of a table; on a narrow screen each cell is labelled, and empty ones are omitted."""
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


def _figure_table(table: Table, metrics: Sequence[Metric], head: str, body: Iterable[str]) -> str:
    meanings = "".join(
        f"<div><dt>{_labelled(m)}</dt><dd>{escape(m.meaning)}</dd></div>" for m in metrics
    )
    return (
        f"<h3>{escape(table.title)}</h3><div class='scroll'><table><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div><p class='caption'>{escape(table.caption)}</p>"
        f"<dl class='meanings'>{meanings}</dl>"
    )


def _labelled(metric: Metric) -> str:
    """The label, and an arrow to the better end."""
    if metric.better is None:
        return escape(metric.label)
    return f'{escape(metric.label)} <span class="way">{ARROWS[metric.better]}</span>'


def _legend(presets: Sequence[str], published: bool) -> str:
    marks = [
        f'<span class="key {escape(p)}">ours, {escape(p)}: a dot for each seed, a bar at the mean</span>'
        for p in presets
    ]
    if published:
        marks.insert(0, '<span class="key published">the paper’s figure ± its deviation</span>')
    return f'<p class="legend">{"".join(marks)}</p>'


def _remarks(older: int, foreign: Sequence[str], unread: int) -> list[str]:
    """What is not on the page."""
    remarks = []
    if older:
        remarks.append(f"{older} older record{'s' * (older > 1)} of the same runs omitted.")
    if foreign:
        remarks.append(
            f"Records of unknown experiments omitted: {', '.join(map(escape, foreign))}."
        )
    if unread:
        remarks.append(f"{unread} damaged record{'s' * (unread > 1)} omitted.")
    return remarks


def _head(sections: Sequence[Section], records: Sequence[Record], remarks: Sequence[str]) -> str:
    links = "".join(
        f'<li><a href="#{escape(s.experiment.name)}">{escape(s.experiment.title)}</a> '
        f"<span>{escape(s.experiment.source)}</span></li>"
        for s in sections
    )
    presets = dict.fromkeys(record.preset for record in records)
    meanings = "".join(
        f"<li>{badge(p)} {escape(meaning)}</li>" for p, meaning in PRESETS.items() if p in presets
    )
    return (
        "<header><p class='kicker'>gpvi</p><h1>Neural samplers of a posterior, measured</h1>"
        "<p>Figures are mean ± standard deviation over n seeds. The paper’s own figures "
        "(<cite>Generative Particle Variational Inference via Estimation of Functional Gradients</cite>, ICML 2021) "
        "are shown beside ours and never mixed with them.</p>"
        f"<p class='caption'>{READING}</p>"
        f"<ul class='presets'>{meanings}</ul><ul class='contents'>{links}"
        "<li><a href='#provenance'>Where the numbers come from</a></li></ul>"
        f"<p class='remark'>{' '.join(remarks)}</p></header>"
    )


def _provenance(records: Sequence[Record]) -> str:
    """Every record's command, circumstances and specification, experiment by experiment."""
    rows, last = [], None
    for record in sorted(records, key=lambda r: (_known(r.experiment), _place(r))):
        if record.experiment != last:
            last = record.experiment
            rows.append(f"<h3 class='from' id='from-{escape(last)}'>{escape(last)}</h3>")
        place = record.environment
        commit = f", commit {escape(place.commit)}" if place.commit else ""
        specification = escape(json.dumps(record.specification, ensure_ascii=False, indent=1))
        rows.append(
            f"<article id='{escape(slug(f'{record.experiment} {record.preset} {record.method}'))}'>"
            f"<h4>{escape(record.method)} {badge(record.preset)}</h4>"
            f"<p><code>{escape(record.command)}</code></p>"
            f"<p>gpvi {escape(place.library)}{commit} · Python {escape(place.python)} · JAX {escape(place.jax)} · "
            f"{escape(place.system)}, {place.cpus} CPU{'s' * (place.cpus != 1)}, device {escape(place.device)} · "
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
