"""Saves of format version 1, which are read but no longer written: a directory of three files.

    posterior.json      format, format_version, library_version, arrays_sha256, document
    arrays.safetensors  the arrays by name
    SHA256SUMS          of both

Everything here raises `OSError` for what cannot be read, and `ValueError` for what is damaged or not such a save.
"""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpvi.persistence import _json, _safetensors
from gpvi.persistence.untrusted import open_regular

MANIFEST = "posterior.json"
ARRAYS = "arrays.safetensors"
CHECKSUMS = "SHA256SUMS"

_FORMAT = "gpvi-posterior"
_MAX_BYTES = {MANIFEST: 16 * 2**20, CHECKSUMS: 4096}
_FIELDS = {
    "format": str,
    "format_version": int,
    "library_version": str,
    "arrays_sha256": str,
    "document": dict,
}
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def read(directory: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the document and the arrays of a save."""
    manifest, digest = _recognise(directory)
    if manifest.get("format_version") != 1:
        raise ValueError(f"format_version in {MANIFEST} is not 1")
    checksums = _checksums(directory)
    if digest != checksums[MANIFEST]:
        raise ValueError(f"the SHA-256 of {MANIFEST} is not the one in {CHECKSUMS}")
    types = {field: type(value) for field, value in manifest.items()}
    if types != _FIELDS:
        raise ValueError(f"{MANIFEST} lacks a field, or has an unknown one or one of another type")
    _refuse_link(directory / ARRAYS)
    with open_regular(directory / ARRAYS) as file:
        header = _safetensors.read_header(file)
        start = file.tell()
        file.seek(0)
        whole = hashlib.sha256(file.read(start))
        arrays = _safetensors.read_arrays(file, header, whole.update)
    if not whole.hexdigest() == manifest["arrays_sha256"] == checksums[ARRAYS]:
        raise ValueError(f"the SHA-256 of {ARRAYS} is not the one in {MANIFEST} and {CHECKSUMS}")
    return manifest["document"], arrays


def check_replaceable(directory: Path) -> None:
    """Raise `ValueError` unless the directory is empty or a save, with nothing else in it."""
    names = set(os.listdir(directory))
    strangers = sorted(names - {MANIFEST, ARRAYS, CHECKSUMS})
    if strangers:
        raise ValueError(f"it contains {strangers[0]!r}, which is not part of a save")
    if names:
        _recognise(directory)


def aside(directory: Path) -> Path:
    """Return the name under which a save waits while a new one takes its place."""
    return directory.with_name(f"{directory.name}.version-1")


def remove(directory: Path) -> None:
    """Remove the files of a save, and the directory if nothing else is in it."""
    for name in (MANIFEST, ARRAYS, CHECKSUMS):
        with suppress(OSError):
            os.unlink(directory / name)
    with suppress(OSError):
        os.rmdir(directory)


def _recognise(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the manifest of a save, and its SHA-256."""
    content = _content(directory, MANIFEST)
    manifest = _json.parse_encoded(content)
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"the format in {MANIFEST} is not {_FORMAT!r}")
    return manifest, hashlib.sha256(content).hexdigest()


def _checksums(directory: Path) -> dict[str, str]:
    lines = _content(directory, CHECKSUMS).decode("ascii", "replace").splitlines()
    matches = [_CHECKSUM_LINE.fullmatch(line) for line in lines]
    checksums = {match[2]: match[1] for match in matches if match}
    if len(lines) != 2 or checksums.keys() != {MANIFEST, ARRAYS}:
        raise ValueError(f"{CHECKSUMS} is not one line each for {MANIFEST} and {ARRAYS}")
    return checksums


def _content(directory: Path, name: str) -> bytes:
    _refuse_link(directory / name)
    with open_regular(directory / name) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_BYTES[name]:
            raise ValueError(f"{name} is larger than {_MAX_BYTES[name]} bytes")
        return file.read(size)


def _refuse_link(path: Path) -> None:
    """Refuse a file of a save that lies elsewhere: a save is copied and moved as a whole."""
    if path.is_symlink():
        raise OSError(None, "it is a link", str(path))
