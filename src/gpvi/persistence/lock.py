"""A lock on a directory: one process at a time may use it.

The operating system holds the lock and releases it when the process ends, however it ends, so a lock never goes stale.
Two things are locked: the directory itself, where the filesystem can do that, so that nothing inside it can be removed
to get past the lock; and a file in it, which says which process it is. A child made by fork does not inherit the lock.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpvi.errors import InputError

NAME = ".gpvi-lock"

_held: set[int] = set()
"""Descriptors of the locks of this process."""


@contextmanager
def locked(directory: Path) -> Iterator[OSError | None]:
    """Lock a directory, which is created if it is missing; raise `InputError` if another process has locked it.

    Yields None, or the `OSError` for which the directory is not locked: it cannot be created or written to, or its
    filesystem has no locks. The caller decides what to do then.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        itself = _acquire_directory(directory)
        try:
            descriptor = _acquire(directory / NAME)
        except BaseException:
            _release(itself)
            raise
    except OSError as error:
        yield error
        return
    _held.update((itself, descriptor))
    owner = os.getpid()
    try:
        yield None
    finally:
        if os.getpid() == owner:  # a forked child has given the lock up already
            _remove(directory / NAME, descriptor)  # before the lock is released: `_acquire` checks
            _release(descriptor)
            _release(itself)


def _acquire(path: Path) -> int:
    """Open and lock the file, and return its descriptor.

    Between the two another process may remove the file and release its lock. The lock would then be on a file that
    nobody else can find, so the file is opened again until the locked one is the one at `path`.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if not _lock(descriptor):
                raise _in_use(path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    os.truncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _acquire_directory(directory: Path) -> int:
    """Lock the directory itself, and return its descriptor; −1 where directories cannot be locked."""
    if os.name == "nt":
        return -1
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # it may be written to, but not listed
        return -1
    try:
        if not _lock(descriptor):
            raise _in_use(directory / NAME)
    except OSError:  # the filesystem has no such locks: the file must do
        os.close(descriptor)
        return -1
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in_use(path: Path) -> InputError:
    """Return the error for a lock that another process holds; the file at `path` says which."""
    holder = "unknown"
    with suppress(OSError, ValueError):
        holder = str(int(path.read_bytes()[:20]))
    return InputError(
        f"{path.parent} is in use by another run, process {holder}. Wait for it, or name another directory."
    )


def _remove(path: Path, descriptor: int) -> None:
    """Remove the lock file, if it is still ours."""
    with suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            os.unlink(path)


def _release(descriptor: int) -> None:
    _held.discard(descriptor)
    with suppress(OSError):
        os.close(descriptor)


def _release_in_child() -> None:
    """Close the locks that a fork has copied: the child would keep them after its parent's death."""
    for descriptor in tuple(_held):
        _release(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


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
