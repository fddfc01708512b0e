"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpvi.errors import StorageError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path` once all of it is on the disk; nothing is left of a write that fails."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()


def prepare(directory: str | os.PathLike[str]) -> None:
    """Make the directory, and refuse one that cannot be written to before anything is run for it."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error


def try_out(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory that cannot be written to, and leave nothing behind."""
    folder = Path(directory)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    prepare(folder)
    for place in made:
        with suppress(OSError):
            place.rmdir()


def unwritable(folder: Path, error: OSError) -> StorageError:
    """The error for a directory that cannot be written to."""
    return StorageError(
        f"nothing can be written to {folder}: {error.strerror}. Choose another --out directory."
    )
