"""What the readers share: where data may lie below a user's directory, and errors that name a file and a remedy."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpvi.errors import InputError, StorageError


def located(
    what: str,
    places: Iterable[Path],
    holds: Callable[[Path], bool],
    root: Path,
    missing: Callable[[], str],
    remedy: str,
) -> Path:
    """The first place that holds the data; otherwise an error that says what is missing at the root."""
    for place in places:
        if holds(place):
            return place
    if not root.exists():
        why = "the directory does not exist"
    elif not root.is_dir():
        why = "it is a file, not a directory"
    else:
        why = missing()
    raise InputError(f"{what} not in {root}: {why}. {remedy}")


@contextmanager
def reading(path: Path, remedy: str, *further: type[Exception]) -> Iterator[None]:
    """Turn errors of reading a file, `ValueError` and `further` ones, into errors that name it and the remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. {remedy}") from error
    except (ValueError, *further) as error:
        why = str(error).rstrip(".")[:200]
        raise StorageError(f"{path} is damaged: {why}. {remedy}") from error
