"""Where data may lie, at or below the directory a user names."""

from collections.abc import Callable, Iterable
from pathlib import Path


def no_directory(root: Path) -> str:
    """Why the path is not a directory; empty if it is one."""
    if root.is_dir():
        return ""
    return "it is a file, not a directory" if root.exists() else "the directory does not exist"


def first(root: Path, folders: Iterable[str], holds: Callable[[Path], bool]) -> Path | None:
    """The first of the folders below the root that holds what is looked for."""
    return next((root / folder for folder in folders if holds(root / folder)), None)
