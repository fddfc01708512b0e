"""What results look like in a notebook: tables, and verdicts in colour and words."""

import html
from collections.abc import Collection, Sequence

COLOURS = {
    "good": "#1a7f37",
    "usable with importance weights": "#0969da",
    "no fault seen": "#9a6700",
    "do not trust": "#cf222e",
}
"""The background of each level of a verdict, dark enough for white letters."""
NEUTRAL = "#57606a"
"""The background of any other level."""


def table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str] = (),
    left: Collection[int] = (0,),
    caption: str = "",
) -> str:
    """Return a table; the columns in `left` are left-aligned, all others right-aligned. Cells may be `Markup`."""

    def line(cells: Sequence[str], tag: str) -> str:
        aligned = (
            f'<{tag} style="text-align:{"left" if i in left else "right"}">{_escaped(cell)}</{tag}>'
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(aligned)}</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    name = f'<caption style="text-align:left">{_escaped(caption)}</caption>' if caption else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<table>{name}{top}<tbody>{body}</tbody></table>"


def badge(level: str) -> "Markup":
    """Return the level of a verdict, in its colour."""
    style = (
        f"background:{COLOURS.get(level, NEUTRAL)};color:#fff;padding:1px 8px;border-radius:9px;"
        "font-weight:600;white-space:nowrap"
    )
    return Markup(f'<span style="{style}">{html.escape(level)}</span>')


def paragraph(*parts: str) -> str:
    """Return a paragraph of these parts."""
    return f"<p>{' '.join(_escaped(part) for part in parts if part)}</p>"


class Markup(str):
    """HTML, which is not escaped again."""

    __slots__ = ()


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(text)
