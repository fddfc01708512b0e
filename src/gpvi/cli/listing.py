"""`gpvi list`: tables of what can be used by name. The library lists its methods; packages add tables of their own."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gpvi.cli.application import AsJson, app, console
from gpvi.errors import UnknownOptionError

if TYPE_CHECKING:
    from rich.table import Table


class Listing(NamedTuple):
    """A table that `gpvi list NAME` prints."""

    print: Callable[[], None]
    to_json: Callable[[], Any]
    """Returns what the table holds, for `--json`."""
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
            help="methods, experiments, data, bench, or an experiment, such as blr, for its rows; "
            "by default the first three.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the available methods, experiments, data and benchmarks, or the rows of one experiment."""
    known = listings()
    if name is not None and name not in known:
        raise UnknownOptionError("name", name, known)
    chosen = {
        each: listing
        for each, listing in known.items()
        if each == name or (name is None and listing.by_default)
    }
    if as_json:
        documents = {each: listing.to_json() for each, listing in chosen.items()}
        document = documents if name is None else documents[name]
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
        return
    for listing in chosen.values():
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


def _methods_to_json() -> list[dict[str, Any]]:
    from gpvi.methods import METHODS
    from gpvi.specs import hyphenated

    return [
        {
            "name": hyphenated(method.__name__),
            "class": method.__name__,
            "purpose": method.about.purpose,
            "new_draws": method.generative,
            "density": method.density,
            "cost": method.about.cost,
            "citation": method.about.citation,
        }
        for method in METHODS
    ]


SOURCES.append(lambda: {"methods": Listing(_print_methods, _methods_to_json)})
