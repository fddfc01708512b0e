"""`gpvi demo`: what the defaults make of five densities, each with its verdict, as lines and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpvi.cli.application import Bar, Out, app, console
from gpvi.errors import require_extra
from gpvi.persistence.writing import make_writable

if TYPE_CHECKING:
    from gpvi_paper.demonstration import Shown

COLOURS = {
    "good": "green",
    "usable with importance weights": "yellow",
    "no fault seen": "yellow",
    "do not trust": "red",
}
"""Colours of the terminal by level of the verdict."""


@app.command()
def demo(out: Out = Path("report/demo")) -> None:
    """Train on five densities with default settings, and write a page: a minute or two on two cores."""
    require_extra("plots", "matplotlib", "gpvi demo")
    from gpvi_paper import demonstration
    from gpvi_paper.report import demo_page

    make_writable(out)
    screen = console()
    screen.print(
        "[bold]gpvi.fit(target, key=key)[/bold] with nothing chosen, and what NUTS says.\n"
    )
    made = []
    for shown in demonstration.trained(Bar):
        made.append(shown)
        screen.print(_line(shown), soft_wrap=True)
    screen.print()
    typer.echo(demo_page.write(made, out))


def _line(shown: "Shown") -> str:
    """Return a line about one fit: the verdict, then the figures behind it."""
    from gpvi_paper import demonstration

    level = shown.diagnosis.verdict.level
    colour = COLOURS.get(level, "yellow")
    return (
        f"{shown.case.title:<11} {shown.method:<5} [{colour}]{level:<13}[/{colour}] "
        f"{demonstration.in_words(shown)}"
    )
