"""A record in the terminal: its numbers in a table that fits the screen, its notes, and its file."""

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
