"""Rows that were interrupted: their fits are saved as they go, and the same row goes on from there.

A row makes its fits in one order, so the number of a fit names it. A fit that was finished comes back from its last
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
    """The fits within are saved below the directory, which is removed once all has gone well."""
    before = _ROW.set(_Row(directory, itertools.count()))
    try:
        yield
    finally:
        _ROW.reset(before)
    shutil.rmtree(directory, ignore_errors=True)


def next_place() -> Path | None:
    """The `checkpoint` of the next fit; None where nobody asked for any."""
    row = _ROW.get()
    return None if row is None else row.directory / f"fit-{next(row.numbers)}"
