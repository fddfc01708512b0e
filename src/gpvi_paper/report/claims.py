"""The table at the top of the page: what the paper claims, our figures under each recipe, and whether it holds."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from gpvi_paper.claims import Judged
from gpvi_paper.claims.base import COLUMNS, FAILS, HOLDS, OPEN, Equals
from gpvi_paper.claims.page import figures_text
from gpvi_paper.report.elements import badge, folded

MARKS = {HOLDS: "✓", FAILS: "✗", OPEN: "?"}


def claims_html(judged: Sequence[Judged]) -> str:
    """Return the table; nothing if no claim has a figure."""
    if not any(one.figures for one in judged):
        return ""
    counts = Counter(one.verdict for one in judged)
    said = ", ".join(f"{counts[verdict]} {MARKS[verdict]} {verdict}" for verdict in MARKS)
    printed = [one for one in judged if isinstance(one.claim.test, Equals)]
    stated = [one for one in judged if not isinstance(one.claim.test, Equals)]
    return (
        "<section id='claims'><h2>The paper’s claims</h2>"
        f"<p>{len(judged)} claims: {said}. The published recipes decide, paper before authors, and both figures of a "
        "comparison come from the same one. earlier and best are shown beside and decide nothing.</p>"
        f"{folded('Statements', _table(stated))}{folded('Printed figures', _table(printed))}</section>"
    )


def _table(judged: Sequence[Judged]) -> str:
    heads = "".join(f"<th scope='col'>{badge(preset)}</th>" for preset in COLUMNS)
    return (
        "<div class='scroll'><table class='claims'><thead><tr><th scope='col'>Claim</th>"
        f"<th scope='col'>Where</th>{heads}<th scope='col'>Verdict</th></tr></thead>"
        f"<tbody>{''.join(map(_row, judged))}</tbody></table></div>"
    )


def _row(one: Judged) -> str:
    cells = "".join(
        f"<td data-name='{preset}'><span>{escape(figures_text(one, preset)) or '—'}</span></td>"
        for preset in COLUMNS
    )
    return (
        f"<tr><th scope='row'>{escape(one.claim.text)}</th>"
        f"<td data-name='Where'><span>{escape(one.claim.where)}</span></td>{cells}"
        f"<td data-name='Verdict'><span>{MARKS[one.verdict]} {one.verdict}<small>{escape(one.reason)}</small></span>"
        "</td></tr>"
    )
