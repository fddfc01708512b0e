"""Pieces of HTML that tables, pictures and the page share."""

import base64
from collections.abc import Iterable
from html import escape


def badge(preset: str) -> str:
    """Return the name of a preset in its colour."""
    return f'<span class="badge {escape(preset)}">{escape(preset)}</span>'


def panel(image: bytes, caption: str, description: str) -> str:
    """Return a square PNG with a caption, which may contain HTML."""
    return (
        f'<figure class="panel">{picture(image, description)}'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def picture(image: bytes, description: str) -> str:
    """Return an image that contains its PNG."""
    data = base64.b64encode(image).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(description)}">'


def chart(svg: str, caption: str) -> str:
    """Return a chart with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def charts(figures: Iterable[str]) -> str:
    """Return charts side by side if there is room."""
    return f'<div class="charts">{"".join(figures)}</div>'


def multiples(figures: Iterable[str]) -> str:
    """Return small charts, as many in a row as fit."""
    return f'<div class="multiples">{"".join(figures)}</div>'


def panels(title: str, figures: list[str]) -> str:
    """Return the panels of one problem in a row."""
    heading = f"<h4>{escape(title)}</h4>" if title else ""
    return (
        f'<div style="--panels: {len(figures)}">{heading}'
        f'<div class="panels">{"".join(figures)}</div></div>'
    )


def key(case: str, name: str) -> str:
    """Return the name under which a record has a row, curve or array of a problem."""
    return f"{case}/{name}" if case else name


def folded(title: str, content: str) -> str:
    """Return a part of a section that opens when its title is clicked."""
    return f"<details class='more'><summary><h3>{escape(title)}</h3></summary>{content}</details>"
