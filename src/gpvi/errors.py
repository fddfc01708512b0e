"""Errors and warnings of this library, by what the caller can do about them."""

import difflib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GPVIError(Exception):
    """Base of every error this library raises on purpose."""


class InputError(GPVIError, ValueError):
    """An argument cannot be used; the message holds the value, the reason and the remedy."""


class UnknownOptionError(InputError, TypeError):
    """An option or one of its values does not exist; the nearest valid name is given."""

    def __init__(self, kind: str, value: object, valid: Iterable[str]):
        names = sorted(valid)
        near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {value!r}. {hint}Valid: {', '.join(names) or 'none'}.")


class OtherRunError(InputError):
    """A directory holds the checkpoints of another run than the one that is to go on."""


class NotAvailableError(GPVIError):
    """A method was asked for something it cannot give; the message names what can."""


class DivergenceError(GPVIError):
    """The very first steps were not finite, so there is no good state to return."""


class StorageError(GPVIError):
    """A file or directory cannot be read or written, or is damaged, foreign or of a newer format."""


class ReliabilityWarning(UserWarning):
    """A result is returned that should not be relied on."""


class TrainingWarning(UserWarning):
    """Training went on or stopped in a way the user should know of."""


_BETWEEN = {"gpvi", "gpvi_paper", "contextlib", "jaxtyping", "beartype"}
"""The library, and what may stand between two of its functions: a `with`, and checks of types."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the nearest caller outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame.f_globals.get("__name__")) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings of training, where its notes are shown or kept otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        yield


def require_extra(extra: str, package: str, purpose: str) -> None:
    """Raise `NotAvailableError` unless an optional package is installed.

    Parameters
    ----------
    extra
        The extra of this distribution that installs the package.
    package
        The name by which the package is imported.
    purpose
        What needs it, as the subject of the message.
    """
    if importlib.util.find_spec(package) is None:
        raise NotAvailableError(
            f"{purpose} needs {package}, which is not installed: pip install 'gpvi[{extra}]'."
        )
