"""What all commands share: the application, its errors, and its progress bar."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpvi.errors import GPVIError, InputError

if TYPE_CHECKING:
    from rich.console import Console

ALONE = ("--install-completion", "--show-completion")
"""Options that detect the shell themselves; Typer ignores any argument after them."""


class Commands(TyperGroup):
    """Turns errors into one line on standard error and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command; 2 for errors, 130 for Ctrl-C, 143 for SIGTERM."""
        words = sys.argv[1:] if args is None else list(args)
        options["standalone_mode"] = False
        _escape_what_cannot_be_shown()
        try:
            others = [word for word in words if word != "--debug"]
            _check_alone(others)
            code = super().main(others, *rest, **options)
        except Exception as error:
            if "--debug" in words:
                raise
            if message := _in_words(error, self._place(words)):
                complain(message)
            code = 2
        sys.exit(code if isinstance(code, int) else 0)

    def _place(self, words: Sequence[str]) -> str:
        """The command that was called, to name in messages."""
        return " ".join(["gpvi", *(word for word in words[:1] if word in self.commands)])


def _check_alone(words: Sequence[str]) -> None:
    """Refuse a shell name after an option that detects the shell itself."""
    if len(words) > 1 and words[0] in ALONE:
        raise InputError(
            f"{words[0]} is followed by {words[1]!r}, but takes no argument: it applies to the shell it is called from."
        )


def _escape_what_cannot_be_shown() -> None:
    """Escape undecodable names and characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


app = typer.Typer(
    name="gpvi",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train neural samplers of a posterior, repeat the paper's experiments, and report them.",
    epilog="[dim]--debug anywhere shows the full traceback of an error.[/dim]",
)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory.")]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print only JSON.")]
"""An empty metavar: a switch takes no value."""
SEEDS = 2**32
"""Seeds are the integers below; JAX would reduce larger ones modulo this."""


def _version(wanted: bool) -> bool:
    if wanted:
        import gpvi

        typer.echo(f"gpvi {gpvi.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


class Bar:
    """A bar on standard error with the time left, removed when the work is done."""

    def __init__(self, place: str = ""):
        self._place = place

    def start(self, total: int, label: str) -> None:
        """Open the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} % {task.fields[message]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(
            f"{self._place} {label}".strip(), total=total, message="compiling"
        )

    def update(self, done: int, message: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, message=message)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def console() -> "Console":
    """Standard output, in colour if supported."""
    from rich.console import Console

    return Console()


def complain(message: str) -> None:
    """One line on standard error."""
    typer.echo(f"gpvi: {' '.join(message.split())}", err=True)


def _in_words(error: Exception, place: str) -> str:
    """What went wrong and what to do, in a sentence or two; empty if help was shown instead."""
    if isinstance(error, GPVIError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Check the paths given."
    misuse = getattr(error, "format_message", None)
    if misuse is not None:
        said = misuse().rstrip(".")
        return said and f"{said} (see {place} --help)."
    return (
        f"unexpected {type(error).__name__}: {error}. Run it again with --debug for the traceback."
    )
