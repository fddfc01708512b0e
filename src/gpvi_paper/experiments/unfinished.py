"""Interrupted rows: their fits are saved during training, and the same row resumes from there.

A row makes its fits in a fixed order, so the number of a fit identifies it. A finished fit is restored from its last
save at once.
"""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple


class _Row(NamedTuple):
    directory: Path
    numbers: Iterator[int]


_ROW: ContextVar[_Row | None] = ContextVar("row", default=None)


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Fits in this context are saved below the directory, which is removed after success."""
    before = _ROW.set(_Row(directory, itertools.count()))
    try:
        yield
    finally:
        _ROW.reset(before)
    shutil.rmtree(directory, ignore_errors=True)


def next_place() -> Path | None:
    """The `checkpoint` of the next fit; None outside such a context."""
    row = _ROW.get()
    return None if row is None else row.directory / f"fit-{next(row.numbers)}"
