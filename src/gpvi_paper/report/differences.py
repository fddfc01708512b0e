"""Where figures under the preset `paper` differ from the published ones: a letter in the table, a sentence below."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice, product
from string import ascii_lowercase

from gpvi_paper.claims.base import differs
from gpvi_paper.experiments import Experiment
from gpvi_paper.records import Record
from gpvi_paper.report.elements import key

PRESET = "paper"
"""The preset that repeats the published experiments."""
NOT_EXPLAINED = "Not explained."


class Differences:
    """The cells of an experiment that differ from the published ones, by reason."""

    def __init__(self, experiment: Experiment, records: Sequence[Record]):
        self._experiment = experiment
        self._titles = _row_titles(experiment)
        found: dict[str, list[tuple[str, str]]] = {}
        for row, record in product(self._titles, records):
            published = experiment.published.get(record.method, {}).get(row)
            ours = record.summary(row)
            if record.preset == PRESET and published and ours and differs(ours, published):
                reason = published.reason or NOT_EXPLAINED
                found.setdefault(reason, []).append((record.method, row))
        order = sorted(found, key=lambda reason: reason == NOT_EXPLAINED)
        self._cells = dict(zip(_letters(len(found)), ((r, found[r]) for r in order), strict=True))
        self._marks = {cell: mark for mark, (_, cells) in self._cells.items() for cell in cells}

    def mark(self, label: str, row: str) -> str:
        """Return a letter that links to the reason; nothing if the figures agree."""
        mark = self._marks.get((label, row))
        return f'<a class="why" href="#{self._place(mark)}">{mark}</a>' if mark else ""

    def html(self) -> str:
        """Return the list of reasons, each with the cells it explains."""
        if not self._cells:
            return ""
        lines = (
            f'<li id="{self._place(mark)}"><b>{escape(self._named(cells))}.</b> {escape(reason)}</li>'
            for mark, (reason, cells) in self._cells.items()
        )
        return (
            '<h3>Differences from the published figures</h3><p class="caption">Figures of the preset paper that '
            "differ from the published one by more than both spreads, or by more than the published spread if the "
            f'reason is known.</p><ol class="whys">{"".join(lines)}</ol>'
        )

    def _place(self, mark: str) -> str:
        return f"{escape(self._experiment.name)}-why-{mark}"

    def _named(self, cells: Sequence[tuple[str, str]]) -> str:
        """Say which metrics of which methods these cells are."""
        by_row: dict[str, list[str]] = {}
        for label, row in cells:
            by_row.setdefault(self._titles[row], []).append(label)
        by_methods: dict[str, list[str]] = {}
        for title, labels in by_row.items():
            by_methods.setdefault("; ".join(labels), []).append(title)
        return ". ".join(f"{' and '.join(t)} of {labels}" for labels, t in by_methods.items())


def _row_titles(experiment: Experiment) -> Mapping[str, str]:
    """Return a title for each row that a table shows, in the order of the tables."""
    several = len(experiment.cases) > 1
    shown = [name for table in experiment.tables for name in table.metrics]
    metrics = sorted(
        (m for m in experiment.metrics if m.key in shown), key=lambda m: shown.index(m.key)
    )
    return {
        key(case, metric.key): f"{metric.label} ({title})" if several else metric.label
        for metric, (case, title) in product(metrics, experiment.cases.items())
    }


def _letters(count: int) -> list[str]:
    """Return so many marks: a, b, …, z, aa, ab, …"""
    pairs = map("".join, product(ascii_lowercase, repeat=2))
    return [*ascii_lowercase[:count], *islice(pairs, max(0, count - len(ascii_lowercase)))]
