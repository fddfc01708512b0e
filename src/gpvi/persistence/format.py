"""Saved posteriors and checkpoints: a JSON document and named arrays in one file.

The file is a safetensors file, which other tools can open. Its metadata are

    format           "gpvi"
    format_version   "2"
    library_version  of the gpvi that wrote it
    document         the document, as JSON
    sha256           over everything else: the header without this entry, as sorted JSON, and the bytes of the arrays

Nothing here knows what the document and the arrays mean, and reading executes no code: JSON and safetensors have values
only. Version 1 was a directory of three files, which `_version1` still reads.
"""

import hashlib
import importlib.metadata
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpvi.errors import InputError, StorageError, brief
from gpvi.persistence import _json, _safetensors, _version1
from gpvi.persistence._json import Json
from gpvi.persistence.untrusted import open_regular
from gpvi.persistence.writing import TEMPORARY, sync, temporary_sibling

FORMAT = "gpvi"
FORMAT_VERSION = 2

_DIGEST = "sha256"
_FIELDS = {"format", "format_version", "library_version", "document", _DIGEST}


def write(
    path: str | os.PathLike[str], document: Mapping[str, Json], arrays: Mapping[str, np.ndarray]
) -> None:
    """Save `document` and `arrays` as the file `path`, all or nothing.

    The file is written and synced under a temporary name in the same directory, and then takes its place in one rename.
    Parent directories are created. Only a missing or empty file, an earlier save and an empty directory are replaced.
    Tuples are saved as lists.
    """
    check_replaceable(path)
    target = _resolved(path)
    try:
        tensors = _safetensors.storable(arrays)
        start = _safetensors.header_bytes(_sealed(document, tensors))
    except ValueError as error:
        raise StorageError(f"{target} cannot be saved: {error}") from error
    part = temporary_sibling(target)
    try:
        os.makedirs(target.parent, exist_ok=True)
        with open(part, "xb") as file:
            file.write(start)
            for tensor in tensors.values():
                file.write(_safetensors.array_bytes(tensor))
        sync(part)
        _install(part, target)
    except OSError as error:
        raise StorageError(
            f"{target} cannot be saved: {error}. Check permissions and free space, or save elsewhere."
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(part)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """Return the document and the arrays saved as `path`, or raise `StorageError`."""
    place = as_path(path)
    with _explained(place):
        if place.is_dir():
            return _version1.read(place)
        with open_regular(place) as file:
            header = _safetensors.read_header(file)
            metadata = _recognise(header)
            _check_readable(place, metadata)
            expected = metadata.pop(_DIGEST)
            digest = _digest(header)
            arrays = _safetensors.read_arrays(file, header, digest.update)
        if digest.hexdigest() != expected:
            raise ValueError(f"its SHA-256 is {digest.hexdigest()}, not {expected[:64]}")
        document = _json.parse_encoded(metadata["document"].encode())
        if not isinstance(document, dict):
            raise ValueError("its document is not a JSON object")
        return document, arrays


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise `StorageError` if `write` would refuse to replace what is at `path`."""
    target = _resolved(path)
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise StorageError(
            f"{target} cannot be created, because one of its parents is a file. Save elsewhere, or move that file."
        ) from None
    except OSError as error:
        raise StorageError(f"{target} cannot be inspected: {error}. Save elsewhere.") from error
    try:
        if stat.S_ISDIR(mode):
            _version1.check_replaceable(target)
            return
        with open_regular(target) as file:
            if os.fstat(file.fileno()).st_size > 0:
                _recognise(_safetensors.read_header(file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StorageError(
            f"{target} is not replaced, because it is not clearly a save of gpvi: {why}. "
            "Save elsewhere, or remove it yourself."
        ) from error


def sweep(directory: Path) -> None:
    """Remove partial files that killed processes left in `directory`; no other process may be writing to it."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if TEMPORARY.fullmatch(name):
                _version1.remove(directory / name)
                with suppress(OSError):
                    os.unlink(directory / name)


LONGEST_PATH = 4_096
"""Characters; no operating system takes more."""


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return the path with the home directory expanded; refuse what cannot be the path of a save."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"{brief(path)} is not a path. Pass the path of a file, as a string.")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError as error:
        raise StorageError(
            f"{name[:80]!r} cannot be a path: it holds characters that no encoding has. Use another."
        ) from error
    if b"\0" in encoded:
        raise StorageError(f"{name[:80]!r} cannot be a path: it holds a zero byte. Use another.")
    if len(name) > LONGEST_PATH:
        raise StorageError(
            f"{name[:80]!r}… has {len(name):,} characters, too many for a path. Use a shorter one."
        )
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"{name[:80]!r} is in the home of a user who does not exist. Use another path."
        ) from error


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Follow links, so that a link to a save is kept when the save is replaced."""
    return Path(os.path.realpath(as_path(path)))


def _sealed(document: Mapping[str, Json], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the header of a save, with its checksum."""
    text = _json.dump(_json.encode(document, "document"), indent=1)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "library_version": _library_version(),
        "document": text.decode(),
    }
    header = {_safetensors.METADATA: metadata, **_safetensors.describe(tensors)}
    digest = _digest(header)
    for tensor in tensors.values():
        digest.update(_safetensors.array_bytes(tensor))
    metadata[_DIGEST] = digest.hexdigest()
    return header


def _digest(header: Mapping[str, Any]) -> "hashlib._Hash":
    """Begin the checksum of a save with its header; the bytes of the arrays follow."""
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode())


def _library_version() -> str:
    try:
        return importlib.metadata.version("gpvi")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _install(part: Path, target: Path) -> None:
    """Rename `part` to `target`, so that a reader finds the old save or the new one at every moment.

    No rename puts a file in the place of a directory, so a save of version 1 is moved aside first. A process that is
    killed just then leaves it, whole, under that name.
    """
    old = _version1.aside(target) if target.is_dir() else None
    if old is not None:
        os.rename(target, old)
    try:
        os.replace(part, target)
    except OSError:
        if old is not None:
            os.rename(old, target)
        raise
    sync(target.parent)
    if old is not None:
        _version1.remove(old)


def _recognise(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a file saved by any version of gpvi since 2."""
    metadata = header.get(_safetensors.METADATA)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(f"its metadata do not name the format {FORMAT!r}")
    return metadata


def _check_readable(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse metadata of a newer version, and those that this version would not write."""
    version = str(metadata.get("format_version"))[:40]
    if not version.isdecimal() or int(version) < FORMAT_VERSION:
        raise ValueError(f"its format_version is {version!r}")
    if int(version) > FORMAT_VERSION:
        writer = str(metadata.get("library_version"))[:40]
        raise StorageError(
            f"{path} has format version {version}, written by gpvi {writer!r}; this gpvi reads versions up to "
            f"{FORMAT_VERSION}. Upgrade gpvi."
        )
    if metadata.keys() != _FIELDS:
        odd = min(metadata.keys() ^ _FIELDS)
        raise ValueError(f"the field {odd[:80]!r} of its metadata is missing or unknown")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not text")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn the errors of a reader into `StorageError`, with the path and what to do."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        raise StorageError(
            f"{place} cannot be read: {error.strerror}. Check the path, its permissions and the disk."
        ) from error
    except MemoryError as error:
        raise StorageError(
            f"{path} needs more than the free memory. Read it on a larger machine."
        ) from error
    except ValueError as error:
        raise StorageError(
            f"{path} is damaged, or was not saved by gpvi: {error}. Restore it from a copy, or save again."
        ) from error
