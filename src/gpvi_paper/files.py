"""Files that this package writes: a reader sees the old content or the new one, never a part of it."""

from pathlib import Path

from gpvi.errors import StorageError
from gpvi.persistence.writing import atomic


def write_file(path: Path, content: str | bytes, what: str) -> None:
    """Write a file atomically, and make its directory if there is none.

    Parameters
    ----------
    path
        The file.
    content
        Text, which is written as UTF-8, or bytes.
    what
        What is written, as the subject of an error message.

    Raises
    ------
    gpvi.errors.StorageError
        If the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise StorageError(
            f"{what} cannot be written to {path}: {error.strerror}. Choose another --out directory."
        ) from error
