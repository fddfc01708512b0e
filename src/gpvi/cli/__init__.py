"""The command line: `gpvi list`, `run`, `report`, `demo` and `fit`."""

from gpvi.cli import fitting, listing, running  # noqa: F401
from gpvi.cli.app import app as app


def main() -> None:
    """The entry point."""
    app(prog_name="gpvi")
