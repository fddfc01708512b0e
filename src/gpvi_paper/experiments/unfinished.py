"""Interrupted rows: their fits are saved during training, and the same row resumes from there.

A row makes its fits in a fixed order, so the number of a fit identifies it. A finished fit is restored at once from its
last save.
"""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_PLACES: ContextVar[Iterator[Path] | None] = ContextVar("places", default=None)
"""The directories of the next fits."""


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Fits in this context are saved below the directory, which is removed after success."""
    before = _PLACES.set(directory / f"fit-{number}" for number in itertools.count())
    try:
        yield
    finally:
        _PLACES.reset(before)
    shutil.rmtree(directory, ignore_errors=True)


def next_place() -> Path | None:
    """The `checkpoint` of the next fit; None outside such a context."""
    places = _PLACES.get()
    return None if places is None else next(places)
