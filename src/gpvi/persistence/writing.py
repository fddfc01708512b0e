"""Files that appear complete or not at all, and directories that can be written to."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpvi.errors import StorageError

TEMPORARY = re.compile(r"\.gpvi-[0-9a-f]{16}\.tmp")
"""Names of files that are still being written."""


def temporary_sibling(path: Path) -> Path:
    """Return a new temporary name in the directory of `path`."""
    return path.with_name(f".gpvi-{secrets.token_hex(8)}.tmp")


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    if os.name == "nt":  # no such call for directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path; what the body writes there replaces `path` at the end, or vanishes if the body fails."""
    part = temporary_sibling(path)
    try:
        yield part
        sync(part)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()


def make_writable(directory: str | os.PathLike[str]) -> None:
    """Create the directory; raise `StorageError` now, before any work, if it cannot be written to."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error


def check_writable(directory: str | os.PathLike[str]) -> None:
    """Raise `StorageError` if the directory could not be created or written to, and leave nothing behind."""
    folder = Path(directory)
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    make_writable(folder)
    for place in created:
        with suppress(OSError):
            place.rmdir()


def unwritable(folder: Path, error: OSError) -> StorageError:
    """Return the error for a directory that cannot be written to."""
    return StorageError(
        f"nothing can be written to {folder}: {error.strerror}. Choose another --out directory."
    )
