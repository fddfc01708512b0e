"""Named arrays and text in one safetensors file: the length of a JSON header, the header, the bytes of the arrays.

The `safetensors` package serves as the oracle of the tests, but not here. Its writer makes a file that only its owner
may read, under a name of its own choice, which a killed process leaves behind. Its reader maps the file, so that the
process dies if the file shrinks, or wants all of it in memory twice; it takes headers of 100 MB, and keeps the last of
two arrays of one name. The format is simple enough to check each claim of a header before memory is spent on it.

Everything here raises `ValueError` for arrays that cannot be written and for bytes that are not such a file.
"""

import math
import os
import struct
from collections.abc import Callable, Mapping
from io import BufferedReader
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gpvi.persistence import _json

METADATA = "__metadata__"
"""The entry of a header that describes no array, but maps strings to strings."""
MAX_HEADER_BYTES = 16 * 2**20

_MAX_RANK = 64  # numpy's own limit
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def storable(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert arrays to what a file holds: row-major, little-endian, the widest types first so that all are aligned."""
    checked = {name: _storable(name, array) for name, array in arrays.items()}
    order = sorted(checked, key=lambda name: (-checked[name].itemsize, name))
    return {name: checked[name] for name in order}


def describe(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the header entries of arrays that lie one behind the other in this order."""
    entries, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        entries[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    return entries


def header_bytes(header: Mapping[str, Any]) -> bytes:
    """Return the first bytes of a file with this header; refuse a header that `read_header` would refuse."""
    text = _json.dump(header)
    elements = _json.count_elements(text)
    if len(text) > MAX_HEADER_BYTES or elements > _json.MAX_ELEMENTS:
        raise ValueError(
            f"the document and the descriptions of the arrays take {len(text):,} bytes with about {elements:,} "
            f"elements; at most {MAX_HEADER_BYTES:,} and {_json.MAX_ELEMENTS:,} can be read back. Move long lists "
            "into the arrays, and stack arrays of equal shape."
        )
    padding = b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) + len(padding)) + text + padding


def array_bytes(array: np.ndarray) -> memoryview:
    """View a contiguous array as its bytes."""
    return array.reshape(-1).view(np.uint8).data


def read_header(file: BufferedReader) -> dict[str, Any]:
    """Read the header of a file, and check that it is a bounded JSON object."""
    prefix = file.read(8)
    if len(prefix) < 8:
        raise ValueError(f"it ends after {len(prefix)} bytes, within the length of its header")
    (length,) = struct.unpack("<Q", prefix)
    limit = min(_size(file) - 8, MAX_HEADER_BYTES)
    if length > limit:
        raise ValueError(f"its header claims {length} bytes, but {limit} are possible")
    header = _json.parse(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header


def read_arrays(
    file: BufferedReader, header: Mapping[str, Any], update: Callable[[memoryview], object]
) -> dict[str, np.ndarray]:
    """Read the arrays behind the header, and pass their bytes to `update` in the order of the file.

    All claims of the header are checked before any array is allocated: together the arrays must fill the rest of the
    file exactly, without gaps or overlaps.
    """
    entries = [_Entry.checked(name, entry) for name, entry in header.items() if name != METADATA]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    available = _size(file) - file.tell()
    claimed = sum(entry.bytes for entry in entries)
    if claimed != available:
        shown = f"{claimed}" if claimed < 2**63 else "more than 2^63"
        raise ValueError(f"its header claims {shown} bytes of arrays, but the file has {available}")
    position = 0
    for entry in entries:
        if (entry.begin, entry.end) != (position, position + entry.bytes):
            raise ValueError(f"array {entry.name[:80]!r} does not lie where the previous one ends")
        position = entry.end
    arrays = {}
    for entry in entries:
        array = np.empty(entry.shape, entry.dtype)
        content = array_bytes(array)
        if file.readinto(content) != entry.bytes:
            raise ValueError("it ended while it was read")
        update(content)
        if not _is_canonical(array):
            raise ValueError(f"array {entry.name[:80]!r} is bool but has bytes other than 0 and 1")
        arrays[entry.name] = array
    return arrays


class _Entry(NamedTuple):
    """What a header says about one array."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def checked(cls, name: str, entry: Any) -> "_Entry":
        shown = repr(name[:80])
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"the header entry {shown} is not dtype, shape and data_offsets")
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(code, str) or code not in _DTYPES:
            raise ValueError(f"array {shown} has the unknown dtype {str(code)[:40]!r}")
        if not _are_lengths(shape) or len(shape) > _MAX_RANK:
            raise ValueError(f"array {shown} has an impossible shape")
        if not _are_lengths(offsets) or len(offsets) != 2:
            raise ValueError(f"array {shown} has impossible offsets")
        return cls(name, _DTYPES[code], tuple(shape), *offsets)


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _storable(name: object, array: object) -> np.ndarray:
    if not isinstance(name, str) or name == METADATA or not _is_unicode(name):
        raise ValueError(f"{name!r} cannot name an array in safetensors. Choose other text.")
    if type(array) is not np.ndarray:
        raise ValueError(
            f"array {name!r} is a {type(array).__name__}, not a numpy array. Convert it with "
            "numpy.asarray (a typed PRNG key with jax.random.key_data first)."
        )
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _CODES:
        raise ValueError(
            f"array {name!r} has dtype {array.dtype}, which cannot be saved. "
            f"Convert it to one of {', '.join(str(each) for each in _CODES)}."
        )
    contiguous = np.asarray(array, dtype, order="C")
    if not _is_canonical(contiguous):
        raise ValueError(
            f"array {name!r} is bool but has bytes other than 0 and 1. Convert it with `!= 0`."
        )
    return contiguous


def _is_unicode(text: str) -> bool:
    """Whether text has no lone surrogates, which UTF-8 cannot express."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_canonical(array: np.ndarray) -> bool:
    """Whether each bool is stored as 0 or 1; numpy's behaviour on other bytes is undefined."""
    return array.dtype != np.bool_ or array.size == 0 or bool(array.view(np.uint8).max() <= 1)


def _size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size
