"""A lock on a directory: one process at a time may use it.

The operating system holds the lock and releases it when the process ends, however it ends, so a lock never goes stale.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpvi.errors import InputError

NAME = ".gpvi-lock"


@contextmanager
def locked(directory: Path) -> Iterator[OSError | None]:
    """Lock a directory, which is created if it is missing; raise `InputError` if another process has locked it.

    Yields None, or the `OSError` for which the directory is not locked: it cannot be created or written to, or its
    filesystem has no locks. The caller decides what to do then.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(directory / NAME)
    except OSError as error:
        yield error
        return
    try:
        yield None
    finally:
        with suppress(OSError):
            os.unlink(directory / NAME)  # before the lock is released: `_acquire` checks for this
        with suppress(OSError):
            os.close(descriptor)


def _acquire(path: Path) -> int:
    """Open and lock the file, and return its descriptor.

    Between the two another process may remove the file and release its lock. The lock would then be on a file that
    nobody else can find, so the file is opened again until the locked one is the one at `path`.
    """
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
    """Lock an open file; return False if another process has locked it."""
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
