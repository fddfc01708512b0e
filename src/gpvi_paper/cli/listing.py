"""What `gpvi list` shows of this package: the experiments, the rows of each, and the readers of data."""

import functools
import importlib
import pkgutil
from typing import Any

from gpvi.cli import listing
from gpvi.cli.application import console
from gpvi.cli.listing import Listing, new_table


def _listings() -> dict[str, Listing]:
    from gpvi_paper.experiments import EXPERIMENTS

    rows = {
        name: Listing(
            functools.partial(_print_rows, name),
            functools.partial(_rows_to_json, name),
            by_default=False,
        )
        for name in EXPERIMENTS
    }
    tables = {
        "experiments": Listing(_print_experiments, _experiments_to_json),
        "data": Listing(_print_data, _readers),
        "bench": Listing(_print_bench, _bench_rows, by_default=False),
    }
    return tables | rows


def _print_experiments() -> None:
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS, ReadsData

    table = new_table("experiments, and the number of rows in each preset")
    table.add_column("gpvi run", no_wrap=True)
    table.add_column("what it studies", min_width=15)
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
        console().print(f"  [bold]{preset:<8}[/bold] {meaning}", highlight=False)
    console().print()


def _print_data() -> None:
    from gpvi_paper.experiments import EXPERIMENTS, ReadsData

    table = new_table("data: none are shipped")
    table.add_column("gpvi_paper.data.", no_wrap=True)
    table.add_column("what is read")
    for reader in _readers():
        table.add_row(reader["name"], reader["reads"])
    readers = [name for name, e in EXPERIMENTS.items() if isinstance(e, ReadsData)]
    table.caption = f"gpvi run EXPERIMENT --data-dir DIR, for {', '.join(readers)}"
    console().print(table)


def _readers() -> list[dict[str, str]]:
    """Return the modules that read data, and what each reads."""
    from gpvi_paper import data

    readers = []
    for found in pkgutil.iter_modules(data.__path__):
        module = importlib.import_module(f"gpvi_paper.data.{found.name}")
        about = (module.__doc__ or "").partition("\n")[0]
        if about.startswith("Reads "):
            readers.append({"name": found.name, "reads": about.removeprefix("Reads ")})
    return readers


def _experiments_to_json() -> list[dict[str, Any]]:
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS, ReadsData

    return [
        {
            "name": name,
            "title": experiment.title,
            "source": experiment.source,
            "rows": {preset: len(experiment.recipes(preset)) for preset in PRESETS},
            "reads_data": isinstance(experiment, ReadsData),
        }
        for name, experiment in EXPERIMENTS.items()
    ]


def _rows_to_json(name: str) -> dict[str, Any]:
    """Return what an experiment is, and for each preset its rows as `--method` takes them."""
    from gpvi_paper.experiments import EXPERIMENTS, PRESETS
    from gpvi_paper.records import slug

    experiment = EXPERIMENTS[name]
    rows = {preset: [slug(label) for label in experiment.recipes(preset)] for preset in PRESETS}
    return {"title": experiment.title, "summary": experiment.summary, "rows": rows}


def _print_bench() -> None:
    table = new_table("benchmarks and their rows")
    table.add_column("gpvi bench\n[dim]--case[/dim]", no_wrap=True)
    table.add_column("what is measured")
    for case in _bench_rows():
        rows = "\n".join(f"[dim]{case['name']}/{row}[/dim]" for row in case["rows"])
        table.add_row(case["name"], f"{case['title']}\n{rows}".strip())
    console().print(table)


def _bench_rows() -> list[dict[str, Any]]:
    """Return each case of the bench with its rows, as `--case NAME/ROW` takes them; nothing is measured."""
    from gpvi_paper.bench import CASES, rows
    from gpvi_paper.records import slug

    return [
        {"name": name, "title": case.title, "rows": [slug(row) for row in rows(name)]}
        for name, case in CASES.items()
    ]


listing.SOURCES.append(_listings)
