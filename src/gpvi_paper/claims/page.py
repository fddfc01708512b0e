"""The claims as a page of the documentation: `python -m gpvi_paper.claims.page results > docs/claims.md`."""

import sys
from collections import Counter
from collections.abc import Sequence

from gpvi_paper import records
from gpvi_paper.claims.base import COLUMNS, FAILS, HOLDS, OPEN, Equals, Judged, judge
from gpvi_paper.claims.statements import claims
from gpvi_paper.records import Summary

HEAD = """# The paper's claims

What the paper says of its experiments, and whether our runs bear it out: {said}. Every figure on this page is
computed from the records in `results`, mean ± sd over their seeds; a comparison shows both figures.

The published recipes decide, `paper` before `authors`, and both figures of a comparison come from the same one
([what these recipes are](paper-recipes.md)). `earlier` are runs of `paper` before its recipe was changed; they and
`best`, what this library recommends, decide nothing. Orders hold if the difference exceeds its standard error. A claim
without a run of the published recipes cannot be decided here, whatever the other columns suggest.
"""


def page(judged: Sequence[Judged]) -> str:
    """Return the page in Markdown."""
    counts = Counter(one.verdict for one in judged)
    said = ", ".join(f"{counts[v]} of {len(judged)} {_verb(v)}" for v in (HOLDS, FAILS, OPEN))
    printed = [one for one in judged if isinstance(one.claim.test, Equals)]
    stated = [one for one in judged if not isinstance(one.claim.test, Equals)]
    return "\n".join(
        [
            HEAD.format(said=said),
            "## What the text says\n",
            *_table(stated),
            "\n## What the tables print\n",
            *_table(printed),
            "",
        ]
    )


def figures_text(one: Judged, preset: str) -> str:
    """Return our figures of a claim under a preset, "" if there are none."""
    values = one.figures.get(preset, ())
    return " / ".join(_text(value) for value in values) if values else ""


def _verb(verdict: str) -> str:
    return {HOLDS: "hold", FAILS: "do not hold", OPEN: "cannot be decided"}[verdict]


def _text(value: Summary | None) -> str:
    if value is None:
        return "—"
    shown = value.rounded()
    power = f"·10^{shown.power}" if shown.power else ""
    return f"{shown.mean} ± {shown.sd}{power}" if shown.sd else f"{shown.mean}{power}"


def _table(judged: Sequence[Judged]) -> list[str]:
    rows = [f"| claim | where | {' | '.join(f'`{p}`' for p in COLUMNS)} | verdict | why |"]
    rows.append("|---|---|" + "---|" * len(COLUMNS) + "---|---|")
    for one in judged:
        cells = [figures_text(one, preset) for preset in COLUMNS]
        words = [one.claim.text, one.claim.where, *cells, one.verdict, one.reason]
        rows.append("| " + " | ".join(word.replace("|", "\\|") for word in words) + " |")
    return rows


if __name__ == "__main__":
    sys.stdout.write(page(judge(claims(), records.find(sys.argv[1:]))))
