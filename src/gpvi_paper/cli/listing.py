"""What `gpvi list` shows of this package: the experiments, the rows of each, and the readers of data."""

import functools
import importlib
import pkgutil

from gpvi.cli import listing
from gpvi.cli.application import console
from gpvi.cli.listing import Listing, new_table


def _listings() -> dict[str, Listing]:
    from gpvi_paper.experiments import EXPERIMENTS

    rows = {
        name: Listing(functools.partial(_print_rows, name), by_default=False)
        for name in EXPERIMENTS
    }
    return {"experiments": Listing(_print_experiments), "data": Listing(_print_data)} | rows


def _print_experiments() -> None:
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS, ReadsData

    table = new_table("experiments, and the number of rows in each preset")
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
    console().print(table)
    _print_presets()
    console().print(
        "  gpvi list EXPERIMENT shows its rows, the labels for --method; ● needs --data-dir\n",
        highlight=False,
    )


def _print_rows(name: str) -> None:
    """Print the methods of one experiment, and which presets have them."""
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS
    from gpvi_paper.records import slug

    experiment = EXPERIMENTS[name]
    console().print(f"[bold]{experiment.title}[/bold] ({experiment.source})\n", highlight=False)
    console().print(experiment.summary, highlight=False, markup=False)
    table = new_table()
    table.add_column("--method", no_wrap=True)
    for preset in PRESETS:
        table.add_column(preset, justify="center")
    available = {preset: experiment.recipes(preset) for preset in PRESETS}
    for label in dict.fromkeys(label for recipes in available.values() for label in recipes):
        table.add_row(slug(label), *("●" if label in available[p] else "" for p in PRESETS))
    console().print(table)
    _print_presets()


def _print_presets() -> None:
    from gpvi_paper.experiments import PRESETS

    for preset, meaning in PRESETS.items():
        console().print(f"  [bold]{preset:<6}[/bold] {meaning}", highlight=False)
    console().print()


def _print_data() -> None:
    from gpvi_paper import data
    from gpvi_paper.experiments import EXPERIMENTS, ReadsData

    table = new_table("data: none are shipped")
    table.add_column("gpvi_paper.data.", no_wrap=True)
    table.add_column("what is read")
    for found in pkgutil.iter_modules(data.__path__):
        module = importlib.import_module(f"gpvi_paper.data.{found.name}")
        about = (module.__doc__ or "").partition("\n")[0]
        if about.startswith("Reads "):
            table.add_row(found.name, about.removeprefix("Reads "))
    readers = [name for name, e in EXPERIMENTS.items() if isinstance(e, ReadsData)]
    table.caption = f"gpvi run EXPERIMENT --data-dir DIR, for {', '.join(readers)}"
    console().print(table)


listing.SOURCES.append(_listings)
