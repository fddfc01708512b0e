"""The command `gpvi`: `gpvi fit`, and the commands that installed packages add by the entry point `gpvi.commands`.

May import: everything. Start reading at `app.py`, then `fitting.py`.
"""

from importlib.metadata import entry_points

from gpvi.cli import fitting  # noqa: F401
from gpvi.cli.app import app as app


def main() -> None:
    """The entry point."""
    for command in entry_points(group="gpvi.commands"):
        command.load()
    app(prog_name="gpvi")
