r"""Reads CIFAR-10 (Krizhevsky 2009), binary or python version: an unpacked directory, or the archive as published.

A record is a byte with the label and 3 × 32 × 32 bytes, the planes red, green and blue. The python version holds the
same numbers as pickles, which `gpvi_paper.data.cifar10_python` takes apart without running them. A file
`cifar-10-test-exact.npy` beside the data, one boolean per test image, says which of them to use; a copy assembled from
other sources may contain doubtful ones.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

from gpvi.errors import InputError, StorageError
from gpvi.persistence import untrusted
from gpvi_paper.data import cifar10_python
from gpvi_paper.data.images import CLASSES, Images
from gpvi_paper.data.paths import no_directory

SIDE, CHANNELS = 32, 3
IMAGE = CHANNELS * SIDE * SIDE
RECORD = 1 + IMAGE
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"


class Version(NamedTuple):
    """One of the two forms in which the set is published."""

    folder: str
    archive: str
    suffix: str

    @property
    def files(self) -> dict[str, str]:
        """The six batches and the names of their files."""
        return {name: f"{name}{self.suffix}" for name in (*TRAIN, TEST)}


BINARY = Version("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin")
PYTHON = Version("cifar-10-batches-py", "cifar-10-python.tar.gz", "")
EXACT = "cifar-10-test-exact.npy"
LARGEST = 10_000 * RECORD + 2**19
"""The size of each of the six published files, and room for what the python version says beside the images."""
LARGEST_ARCHIVE = 6 * LARGEST + 2**20
"""The six files, and room for their headers and a word about them."""
_TAR_BLOCK = 512
_LARGEST_EXACT = 2**20
_REMEDY = f"Fetch {BINARY.archive} again, or omit --data-dir to download it."


def read(directory: str | os.PathLike[str]) -> Images:
    """The training set, and the test images that are known to be exact."""
    root = Path(directory)
    source, version = _found(root)
    files = _unpacked(source, version) if source.is_file() else _plain(source, version)
    batches = {
        name: _batch(source / version.files[name], content, version)
        for name, content in files.items()
    }
    images = Images(
        np.concatenate([batches[name][0] for name in TRAIN]),
        np.concatenate([batches[name][1] for name in TRAIN]),
        *batches[TEST],
    )
    exact = next((p for p in (root / EXACT, root.parent / EXACT) if p.is_file()), None)
    return images if exact is None else images.testing_on(_exact(exact, len(images.test)))


def find(directory: str | os.PathLike[str]) -> Path:
    """The directory of the six files, or the archive, at or below the given directory."""
    return _found(Path(directory))[0]


def _found(root: Path) -> tuple[Path, Version]:
    for version in (BINARY, PYTHON):
        for place in (root, root / version.folder):
            if all((place / file).is_file() for file in version.files.values()):
                return place, version
        if (root / version.archive).is_file():
            return root / version.archive, version
    why = no_directory(root) or f"{_missing(root)} is missing"
    raise InputError(
        f"CIFAR-10 is not in {root}: {why}. Put the binary version there ({BINARY.folder}/ or {BINARY.archive}), or "
        "omit --data-dir to download it."
    )


def _missing(root: Path) -> str:
    """The first absent file of the version and folder that has the most files."""
    places = [(v, place) for v in (BINARY, PYTHON) for place in (root, root / v.folder)]
    absent = [
        [f for f in version.files.values() if not (place / f).is_file()]
        for version, place in places
    ]
    return min(absent, key=len)[0]


def _plain(folder: Path, version: Version) -> dict[str, bytes]:
    found = {}
    for name, file in version.files.items():
        path = folder / file
        try:
            found[name] = untrusted.content(path, LARGEST)
        except ValueError as error:
            raise _damaged(path, str(error)) from error
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    return found


def _unpacked(archive: Path, version: Version) -> dict[str, bytes]:
    """The six files of the archive, in memory: nothing is written, so that no name in it can point elsewhere."""
    names = {file: name for name, file in version.files.items()}
    try:
        members = _members(untrusted.content(archive, LARGEST_ARCHIVE))
        found = {names[file]: content for file, content in members if file in names}
    except ValueError as error:
        raise _damaged(archive, str(error)) from error
    except OSError as error:
        raise StorageError(f"{archive} cannot be read: {error.strerror}. {_REMEDY}") from error
    missing = [file for file, name in names.items() if name not in found]
    if missing:
        raise _damaged(archive, f"{missing[0]} is not in it")
    return found


def _members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """The plain files of a tar archive by their last names.

    A header is a block with the name, in its first 100 bytes, the size in octal digits from byte 124 on, and the kind
    in byte 156; the content follows, filled up to whole blocks. Two blocks of zeros end it.
    """
    place = 0
    while any(header := archive[place : place + _TAR_BLOCK]):
        digits = header[124:136].strip(b" \0")
        if len(header) < _TAR_BLOCK or not digits.isdigit() or b"8" in digits or b"9" in digits:
            raise ValueError(f"it does not unpack (at byte {place:,} there is no header)")
        begin, size = place + _TAR_BLOCK, int(digits, 8)
        if begin + size > len(archive):
            raise ValueError(f"it does not unpack (a file of {size:,} bytes is cut short)")
        if header[156:157] in (b"0", b"\0"):
            name = header[:100].partition(b"\0")[0].decode("ascii", "replace")
            yield name.rsplit("/", 1)[-1], archive[begin : begin + size]
        place = begin + -(-size // _TAR_BLOCK) * _TAR_BLOCK


def _batch(
    path: Path, content: bytes, version: Version
) -> tuple[UInt8[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    if version is PYTHON:
        try:
            content = cifar10_python.records(content, IMAGE)
        except ValueError as error:
            raise _damaged(path, str(error)) from error
    if not content or len(content) % RECORD:
        raise _damaged(
            path, f"its {len(content):,} bytes are not a multiple of the record size {RECORD:,}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int32)
    if labels.max() >= CLASSES:
        raise _damaged(path, f"it has the label {labels.max()}; they go from 0 to 9")
    planes = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _exact(path: Path, images: int) -> Bool[np.ndarray, " m"]:
    try:
        found = np.lib.format.read_array(
            io.BytesIO(untrusted.content(path, _LARGEST_EXACT)), allow_pickle=False
        )
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    except Exception as error:  # whatever a foreign header makes of NumPy's reader
        raise _damaged(path, f"it is not a NumPy array ({str(error)[:200]})") from error
    if found.dtype != bool or found.shape != (images,):
        form = f"{found.dtype} of shape {found.shape}"
        raise _damaged(path, f"it is {form}, not one boolean for each of {images} images")
    if not (found.view(np.uint8) <= 1).all() or not found.any():
        raise _damaged(path, "it selects no test image, or holds bytes other than 0 and 1")
    return found


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} is damaged: {why}. {_REMEDY}")
