"""`gpvi list`: the experiments, the methods and the data there are."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpvi.cli.app import app, console
from gpvi.errors import UnknownOptionError

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("experiments", "methods", "data")


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[experiments|methods|data]",
            help="What to list; all by default.",
            autocompletion=lambda: list(KINDS),
        ),
    ] = None,
) -> None:
    """Show the experiments, the methods and the data there are."""
    tables = {"experiments": _experiments, "methods": _methods, "data": _data}
    if kind is not None and kind not in tables:
        raise UnknownOptionError("kind", kind, KINDS)
    for name, show in tables.items():
        if kind in (None, name):
            show()


def _experiments() -> None:
    from gpvi.experiments import EXPERIMENTS, PRESETS
    from gpvi.records import slug

    screen = console()
    for experiment in EXPERIMENTS.values():
        table = _table(f"{experiment.name}: {experiment.title} ({experiment.source})")
        table.add_column("--method", no_wrap=True)
        for preset in PRESETS:
            table.add_column(preset, justify="center")
        available = {preset: experiment.recipes(preset) for preset in PRESETS}
        for label in dict.fromkeys(label for recipes in available.values() for label in recipes):
            table.add_row(slug(label), *("●" if label in available[p] else "" for p in PRESETS))
        screen.print(table)
    for preset, meaning in PRESETS.items():
        screen.print(f"  [bold]{preset:<6}[/bold] {meaning}", highlight=False)
    screen.print()


def _methods() -> None:
    from gpvi.methods import METHODS

    table = _table("methods")
    table.add_column("gpvi.", no_wrap=True)
    table.add_column("what it is for")
    table.add_column("new draws", justify="center")
    table.add_column("density", justify="center")
    table.add_column("cost of a step")
    table.add_column("reference")
    for method in METHODS:
        table.add_row(
            method.__name__,
            method.about.purpose,
            "●" if method.generative else "",
            "●" if method.density else "",
            method.about.cost,
            method.about.citation,
        )
    table.caption = "n draws in dimension d, k coordinates in the head; G is a gradient of log p"
    table.caption_justify = "left"
    console().print(table)


def _data() -> None:
    import importlib
    import pkgutil

    from gpvi import data
    from gpvi.experiments import EXPERIMENTS, ReadsData

    table = _table("data: none are shipped")
    table.add_column("gpvi.data.", no_wrap=True)
    table.add_column("what is read")
    for found in pkgutil.iter_modules(data.__path__):
        module = importlib.import_module(f"gpvi.data.{found.name}")
        about = (module.__doc__ or "").partition("\n")[0]
        if about.startswith("Reads "):
            table.add_row(found.name, about.removeprefix("Reads "))
    readers = [name for name, e in EXPERIMENTS.items() if isinstance(e, ReadsData)]
    table.caption = f"gpvi run EXPERIMENT --data-dir DIR, for {', '.join(readers)}"
    table.caption_justify = "left"
    console().print(table)


def _table(title: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
