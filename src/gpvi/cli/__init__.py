"""The command `gpvi`: `gpvi fit`, `gpvi list`, and the commands that installed packages add.

A package adds commands by an entry point in the group `gpvi.commands`: a module that registers them with
`gpvi.cli.application.app` when it is imported. The commands need the extra `gpvi[cli]`.

May import: everything. Start reading at `application.py`, then `fit.py`.
"""

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from gpvi.errors import NotAvailableError, require_extra

if TYPE_CHECKING:
    from typer import Typer

GROUP = "gpvi.commands"


def main() -> None:
    """Run the command line of this process: the console script `gpvi`, and `python -m gpvi`."""
    try:
        app = load_app()
    except NotAvailableError as error:
        sys.exit(f"gpvi: {error}")
    app(prog_name="gpvi")


def load_app() -> "Typer":
    """Return the application with the commands of this library and of all installed packages.

    A package whose commands cannot be imported is named on standard error; the other commands work without it.
    """
    for package in ("typer", "rich"):
        require_extra("cli", package, "the command line")
    from gpvi.cli import fit, listing  # noqa: F401
    from gpvi.cli.application import app, complain

    for commands in entry_points(group=GROUP):
        try:
            commands.load()
        except Exception as error:
            complain(
                f"the commands of {commands.value} are missing: {type(error).__name__}: {error}."
            )
    return app
