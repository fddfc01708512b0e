r"""Reads CIFAR-10 (Krizhevsky 2009), the binary version: an unpacked directory, or the archive as published.

An image is a byte with the label and 3 × 32 × 32 bytes, the planes red, green and blue. The "python version" holds the
same numbers as pickles, which are programs, and is not read. A file `cifar-10-test-exact.npy` beside the data, one
boolean per test image, says which of them to use; a copy assembled from other sources may contain doubtful ones.
"""

import io
import os
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Bool, Int, UInt8

from gpvi.persistence import untrusted
from gpvi_paper.data.files import located, reading
from gpvi_paper.data.images import Images, require_classes

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE
"""Bytes of an image with its label."""
FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
EXACT = "cifar-10-test-exact.npy"
LARGEST = 10_000 * RECORD
"""The size of each of the six published files."""
LARGEST_ARCHIVE = 6 * LARGEST + 2**20
"""The six files, and room for their headers and a word about them."""
_LARGEST_EXACT = 2**20
_PYTHON_VERSION = ("data_batch_1", "*/data_batch_1", "cifar-10-python.tar.gz")
_REMEDY = f"Fetch {ARCHIVE} again, or omit --data-dir to download it."


def read(directory: str | os.PathLike[str]) -> Images:
    """The training set, and the test images that are known to be exact."""
    root = Path(directory)
    source = find(root)
    contents = _unpacked(source) if source.is_file() else _plain(source)
    batches = [_batch(source / name, contents[name]) for name in FILES]
    train, labels = zip(*batches[:-1], strict=True)
    images = Images(np.concatenate(train), np.concatenate(labels), *batches[-1])
    exact = next((p for p in (root / EXACT, root.parent / EXACT) if p.is_file()), None)
    return images if exact is None else images.testing_on(_exact(exact, len(images.test)))


def find(directory: str | os.PathLike[str]) -> Path:
    """The directory of the six files, or the archive, at or below the given directory."""
    root = Path(directory)
    folders = (root, root / FOLDER)

    def missing() -> str:
        if any(any(root.glob(pattern)) for pattern in _PYTHON_VERSION):
            return "it has the python version, whose files are pickles and are not read"
        absent = [[name for name in FILES if not (f / name).is_file()] for f in folders]
        return f"{min(absent, key=len)[0]} is missing"

    return located(
        "CIFAR-10 is",
        (*folders, root / ARCHIVE),
        lambda place: (
            place.is_file()
            if place.name == ARCHIVE
            else all((place / name).is_file() for name in FILES)
        ),
        root,
        missing,
        f"Put the binary version there ({FOLDER}/ or {ARCHIVE}), or omit --data-dir to download it.",
    )


def _plain(folder: Path) -> dict[str, bytes]:
    contents = {}
    for name in FILES:
        with reading(folder / name, _REMEDY):
            contents[name] = untrusted.content(folder / name, LARGEST)
    return contents


def _unpacked(archive: Path) -> dict[str, bytes]:
    """The six files of the archive, in memory: nothing is written, so that no name in it can point elsewhere.

    The archive is read as a stream, from which no header can send the reader back.
    """
    contents = {}
    with reading(archive, _REMEDY, Exception):  # whatever a foreign header makes of tarfile
        packed = io.BytesIO(untrusted.content(archive, LARGEST_ARCHIVE))
        with tarfile.open(fileobj=packed, mode="r|") as members:
            for member in members:
                name = PurePosixPath(member.name).name
                if name not in FILES or not member.isreg() or member.issparse():
                    continue
                file = members.extractfile(member)
                if member.size > LARGEST or file is None:
                    raise ValueError(f"its {name} has {member.size:,} bytes")
                contents[name] = file.read()
        absent = [name for name in FILES if name not in contents]
        if absent:
            raise ValueError(f"{absent[0]} is not in it")
    return contents


def _batch(
    path: Path, content: bytes
) -> tuple[UInt8[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    with reading(path, _REMEDY):
        if not content or len(content) % RECORD:
            size = f"its {len(content):,} bytes"
            raise ValueError(f"{size} are not a multiple of the record size {RECORD:,}")
        records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
        labels = records[:, 0].astype(np.int32)
        require_classes(labels)
    planes = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _exact(path: Path, images: int) -> Bool[np.ndarray, " m"]:
    with reading(path, _REMEDY, Exception):  # whatever a foreign header makes of NumPy's reader
        content = io.BytesIO(untrusted.content(path, _LARGEST_EXACT))
        exact = np.lib.format.read_array(content, allow_pickle=False)
    with reading(path, _REMEDY):
        if exact.dtype != bool or exact.shape != (images,):
            form = f"{exact.dtype} of shape {exact.shape}"
            raise ValueError(f"it is {form}, not one boolean for each of {images} images")
        if not (exact.view(np.uint8) <= 1).all() or not exact.any():
            raise ValueError("it selects no test image, or holds bytes other than 0 and 1")
    return exact
