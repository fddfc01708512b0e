"""The command line: `gpvi list`, `run`, `report`, `demo`, `fit` and `bench`."""

from gpvi.cli import benching, fitting, listing, running  # noqa: F401
from gpvi.cli.app import app as app


def main() -> None:
    """The entry point."""
    app(prog_name="gpvi")
