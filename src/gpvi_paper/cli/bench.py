"""`gpvi bench`: measure the speed of the library, as ratios within one run."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpvi.cli.application import AsJson, Out, app, complain, console
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError, require_extra
from gpvi.persistence.writing import check_writable

if TYPE_CHECKING:
    from gpvi_paper.bench import Result


def _names() -> list[str]:
    from gpvi_paper.bench import CASES

    return list(CASES)


@app.command()
def bench(
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="NAME[/ROW]",
            help="A case, such as svgd, or a row of it, such as steps-classes/pathwise; default all. May be repeated.",
            autocompletion=_names,
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", metavar="", help="Also time NumPyro, BlackJAX and FlowJAX."),
    ] = False,
    out: Out = Path("bench"),
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Tiny sizes, to check that everything runs.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Time budget for one comparison.")
    ] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Time training steps, draws and predictions; contenders take turns in one process, compilation is separate.

    Results are written as they come to bench.json, and to bench.png at the end. The first result replaces the files of
    an earlier run.
    """
    from gpvi_paper.bench import CASES, Report, Setting, measure
    from gpvi_paper.bench.chart import chart
    from gpvi_paper.bench.results import FILE

    require_extra("plots", "matplotlib", "gpvi bench")
    if not 0 <= seconds < math.inf:
        raise InputError(f"--seconds is {seconds:g}; give 0 or more.")
    wanted = _wanted(cases or [], list(CASES))
    check_writable(out)
    report, path = Report.begin(" ".join(["gpvi", *sys.argv[1:]])), out / FILE
    try:
        for name, rows in wanted.items():
            setting = Setting(name, quick, peers, seconds, rows)
            if not as_json:
                console().print(f"\n[bold]{name}[/bold]: {CASES[name].title}", highlight=False)
            try:
                for result in measure(setting):
                    report.results.append(result)
                    report.write(out)
                    if not as_json:
                        _print_result(result)
            except NotAvailableError as error:
                complain(f"{name}: {error}")
            else:
                _complain_of_missing(name, rows - setting.matched)
    except KeyboardInterrupt:
        kept = f"{len(report.results)} results kept in {path}"
        complain(f"interrupted: {kept if report.results else 'nothing was finished'}.")
        raise typer.Exit(130) from None
    if not report.results:
        raise typer.Exit(2)
    picture = chart(report.results, out)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        typer.echo("")
        for written in (path, *([picture] if picture else [])):
            typer.echo(written)


def _wanted(asked: list[str], known: list[str]) -> dict[str, frozenset[str]]:
    """Return the requested rows of each requested case; an empty set stands for all rows."""
    from gpvi_paper.records import slug

    if not asked:
        return dict.fromkeys(known, frozenset())
    rows_by_case: dict[str, set[str]] = {}
    for each in asked:
        name, _, row = each.partition("/")
        if name not in known:
            raise UnknownOptionError("case", name, known)
        rows_by_case.setdefault(name, set()).update([slug(row)] if row else [])
    return {
        name: frozenset() if name in asked else frozenset(rows)
        for name, rows in rows_by_case.items()
    }


def _complain_of_missing(name: str, rows: frozenset[str]) -> None:
    """Say which requested rows a case does not have. Its rows are known only after it has run."""
    for row in sorted(rows):
        complain(f"{name} has no row {row!r}; --case {name} shows its rows.")


def _print_result(result: "Result") -> None:
    """Print one line: the values of the result, then its ratio."""
    ratio = result.values.get("ratio")
    beside = "" if ratio is None else f"[bold]{ratio:8.3g}×[/bold] {result.against}"
    values = "  ".join(
        f"{name} {value:,.4g}" for name, value in result.values.items() if name != "ratio"
    )
    console().print(
        f"  {result.row:<32} {result.contender:<34} {values}  {beside}",
        highlight=False,
        soft_wrap=True,
    )
