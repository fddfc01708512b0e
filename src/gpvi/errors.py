"""Errors and warnings of this library, grouped by what the caller can do about them.

Every message says what is wrong, why, and what to do.
"""

import difflib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GPVIError(Exception):
    """Base class of every error that this library raises on purpose.

    Examples
    --------
    >>> try:
    ...     gpvi.Target(lambda x: -x @ x, dim=0)
    ... except gpvi.errors.GPVIError as error:
    ...     print(error)
    dim is 0; it must be a whole number ≥ 1.
    """


class InputError(GPVIError, ValueError):
    """An argument cannot be used.

    It is also a `ValueError`. The message contains the value, the reason and the remedy.

    Examples
    --------
    >>> gpvi.Target(lambda x: -x @ x, dim=2, temperature=-1)
    Traceback (most recent call last):
    gpvi.errors.InputError: temperature is -1; it must be finite and > 0 (1 is the posterior).
    """


def brief(value: object) -> str:
    """Return any object in one line of at most 80 characters, for a message.

    Parameters
    ----------
    value
        The object.

    Returns
    -------
    str
        Its representation; of a long one the beginning and the end.
    """
    try:
        shown = repr(value)
    except Exception:  # of the user's class, or of an integer with more digits than Python prints
        shown = f"<{type(value).__name__}>"
    line = " ".join(shown.split())
    return line if len(line) <= 80 else f"{line[:40]}…{line[-39:]}"


class UnknownOptionError(InputError, TypeError):
    """An option, or a value of an option, does not exist.

    It is also a `TypeError`. The message suggests the nearest valid name.

    Parameters
    ----------
    kind
        What was looked up, such as "kernel".
    value
        The unknown name.
    valid
        The valid names.

    Examples
    --------
    >>> print(gpvi.errors.UnknownOptionError("init", "laplce", ["auto", "laplace"]))
    unknown init 'laplce'. Did you mean 'laplace'? Valid: auto, laplace.
    """

    def __init__(self, kind: str, value: object, valid: Iterable[str]):
        names = sorted(valid)
        given = value[:80] if isinstance(value, str) else ""
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        super().__init__(
            f"unknown {kind} {brief(value)}. {hint}Valid: {', '.join(names) or 'none'}."
        )


class OtherRunError(InputError):
    """The checkpoint directory belongs to another run than the one that should continue.

    Use another directory, or repeat the call that made the checkpoints.

    Examples
    --------
    >>> issubclass(gpvi.errors.OtherRunError, gpvi.errors.InputError)
    True
    """


class NotAvailableError(GPVIError):
    """A method was asked for something that it cannot provide, or an optional library is missing.

    The message names what does provide it.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -x @ x, dim=2)
    >>> target.local_log_density(jnp.zeros(2), jnp.ones(2), None, key=key)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpvi.errors.NotAvailableError: this target's log-likelihood cannot use a separate draw for each datum. Use ...
    """


class DivergenceError(GPVIError):
    """The first training steps were not finite, so that there is no good state to return.

    Lower the learning rate, start elsewhere, or look at `gpvi.Target.debug`.

    Examples
    --------
    >>> issubclass(gpvi.errors.DivergenceError, gpvi.errors.GPVIError)
    True
    """


class StorageError(GPVIError):
    """A file or directory cannot be read or written, is damaged, or has a foreign or newer format.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     try:
    ...         gpvi.load(directory)
    ...     except gpvi.errors.StorageError:
    ...         print("no posterior in this directory")
    no posterior in this directory
    """


class ReliabilityWarning(UserWarning):
    """A result was returned that should not be relied on.

    Examples
    --------
    Turn it into an error, for instance in a pipeline:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", gpvi.errors.ReliabilityWarning)
    """


class TrainingWarning(UserWarning):
    """Training continued or stopped in a way that the user should know of, such as an interruption.

    Examples
    --------
    Ignore it where the result is looked at anyway:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", gpvi.errors.TrainingWarning)
    """


_INTERNAL = {"gpvi", "gpvi_paper", "contextlib", "jaxtyping", "beartype"}
"""Packages to which no warning points: the library, and what may be called between two of its functions."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the nearest caller outside the library.

    Parameters
    ----------
    message
        The text.
    category
        The class of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame.f_globals.get("__name__")) in _INTERNAL:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


@contextmanager
def quietly() -> Iterator[None]:
    """A context that suppresses `TrainingWarning`, for callers that show or record its message themselves.

    Examples
    --------
    >>> with gpvi.errors.quietly():
    ...     gpvi.errors.warn("stopped early", gpvi.errors.TrainingWarning)
    """
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
