"""One process at a time in a directory.

The system keeps the lock and lets go of it when the process ends, however it ends: nothing goes stale.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpvi.errors import InputError

NAME = ".gpvi-lock"


@contextmanager
def held(directory: Path) -> Iterator[OSError | None]:
    """Hold a directory, which is made if need be; refused where another has it.

    Yields None, or the `OSError` that kept it from being locked: a directory that cannot be made or written to, a
    filesystem without locks.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _taken(directory / NAME)
    except OSError as error:
        yield error
        return
    try:
        yield None
    finally:
        with suppress(OSError):
            os.unlink(directory / NAME)  # while it is held: `_taken` looks again
        with suppress(OSError):
            os.close(descriptor)


def _taken(path: Path) -> int:
    """The descriptor of the file, locked; of the one that is still there, should its holder have removed it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if not _lock(descriptor):
                holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
                raise InputError(
                    f"{path.parent} is in use by another run, process {holder}. Wait for it, or name another directory."
                )
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    os.truncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    if os.name == "nt":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
