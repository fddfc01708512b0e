"""`gpvi report`: one page from the records of experiments."""

from pathlib import Path
from typing import Annotated

import typer

from gpvi.cli.application import Bar, Out, app, complain
from gpvi.errors import StorageError, require_extra
from gpvi.persistence.writing import check_writable


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Directories or files that gpvi run wrote."),
    ],
    out: Out = Path("report"),
) -> None:
    """Make one self-contained HTML page from records.

    If a row has several records the newest is shown. Damaged records are named and skipped.
    """
    require_extra("plots", "matplotlib", "gpvi report")
    from gpvi_paper import records
    from gpvi_paper.report import write

    found = records.search(runs, progress=Bar())
    for what in found.damaged:
        complain(what)
    if not found.records:
        raise StorageError(f"there is no readable record in {', '.join(map(str, runs))}.")
    check_writable(out)
    typer.echo(write(found.records, out, unread=len(found.damaged), progress=Bar()))
