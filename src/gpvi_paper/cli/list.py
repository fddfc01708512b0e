"""`gpvi list`: the available experiments, methods and data."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpvi.cli.app import app, console
from gpvi.errors import UnknownOptionError

if TYPE_CHECKING:
    from rich.table import Table

    from gpvi_paper.experiments import Experiment

KINDS = ("experiments", "methods", "data")


def _what() -> list[str]:
    from gpvi_paper.experiments import EXPERIMENTS

    return [*KINDS, *EXPERIMENTS]


@app.command("list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="experiments|methods|data|EXPERIMENT",
            help="What to list, or an experiment, such as blr, for its rows; by default all three tables.",
            autocompletion=_what,
        ),
    ] = None,
) -> None:
    """Show the available experiments, methods and data, or the rows of one experiment."""
    from gpvi_paper.experiments import EXPERIMENTS

    tables = {"experiments": _experiments, "methods": _methods, "data": _data}
    if what is not None and what in EXPERIMENTS:
        _rows(EXPERIMENTS[what])
        return
    if what is not None and what not in tables:
        raise UnknownOptionError("name", what, _what())
    for name, show in tables.items():
        if what in (None, name):
            show()


def _experiments() -> None:
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS, ReadsData

    table = _table("experiments, and the number of rows in each preset")
    table.add_column("gpvi run", no_wrap=True)
    table.add_column("what it studies")
    for preset in PRESETS:
        table.add_column(preset, justify="right")
    table.add_column("data", justify="center")
    for name, experiment in EXPERIMENTS.items():
        counts = [len(experiment.recipes(preset)) for preset in PRESETS]
        table.add_row(
            name,
            experiment.title,
            *(str(count or "") for count in counts),
            "●" if isinstance(experiment, ReadsData) else "",
        )
    screen = console()
    screen.print(table)
    _presets()
    screen.print(
        "  gpvi list EXPERIMENT shows its rows, the labels for --method; ● needs --data-dir\n",
        highlight=False,
    )


def _rows(experiment: "Experiment") -> None:
    """The labels of one experiment, with the presets that have them."""
    from gpvi_paper.experiments import PRESETS
    from gpvi_paper.records import slug

    screen = console()
    screen.print(f"[bold]{experiment.title}[/bold] ({experiment.source})\n", highlight=False)
    screen.print(experiment.summary, highlight=False, markup=False)
    table = _table("")
    table.add_column("--method", no_wrap=True)
    for preset in PRESETS:
        table.add_column(preset, justify="center")
    available = {preset: experiment.recipes(preset) for preset in PRESETS}
    for label in dict.fromkeys(label for recipes in available.values() for label in recipes):
        table.add_row(slug(label), *("●" if label in available[p] else "" for p in PRESETS))
    screen.print(table)
    _presets()


def _presets() -> None:
    from gpvi_paper.experiments import PRESETS

    for preset, meaning in PRESETS.items():
        console().print(f"  [bold]{preset:<6}[/bold] {meaning}", highlight=False)
    console().print()


def _methods() -> None:
    from gpvi.methods import METHODS
    from gpvi.specs import hyphenated

    table = _table("methods")
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
    table.caption_justify = "left"
    console().print(table)


def _data() -> None:
    import importlib
    import pkgutil

    from gpvi_paper import data
    from gpvi_paper.experiments import EXPERIMENTS, ReadsData

    table = _table("data: none are shipped")
    table.add_column("gpvi_paper.data.", no_wrap=True)
    table.add_column("what is read")
    for found in pkgutil.iter_modules(data.__path__):
        module = importlib.import_module(f"gpvi_paper.data.{found.name}")
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
