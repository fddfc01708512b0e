r"""Reads CIFAR-10 (Krizhevsky 2009) from its binary version: an unpacked directory, or the archive as published.

A record is a byte with the label and 3 × 32 × 32 bytes, the planes red, green and blue. The "python version" holds the
same numbers as pickles, which are programs: a reader that executes none of them would have to guess what they build, so
it is refused with a word on where the binary one is. A file `cifar-10-test-exact.npy` beside the data, one truth value
to each test image, says which of them to use; a copy put together from other sources may have doubtful ones.
"""

import gzip
import io
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, UInt8

from gpvi.data.images import CLASSES, Images
from gpvi.errors import InputError, StorageError

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
ARCHIVE, FOLDER, PYTHON_FOLDER = (
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
)
EXACT = "cifar-10-test-exact.npy"
LARGEST = 10_000 * RECORD
"""The size of each of the six published files."""
LARGEST_ARCHIVE = 6 * LARGEST + 2**20
"""The six files, and room for their headers and a word about them."""
_UNREADABLE = (EOFError, KeyError, OverflowError, ValueError)
"""What a header of nonsense makes the archive's reader raise, beside its own error."""
_REMEDY = f"Fetch {ARCHIVE} again, or leave --data-dir out to download it."


def read(directory: str | os.PathLike[str]) -> Images:
    """The training set, and the test images that are known to be exact."""
    root = Path(directory)
    source = find(root)
    files = _unpacked(source) if source.is_file() else _plain(source)
    batches = {name: _batch(source / name, content) for name, content in files.items()}
    images = Images(
        np.concatenate([batches[name][0] for name in TRAIN]),
        np.concatenate([batches[name][1] for name in TRAIN]),
        *batches[TEST],
    )
    exact = next((p for p in (root / EXACT, root.parent / EXACT) if p.is_file()), None)
    return images if exact is None else images.testing_on(_exact(exact, len(images.test)))


def find(directory: str | os.PathLike[str]) -> Path:
    """The directory of the six files, or the archive, at or below the given directory."""
    root = Path(directory)
    for place in (root, root / FOLDER):
        if all((place / name).is_file() for name in (*TRAIN, TEST)):
            return place
    if (root / ARCHIVE).is_file():
        return root / ARCHIVE
    if (root / PYTHON_FOLDER).is_dir() or (root / "data_batch_1").is_file():
        why = "it holds the python version, whose pickles are not read since they may run code"
    else:
        why = f"{TRAIN[0]} is missing" if root.is_dir() else "the directory does not exist"
    raise InputError(
        f"CIFAR-10 is not in {root}: {why}. Put the binary version there ({FOLDER}/ or {ARCHIVE}), or leave --data-dir "
        "out to download it."
    )


def _plain(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in (*TRAIN, TEST):
        path = folder / name
        try:
            size = path.stat().st_size
            if size > LARGEST:
                raise _damaged(path, f"it has {size:,} bytes, more than {LARGEST:,}")
            found[name] = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    return found


def _unpacked(archive: Path) -> dict[str, bytes]:
    """The six files of the archive, in memory: nothing is written, so that no name in it can point elsewhere."""
    found = {}
    try:
        with gzip.open(archive, "rb") as stream:
            content = stream.read(LARGEST_ARCHIVE + 1)
        if len(content) > LARGEST_ARCHIVE:
            raise _damaged(archive, f"it unpacks to more than {LARGEST_ARCHIVE:,} bytes")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as members:
            for member in members:
                name = member.name.rsplit("/", 1)[-1]
                stream = members.extractfile(member) if name in (*TRAIN, TEST) else None
                if stream is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, *_UNREADABLE) as error:
        raise _damaged(archive, f"it does not unpack ({error})") from error
    except OSError as error:
        raise StorageError(f"{archive} cannot be read: {error.strerror}. {_REMEDY}") from error
    missing = [name for name in (*TRAIN, TEST) if name not in found]
    if missing:
        raise _damaged(archive, f"{missing[0]} is not in it")
    return found


def _batch(
    path: Path, content: bytes
) -> tuple[UInt8[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    if not content or len(content) % RECORD:
        raise _damaged(
            path, f"its {len(content):,} bytes are not a number of records of {RECORD:,}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int32)
    if labels.max() >= CLASSES:
        raise _damaged(path, f"it has the label {labels.max()}; they go from 0 to 9")
    planes = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _exact(path: Path, images: int) -> Bool[np.ndarray, " m"]:
    """A mapped file must be as long as its header says, and is not read before."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise _damaged(path, f"it is not an array of NumPy ({error})") from error
    if not isinstance(found, np.ndarray) or found.dtype != bool or found.shape != (images,):
        form = f"{getattr(found, 'dtype', type(found).__name__)} of shape {np.shape(found)}"
        raise _damaged(path, f"it is {form}, not one truth value to each of {images} images")
    if not found.any():
        raise _damaged(path, "it leaves no test image")
    return np.array(found)


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} is damaged: {why}. {_REMEDY}")
