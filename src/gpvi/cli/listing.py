"""`gpvi list`: tables of what can be used by name. The library lists its methods; packages add tables of their own."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpvi.cli.application import app, console
from gpvi.errors import UnknownOptionError

if TYPE_CHECKING:
    from rich.table import Table


class Listing(NamedTuple):
    """A table that `gpvi list NAME` prints."""

    print: Callable[[], None]
    by_default: bool = True
    """Whether `gpvi list` without a name prints it, too."""


SOURCES: list[Callable[[], Mapping[str, Listing]]] = []
"""Functions that return tables by name. They are called when a table is needed, so that commands start quickly."""


def listings() -> dict[str, Listing]:
    """Return the tables of all sources by name."""
    return {name: listing for source in SOURCES for name, listing in source().items()}


def _names() -> list[str]:
    return list(listings())


@app.command("list")
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="methods, experiments, data, or an experiment, such as blr, for its rows; by default the first three.",
            autocompletion=_names,
        ),
    ] = None,
) -> None:
    """Show the available methods, experiments and data, or the rows of one experiment."""
    known = listings()
    if name is not None and name not in known:
        raise UnknownOptionError("name", name, known)
    for each, listing in known.items():
        if each == name or (name is None and listing.by_default):
            listing.print()


def new_table(title: str = "") -> "Table":
    """Return an empty table in the style of this command."""
    from rich import box
    from rich.table import Table

    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )


def _print_methods() -> None:
    from gpvi.methods import METHODS
    from gpvi.specs import hyphenated

    table = new_table("methods")
    table.add_column("gpvi.\n[dim]--method[/dim]", no_wrap=True)
    table.add_column("what it is for\n[dim]gives; cost of a step; reference[/dim]")
    for method in METHODS:
        gives = "new draws" if method.generative else "a set of draws"
        gives += " with densities" if method.density else ""
        table.add_row(
            f"{method.__name__}\n[dim]{hyphenated(method.__name__)}[/dim]",
            f"{method.about.purpose}\n[dim]{gives}; {method.about.cost}; {method.about.citation}[/dim]",
        )
    table.caption = "n draws in dimension d, k head coordinates; G is one gradient of log p"
    console().print(table)


SOURCES.append(lambda: {"methods": Listing(_print_methods)})
