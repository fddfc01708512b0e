"""A record in the terminal: its numbers in a table that fits the screen, its notes, and its file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from gpvi.cli.application import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpvi_paper.experiments import Experiment, Metric
    from gpvi_paper.records import Record

MOST_ACROSS = 6
"""Tables with more problems than this have one row per problem."""
WIDEST = 1_000
"""The width that a table may take while its minimum is measured."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def print_record(
    experiment: "Experiment", record: "Record", path: Path, *, kept: bool, explain: bool
) -> None:
    """Print a record as a table, with its notes and its file.

    Parameters
    ----------
    experiment
        The experiment of the record.
    record
        What to print.
    path
        The file of the record.
    kept
        Whether the record is from an earlier run.
    explain
        Whether the meaning of the metrics is printed, too.
    """
    screen = console()
    seeds = f"{len(record.seeds)} seed{'s' * (len(record.seeds) > 1)}"
    title = f"{experiment.title} · {record.method} · {record.preset} · {seeds}"
    screen.print(f"[bold]{title}[/bold]", highlight=False)
    several = len(experiment.cases) > 1
    cells = _cells(experiment, record)
    screen.print(_table_of_several(screen, experiment, cells) if several else _table_of_one(cells))
    if several and explain and cells:
        meanings = "; ".join(f"{metric.label}: {metric.meaning}" for metric in cells)
        screen.print(meanings, style="dim", highlight=False, markup=False)
    for note in record.notes:
        screen.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False)
    when = f", kept from {record.started[:16].replace('T', ' ')} UTC; --again reruns it"
    screen.print(
        f"{path}{when if kept else ''}\n",
        style="dim",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def print_comparison(experiment: "Experiment", compared: Sequence["Record"]) -> None:
    """Print the headline figures of several records of one experiment in one table, the best of each marked.

    Parameters
    ----------
    experiment
        The experiment of the records.
    compared
        Its records, one to a line.
    """
    screen = console()
    metrics = {metric.key: metric for metric in experiment.metrics}
    keys = experiment.headline or experiment.tables[0].metrics[:1]
    labels_of: dict[str, str] = {}
    for key in keys:
        labels_of[key] = _distinct(metrics[key].label, list(labels_of.values()))
    columns: dict[str, list[str]] = {}
    for case, title in experiment.cases.items():
        for key in keys:
            texts = [_cell(record, case, metrics[key]) for record in compared]
            if any(texts):
                several = [title] if len(experiment.cases) > 1 else []
                own = [] if several and len(keys) == 1 else [labels_of[key]]
                columns[", ".join(several + own)] = _marked(texts, compared, case, metrics[key])
    if not columns:
        return
    labels = [record.method for record in compared]
    heads, texts = list(columns), list(columns.values())
    table = _table(labels, heads, texts)
    listed = _borderless()
    for head, own in columns.items():
        listed.add_row(f"[bold]{escape(head)}[/bold]")
        for label, text in zip(labels, own, strict=True):
            listed.add_row(f"  {escape(label)}", text)
    screen.print(f"[bold]{experiment.title}: {len(compared)} rows[/bold]", highlight=False)
    screen.print(table if _least_width(screen, table) <= screen.width else listed)
    meanings = "; ".join(f"{labels_of[key]}: {metrics[key].meaning}" for key in keys)
    screen.print(f"* best on average; {meanings}\n", style="dim", highlight=False, markup=False)


def _distinct(label: str, others: Sequence[str]) -> str:
    """Return a label that no other metric has."""
    return label if label not in others else f"{label} ({len(others) + 1})"


def _marked(
    texts: Sequence[str], compared: Sequence["Record"], case: str, metric: "Metric"
) -> list[str]:
    """Return the texts with a star at the best mean, if the metric has a direction."""
    means: list[float] = []
    for record in compared:
        summary = record.summary(f"{case}/{metric.key}".strip("/"))
        means.append(math.nan if summary is None else summary.mean)
    finite = [mean for mean in means if math.isfinite(mean)]
    if metric.better is None or len(finite) < 2:
        return list(texts)
    best = min(finite) if metric.better == "lower" else max(finite)
    return [
        f"{text} *" if mean == best else f"{text}  "
        for text, mean in zip(texts, means, strict=True)
    ]


def _cells(experiment: "Experiment", record: "Record") -> dict["Metric", dict[str, str]]:
    """Return the text of each cell that is not empty: metric → problem → text.

    If there are many problems, only the metrics of the experiment's first table are included.
    """
    floors = {m.floor for m in experiment.metrics} if len(experiment.cases) == 1 else set()
    texts_by_metric = {
        metric: {
            title: text
            for case, title in experiment.cases.items()
            if (text := _cell(record, case, metric))
        }
        for metric in experiment.metrics
        if metric.key not in floors
    }
    many = len({title for texts in texts_by_metric.values() for title in texts}) > MOST_ACROSS
    first = experiment.tables[0].metrics
    return {
        metric: texts
        for metric, texts in texts_by_metric.items()
        if texts and (metric.key in first or not many)
    }


def _table_of_one(cells: Mapping["Metric", Mapping[str, str]]) -> "Table":
    """Return the table of an experiment with a single problem: one row per metric, with its meaning."""
    table = _borderless()
    for metric, texts in cells.items():
        table.add_row(metric.label, *texts.values(), metric.meaning)
    table.columns[-1].style = "dim"
    return table


def _table_of_several(
    screen: "Console", experiment: "Experiment", cells: Mapping["Metric", Mapping[str, str]]
) -> "Table":
    """Return the first layout that fits the screen: problems as rows, as columns, or one line per number."""
    titles = [
        title
        for title in experiment.cases.values()
        if any(title in texts for texts in cells.values())
    ]
    numbers = [[texts.get(title, "") for title in titles] for texts in cells.values()]
    labels = [metric.label for metric in cells]
    turned = [list(line) for line in zip(*numbers, strict=True)]
    candidates = [_table(titles, labels, numbers)]
    if len(titles) <= MOST_ACROSS:
        candidates.insert(0, _table(labels, titles, turned))
    listed = _borderless()
    for title in titles:
        listed.add_row(f"[bold]{escape(title)}[/bold]")
        for metric, texts in cells.items():
            if title in texts:
                listed.add_row(f"  {metric.label}", texts[title])
    return next((t for t in candidates if _least_width(screen, t) <= screen.width), listed)


def _least_width(screen: "Console", table: "Table") -> int:
    """Return the smallest width at which no number is wrapped."""
    return screen.measure(table, options=screen.options.update(width=WIDEST)).minimum


def _table(names: Sequence[str], heads: Sequence[str], columns: Sequence[Sequence[str]]) -> "Table":
    """Return a table whose headings may be wrapped, but not its numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True, min_width=max(map(len, names)))
    for head, texts in zip(heads, columns, strict=True):
        table.add_column(escape(head), justify="right", min_width=max(map(len, texts)))
    for name, *texts in zip(names, *columns, strict=True):
        table.add_row(escape(name), *texts)
    return table


def _borderless() -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2))
    for _ in range(3):
        table.add_column()
    return table


def _cell(record: "Record", case: str, metric: "Metric") -> str:
    """Return the mean ± sd, with the value for exact draws behind it if there is one."""
    summary = record.summary(f"{case}/{metric.key}".strip("/"))
    if summary is None:
        return ""
    if metric.style == "seconds":
        return f"{summary.mean:,.0f}"
    mean, sd, power = summary.rounded()
    text = f"{mean} ± {sd}" if sd else mean
    if power:
        exponent = f"·10{str(power).translate(SUPERSCRIPTS)}"
        text = f"({text}){exponent}" if sd else text + exponent
    floor = record.summary(metric.floor) if metric.floor else None
    if floor:
        text += f" (exact {floor.mean:.2g})"
    return text
