r"""Reads MNIST (LeCun, Cortes and Burges) from its four IDX files, gzipped or plain.

An IDX file is two zero bytes, a code of the type (8: unsigned bytes), the number of axes, the length of each axis as a
big-endian 32-bit number, and the values. The lengths are checked against the size of the file; a gzipped file is
unpacked only up to the length they give.
"""

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from gpvi.errors import InputError, StorageError
from gpvi_paper.data.images import CLASSES, Images
from gpvi_paper.data.paths import no_directory

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FOLDERS = (".", "mnist", "MNIST", "MNIST/raw", "raw")
"""Where below the given directory the files may lie."""
LARGEST = 64 * 2**20
"""The largest file of MNIST unpacks to 47 million bytes."""
_UNSIGNED_BYTES = 8
_REMEDY = "Fetch the file again, or omit --data-dir to download it."


def read(directory: str | os.PathLike[str]) -> Images:
    """The training and the test set, with one channel."""
    root = find(directory)
    paths = [_path(root, name) for name in FILES]
    train, test = _images(paths[0]), _images(paths[2])
    train_labels, test_labels = _labels(paths[1], len(train)), _labels(paths[3], len(test))
    if train.shape[1:] != test.shape[1:]:
        raise StorageError(
            f"{paths[2]} has images of {test.shape[1:3]}, the training set of {train.shape[1:3]}. {_REMEDY}"
        )
    return Images(train, train_labels, test, test_labels)


def find(directory: str | os.PathLike[str]) -> Path:
    """The directory of the four files, at or below the given one."""
    root = Path(directory)
    for folder in FOLDERS:
        if all(_path(root / folder, name).is_file() for name in FILES):
            return root / folder
    missing = [name for name in FILES if not _path(root, name).is_file()]
    there = no_directory(root) or f"{missing[0]}[.gz] is missing"
    raise InputError(
        f"MNIST is not in {root}: {there}. Put the four files {', '.join(FILES)} (or .gz) there, or omit --data-dir "
        "to download them."
    )


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The array of an IDX file of bytes."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                return _array(stream, path, None)
        with path.open("rb") as stream:
            return _array(stream, path, os.fstat(stream.fileno()).st_size)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _damaged(path, f"it does not unpack ({error})") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error


def _array(stream: io.BufferedIOBase, path: Path, size: int | None) -> np.ndarray:
    start = stream.read(4)
    if (
        len(start) < 4
        or start[:2] != b"\0\0"
        or start[2] != _UNSIGNED_BYTES
        or not 1 <= start[3] <= 3
    ):
        raise _damaged(
            path, f"it begins with {start.hex() or 'nothing'}, unlike an IDX file of bytes"
        )
    axes = start[3]
    header = stream.read(4 * axes)
    if len(header) < 4 * axes:
        raise _damaged(path, f"it ends within its header of {axes} axes")
    shape = struct.unpack(f">{axes}I", header)
    promised = math.prod(shape)
    if not 0 < promised <= LARGEST:
        raise _damaged(path, f"its header promises {promised:,} bytes, not 1 to {LARGEST:,}")
    if size is not None and size != 4 + 4 * axes + promised:
        raise _damaged(
            path, f"its header promises {promised:,} values for a file of {size:,} bytes"
        )
    values = stream.read(promised + 1)
    if len(values) != promised:
        more = "more" if len(values) > promised else f"{len(values):,}"
        raise _damaged(path, f"its header promises {promised:,} values and there are {more}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _images(path: Path) -> UInt8[np.ndarray, "n h w 1"]:
    found = read_idx(path)
    if found.ndim != 3:
        raise _damaged(path, f"it holds an array of shape {found.shape}, not images")
    return found[..., None]


def _labels(path: Path, images: int) -> Int[np.ndarray, " n"]:
    found = read_idx(path)
    if found.shape != (images,):
        raise _damaged(path, f"it holds an array of shape {found.shape} for {images} images")
    if found.max() >= CLASSES:
        raise _damaged(path, f"it has the label {found.max()}; they go from 0 to 9")
    return found.astype(np.int32)


def _path(root: Path, name: str) -> Path:
    zipped = root / f"{name}.gz"
    return zipped if zipped.is_file() else root / name


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} is damaged: {why}. {_REMEDY}")
