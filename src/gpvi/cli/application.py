"""What all commands share: the application, its options, how it reports errors, and its progress bar.

A command is a function decorated with `@app.command()`. It raises a `gpvi.errors.GPVIError` for what the user can
correct: the application prints the message in one line and exits with code 2.
"""

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpvi.errors import GPVIError, InputError
from gpvi.progress import LineMeter

if TYPE_CHECKING:
    from rich.console import Console

ALONE = ("--install-completion", "--show-completion")
"""Options that detect the shell themselves. Typer would silently ignore an argument after them."""


class Commands(TyperGroup):
    """The group of all commands; it turns errors into one line on standard error and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command and exit with its code: 0, 2 for an error, 130 after Ctrl-C, 143 after SIGTERM."""
        words = sys.argv[1:] if args is None else list(args)
        options["standalone_mode"] = False
        _escape_unprintable()
        try:
            others = [word for word in words if word != "--debug"]
            _refuse_shell_name(others)
            code = super().main(others, *rest, **options)
        except Exception as error:
            if "--debug" in words:
                raise
            if message := _message(error, self._command(words)):
                complain(message)
            code = 2
        sys.exit(code if isinstance(code, int) else 0)

    def _command(self, words: Sequence[str]) -> str:
        """Return the command that was called, without its arguments."""
        return " ".join(["gpvi", *(word for word in words[:1] if word in self.commands)])


def _refuse_shell_name(words: Sequence[str]) -> None:
    """Raise an error if the name of a shell follows an option that detects the shell itself."""
    if len(words) > 1 and words[0] in ALONE:
        raise InputError(
            f"{words[0]} is followed by {words[1]!r}, but takes no argument: it applies to the shell it is called from."
        )


def _escape_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as escape sequences, instead of failing."""
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
"""Its empty metavar keeps the help from showing a value: a switch takes none."""


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
    """Handle the options before the command."""


class Bar(LineMeter):
    """A line on standard error with the time left. It is removed when the work is done.

    Parameters
    ----------
    prefix
        Text before the label, such as the number of the job.
    """

    def __init__(self, prefix: str = ""):
        super().__init__(prefix, keep=False)


def console() -> "Console":
    """Return a console on standard output, in colour if the terminal supports it."""
    from rich.console import Console

    return Console()


def wrapped(text: str) -> str:
    """Return text whose lines are broken between words where the screen ends; those of a table in a column."""
    width = shutil.get_terminal_size().columns
    return "\n".join(_wrapped(line, width) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    columns = [match.end() for match in re.finditer(r"\S {2,}(?=\S)", line)]
    indent = " " * max((column for column in columns if column <= 0.6 * width), default=0)
    return textwrap.fill(
        line,
        max(width, 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def complain(message: str) -> None:
    """Print a message on standard error, in one line that begins with `gpvi:`."""
    typer.echo(f"gpvi: {' '.join(message.split())}", err=True)


def _message(error: Exception, command: str) -> str:
    """Return what went wrong and what to do about it; nothing if the help was shown instead."""
    if isinstance(error, GPVIError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Check the paths given."
    usage_message = getattr(error, "format_message", None)  # of an error by Click
    if usage_message is not None:
        text = usage_message().rstrip(".")
        return text and f"{text} (see {command} --help)."
    return (
        f"unexpected {type(error).__name__}: {error}. Run it again with --debug for the traceback."
    )
