r"""Reads MNIST (LeCun, Cortes and Burges) from its four IDX files, gzipped or plain.

An IDX file is two zero bytes, a code of the type (8: unsigned bytes), the number of axes, the length of each axis as a
big-endian 32-bit number, and the values. The lengths must agree with the size of the file.
"""

import math
import os
import struct
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from gpvi.persistence import untrusted
from gpvi_paper.data.files import located, reading
from gpvi_paper.data.images import Images, require_classes

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
_UNSIGNED_BYTES = b"\0\0\x08"
_REMEDY = "Fetch the file again, or omit --data-dir to download it."


def read(directory: str | os.PathLike[str]) -> Images:
    """The training and the test set, with one channel."""
    root = find(directory)
    paths = [_path(root, name) for name in FILES]
    train, test = _images(paths[0]), _images(paths[2])
    train_labels, test_labels = _labels(paths[1], len(train)), _labels(paths[3], len(test))
    with reading(paths[2], _REMEDY):
        if train.shape[1:] != test.shape[1:]:
            sizes = test.shape[1:3], train.shape[1:3]
            raise ValueError(f"it has images of {sizes[0]}, the training set of {sizes[1]}")
    return Images(train, train_labels, test, test_labels)


def find(directory: str | os.PathLike[str]) -> Path:
    """The directory of the four files, at or below the given one."""
    root = Path(directory)

    def missing() -> str:
        absent = next(name for name in FILES if not _path(root, name).is_file())
        return f"{absent}[.gz] is missing"

    return located(
        "MNIST is",
        [root / folder for folder in FOLDERS],
        lambda place: all(_path(place, name).is_file() for name in FILES),
        root,
        missing,
        f"Put the four files {', '.join(FILES)} (or .gz) there, or omit --data-dir to download them.",
    )


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The array of an IDX file of bytes."""
    with reading(path, _REMEDY):
        content = untrusted.content(path, LARGEST)
        axes = content[3] if len(content) > 3 else 0
        if not content.startswith(_UNSIGNED_BYTES) or not 1 <= axes <= 3:
            begins = content[:4].hex() or "nothing"
            raise ValueError(f"it begins with {begins}, unlike an IDX file of bytes")
        header = 4 + 4 * axes
        if len(content) < header:
            raise ValueError(f"it ends within its header of {axes} axes")
        shape = struct.unpack_from(f">{axes}I", content, 4)
        promised, values = math.prod(shape), len(content) - header
        if promised != values or not values:
            raise ValueError(f"its header promises {promised:,} values and it has {values:,}")
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _images(path: Path) -> UInt8[np.ndarray, "n h w 1"]:
    images = read_idx(path)
    with reading(path, _REMEDY):
        if images.ndim != 3:
            raise ValueError(f"it holds an array of shape {images.shape}, not images")
    return images[..., None]


def _labels(path: Path, images: int) -> Int[np.ndarray, " n"]:
    labels = read_idx(path)
    with reading(path, _REMEDY):
        if labels.shape != (images,):
            raise ValueError(f"it holds an array of shape {labels.shape} for {images} images")
        labels = labels.astype(np.int32)
        require_classes(labels)
    return labels


def _path(root: Path, name: str) -> Path:
    zipped = root / f"{name}.gz"
    return zipped if zipped.is_file() else root / name
