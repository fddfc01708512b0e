"""Saved posteriors: a JSON document and named arrays, written atomically and read defensively.

A saved posterior is a directory of three files:

    posterior.json      format, format_version, library_version, arrays_sha256, document
    arrays.safetensors  the arrays by name
    SHA256SUMS          of both, for `sha256sum -c SHA256SUMS`

Nothing here knows what the document or the arrays mean, and reading never executes code: JSON and
safetensors hold values only. JSON has no infinities and no NaN, and a diagnostic that is one must
not cost the user a posterior, so such a float is written as `{"$float": "nan"}` (or `"inf"`,
`"-inf"`) and comes back as a float.
"""

import ctypes
import errno
import hashlib
import importlib.metadata
import json
import math
import os
import re
import secrets
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from gpvi.errors import StorageError

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:
    Json = object  # checkers at run time cannot follow a recursive alias; `write` checks by itself

FORMAT = "gpvi-posterior"
FORMAT_VERSION = 1

MANIFEST = "posterior.json"
ARRAYS = "arrays.safetensors"
CHECKSUMS = "SHA256SUMS"

_MAX_JSON_BYTES = 16 * 2**20
_MAX_HEADER_BYTES = 16 * 2**20
_MAX_CHECKSUMS_BYTES = 4096
_MAX_NESTING = 64
_MAX_RANK = 64  # numpy's own limit
_READ_ATTEMPTS = 100

_FLOAT = "$float"
_NON_FINITE = ("nan", "inf", "-inf")
_MANIFEST_TYPES = {
    "format": str,
    "format_version": int,
    "library_version": str,
    "arrays_sha256": str,
    "document": dict,
}
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
_RESERVED_NAME = "__metadata__"  # by safetensors
_TEMPORARY = re.compile(r"\.gpvi-[0-9a-f]{16}\.tmp")
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)


def write(
    directory: str | os.PathLike[str],
    document: Mapping[str, Json],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Save `document` and `arrays` as `directory`, all or nothing.

    The files are written and synced in a hidden sibling directory, which then takes the place of
    `directory` in one rename (or, over an earlier save, one exchange). Parents are created. Only
    nothing, an empty directory or an earlier save is replaced. Tuples are saved as lists.
    """
    check_replaceable(directory)
    target = _place(directory)
    encoded = _encode(document, "document")
    tensors = {name: _storable(name, array) for name, array in arrays.items()}
    temporary = target.with_name(_temporary_name())
    try:
        os.makedirs(target.parent, exist_ok=True)
        os.mkdir(temporary)
        _write_files(temporary, encoded, tensors)
        _install(temporary, target)
    except (OSError, safetensors.SafetensorError) as error:
        raise StorageError(
            f"{target} could not be saved: {error}. "
            "Check permissions and free space, or save elsewhere."
        ) from error
    finally:
        _remove(temporary)


def read(directory: str | os.PathLike[str]) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """The document and the arrays saved as `directory`, or a `StorageError`.

    A failure while another process was replacing the save is not damage, so it is read again.
    """
    path = Path(directory).expanduser()
    for _ in range(_READ_ATTEMPTS):
        before = _state(path)
        try:
            return _read_once(before[0])
        except StorageError:
            if _state(path) == before:
                raise
    raise StorageError(
        f"{path} was replaced during each of {_READ_ATTEMPTS} attempts to read it. "
        "Stop the process that writes it, or copy the directory and read the copy."
    )


def check_replaceable(directory: str | os.PathLike[str]) -> None:
    """Refuse, as `write` would, to overwrite anything but an earlier save."""
    target = _place(directory)
    try:
        entries = set(os.listdir(target))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise StorageError(
            f"{target} or one of its parents is a file, and is not replaced. "
            "Save elsewhere, or move it."
        ) from None
    except OSError as error:
        raise StorageError(f"{target} cannot be inspected: {error}. Save elsewhere.") from error
    if not entries:
        return
    strangers = sorted(entries - {MANIFEST, ARRAYS, CHECKSUMS})
    if strangers:
        raise StorageError(
            f"{target} holds {strangers[0]!r}, which is not part of a saved posterior, and is not "
            "replaced. Save elsewhere, or move its content."
        )
    try:
        _recognise(target / MANIFEST)
    except StorageError as error:
        raise StorageError(
            f"{target} is not replaced, because it is not clearly a saved posterior: {error} "
            "Save elsewhere, or remove the directory yourself."
        ) from error


def sweep(directory: Path) -> None:
    """Remove partial saves that killed processes left in `directory`; no other process may be writing to it."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if _TEMPORARY.fullmatch(name):
                _remove(directory / name)


def _place(directory: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(os.path.expanduser(directory)))


def _temporary_name() -> str:
    return f".gpvi-{secrets.token_hex(8)}.tmp"


def _write_files(directory: Path, document: Json, tensors: dict[str, np.ndarray]) -> None:
    manifest, arrays, checksums = (directory / name for name in (MANIFEST, ARRAYS, CHECKSUMS))

    safetensors.numpy.save_file(tensors, arrays)
    with open(arrays, "rb") as file:
        (header_length,) = struct.unpack("<Q", file.read(8))
        file.seek(0)
        arrays_digest = hashlib.file_digest(file, "sha256").hexdigest()
    if header_length > _MAX_HEADER_BYTES:
        raise StorageError(
            f"{len(tensors)} arrays need a header of {header_length} bytes; at most "
            f"{_MAX_HEADER_BYTES} can be read back. Stack arrays of equal shape into one."
        )

    content = _manifest_bytes(document, arrays_digest)
    manifest.write_bytes(content)
    lines = ((hashlib.sha256(content).hexdigest(), MANIFEST), (arrays_digest, ARRAYS))
    checksums.write_text("".join(f"{digest}  {name}\n" for digest, name in lines), "ascii")

    shutil.copymode(manifest, arrays)  # safetensors makes its file private; the umask decides
    for path in (manifest, arrays, checksums, directory):
        _sync(path)


def _manifest_bytes(document: Json, arrays_digest: str) -> bytes:
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": _library_version(),
        "arrays_sha256": arrays_digest,
        "document": document,
    }
    try:
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
        content = (text + "\n").encode()
    except ValueError as error:  # text that is not Unicode, integers of thousands of digits
        raise StorageError(
            f"the document cannot be written as JSON: {error}. Change that value."
        ) from error
    if len(content) > _MAX_JSON_BYTES:
        raise StorageError(
            f"the document takes {len(content)} bytes as JSON; at most {_MAX_JSON_BYTES} can be "
            "read back. Move long lists of numbers into the arrays."
        )
    return content


def _encode(value: object, where: str, depth: int = 0) -> Json:
    """`value` in JSON's own types, non-finite floats spelled out; anything else is refused."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if depth == _MAX_NESTING:
        raise StorageError(
            f"{where[:80]}… is nested more than {_MAX_NESTING} deep. Flatten the document."
        )
    if isinstance(value, list | tuple):
        return [_encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise StorageError(f"{where} has the key {key!r}; JSON keys are strings. Use one.")
            if key == _FLOAT:
                raise StorageError(f"{where} has the key {_FLOAT!r}, which is reserved. Rename it.")
        return {key: _encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise StorageError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold. Convert it to None, bool, "
        "int, float, str, list or dict, or pass it among the arrays."
    )


def _storable(name: object, array: object) -> np.ndarray:
    """`array` in row-major order, which safetensors assumes."""
    if not isinstance(name, str) or name == _RESERVED_NAME or not _is_unicode(name):
        raise StorageError(f"{name!r} cannot name an array in safetensors. Choose other text.")
    if type(array) is not np.ndarray:
        raise StorageError(
            f"array {name!r} is a {type(array).__name__}, not a numpy array. Convert it with "
            "numpy.asarray (a typed PRNG key with jax.random.key_data first)."
        )
    if array.dtype.newbyteorder("<") not in _DTYPES.values():
        raise StorageError(
            f"array {name!r} has dtype {array.dtype}, which cannot be saved. "
            f"Convert it to one of {', '.join(str(dtype) for dtype in _DTYPES.values())}."
        )
    contiguous = np.asarray(array, order="C")
    if not _is_canonical(contiguous):
        raise StorageError(
            f"array {name!r} is bool but holds bytes other than 0 and 1. Convert it with `!= 0`."
        )
    return contiguous


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _is_canonical(array: np.ndarray) -> bool:
    """Whether each bool is stored as 0 or 1; numpy's behaviour on other bytes is undefined."""
    return array.dtype != np.bool_ or array.size == 0 or bool(array.view(np.uint8).max() <= 1)


def _library_version() -> str:
    try:
        return importlib.metadata.version("gpvi")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _install(temporary: Path, target: Path) -> None:
    """Put `temporary` at `target`; at every moment `read` finds the old save or the new one.

    If two directories cannot be exchanged, the old one is kept meanwhile under a name that `read` knows.
    """
    previous = _previous(target)
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(temporary, target):
            _remove(previous)
            os.rename(target, previous)
            try:
                os.rename(temporary, target)
            except OSError:
                os.rename(previous, target)
                raise
    _sync(target.parent)
    _remove(previous)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one system call; False if the system or filesystem cannot."""
    if sys.platform not in ("linux", "darwin"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if hasattr(library, "renameat2"):
        at_working_directory, rename_exchange = -100, 2
        status = library.renameat2(
            at_working_directory, names[0], at_working_directory, names[1], rename_exchange
        )
    elif hasattr(library, "renamex_np"):
        rename_swap = 2
        status = library.renamex_np(*names, rename_swap)
    else:
        return False
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.gpvi-previous")


def _remove(directory: Path) -> None:
    """Remove the files of a save, and the directory if nothing else is in it."""
    for name in (MANIFEST, ARRAYS, CHECKSUMS):
        with suppress(OSError):
            os.unlink(directory / name)
    with suppress(OSError):
        os.rmdir(directory)


def _sync(path: Path) -> None:
    if os.name == "nt":  # no such call for directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _state(directory: Path) -> tuple[Path, tuple[int, int] | None, bytes | None]:
    """Where the save is, and what distinguishes it from one that may replace it."""
    resolved = Path(os.path.realpath(directory))
    previous = _previous(resolved)
    interrupted = os.path.exists(previous) and not os.path.exists(resolved)
    place = previous if interrupted else directory
    try:
        status = os.stat(place)
        return (
            place,
            (status.st_ino, status.st_mtime_ns),
            _read_file(place / CHECKSUMS, _MAX_CHECKSUMS_BYTES),
        )
    except (OSError, StorageError):
        return place, None, None


def _read_once(directory: Path) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """Read and check a save; foreign and newer directories are recognised before anything counts as damage."""
    manifest, arrays = directory / MANIFEST, directory / ARRAYS
    try:
        is_directory = stat.S_ISDIR(os.stat(directory).st_mode)
    except OSError as error:
        raise StorageError(
            f"{directory} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if not is_directory:
        raise StorageError(
            f"{directory} is a file; a saved posterior is a directory that holds {MANIFEST}. "
            "Pass the directory."
        )

    fields, manifest_digest = _recognise(manifest)
    version = fields.get("format_version")
    if type(version) is not int or version < 1:
        _damaged(manifest, f"format_version is {str(version)[:40]!r}, not a positive integer")
    if version > FORMAT_VERSION:
        writer = str(fields.get("library_version"))[:40]
        raise StorageError(
            f"{manifest} has format version {str(version)[:40]}, written by gpvi {writer!r}; this "
            f"gpvi reads versions up to {FORMAT_VERSION}. Upgrade gpvi."
        )

    checksums = _read_checksums(directory / CHECKSUMS)
    if manifest_digest != checksums[MANIFEST]:
        _damaged(
            manifest,
            f"its SHA-256 is {manifest_digest}, but {CHECKSUMS} has {checksums[MANIFEST]}",
            "If you edited it on purpose, update the checksums in that directory: "
            f"sha256sum {MANIFEST} {ARRAYS} > {CHECKSUMS}.",
        )
    if fields.keys() != _MANIFEST_TYPES.keys():
        odd = sorted(fields.keys() ^ _MANIFEST_TYPES.keys())[0]
        _damaged(manifest, f"the field {odd[:80]!r} is missing or unknown")
    for field, expected in _MANIFEST_TYPES.items():
        if type(fields[field]) is not expected:
            found = type(fields[field]).__name__
            _damaged(manifest, f"{field} is of type {found}, not {expected.__name__}")

    content = _read_arrays(arrays)
    arrays_digest = hashlib.sha256(content).hexdigest()
    for source, digest in ((MANIFEST, fields["arrays_sha256"]), (CHECKSUMS, checksums[ARRAYS])):
        if arrays_digest != digest:
            _damaged(arrays, f"its SHA-256 is {arrays_digest}, but {source} has {digest[:64]!r}")
    return fields["document"], _decode_arrays(arrays, content)


def _recognise(manifest: Path) -> tuple[dict[str, Any], str]:
    """The manifest of a directory saved by any version of gpvi, and its SHA-256."""
    content = _read_file(manifest, _MAX_JSON_BYTES)
    fields = _parse_json(manifest, content, _json_object_or_float)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise StorageError(
            f"{manifest} does not belong to a saved posterior: its format is not {FORMAT!r}. "
            "Pass a directory that gpvi saved."
        )
    return fields, hashlib.sha256(content).hexdigest()


def _read_checksums(path: Path) -> dict[str, str]:
    text = _read_file(path, _MAX_CHECKSUMS_BYTES).decode("ascii", errors="replace")
    matches = [_CHECKSUM_LINE.fullmatch(line) for line in text.splitlines()]
    checksums = {match[2]: match[1] for match in matches if match}
    if len(matches) != 2 or checksums.keys() != {MANIFEST, ARRAYS}:
        _damaged(path, f"it is not one SHA-256 line each for {MANIFEST} and {ARRAYS}")
    return checksums


def _read_arrays(path: Path) -> bytes:
    """The whole file, after checking that its header describes exactly the bytes in it."""
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            _damaged(path, f"it ends after {len(prefix)} bytes, within the header's length")
        (header_length,) = struct.unpack("<Q", prefix)
        limit = min(size - 8, _MAX_HEADER_BYTES)
        if header_length > limit:
            _damaged(path, f"its header claims {header_length} bytes, but {limit} are possible")
        header = file.read(header_length)
        _check_header(path, header, size - 8 - header_length)
        file.seek(0)
        try:
            content = file.read(size)
        except MemoryError:
            raise StorageError(
                f"{path} holds {size} bytes, more than the free memory. "
                "Read it on a larger machine."
            ) from None
    if not content.startswith(prefix + header):
        _damaged(path, "it changed while it was read")
    return content


def _check_header(path: Path, header: bytes, available: int) -> None:
    """Check names, types and sizes before the arrays are read.

    safetensors 0.8 places every array within the bytes it is given, but it wants them in memory
    first, takes headers of 100 MB, and keeps the last of two arrays of one name; its numpy side
    raises KeyError for dtypes it has no name for.
    """
    entries = _parse_json(path, header, _json_object)
    if not isinstance(entries, dict):
        _damaged(path, "its header is not a JSON object")
    announced = 0
    for name, entry in entries.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            _damaged(path, f"the header entry {name[:80]!r} is not dtype, shape and data_offsets")
        dtype, shape = entry["dtype"], entry["shape"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            _damaged(path, f"array {name[:80]!r} has the unknown dtype {str(dtype)[:40]!r}")
        if (
            not isinstance(shape, list)
            or len(shape) > _MAX_RANK
            or not all(type(length) is int and 0 <= length < 2**63 for length in shape)
        ):
            _damaged(path, f"array {name[:80]!r} has an impossible shape")
        announced += math.prod(shape) * _DTYPES[dtype].itemsize
    if announced != available:
        shown = announced if announced < 2**63 else "more than 2^63"
        _damaged(path, f"its header claims {shown} bytes of arrays, the file holds {available}")


def _decode_arrays(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Writable arrays. `safetensors.numpy.load` knows no bfloat16, so its views are taken here."""
    arrays = {}
    try:
        for name, view in safetensors.deserialize(content):
            array = np.frombuffer(view["data"], dtype=_DTYPES[view["dtype"]])
            arrays[name] = array.reshape(view["shape"])
    except (safetensors.SafetensorError, ValueError) as error:
        _damaged(path, str(error)[:200], cause=error)
    for name, array in arrays.items():
        if not _is_canonical(array):
            _damaged(path, f"array {name[:80]!r} is bool but holds bytes other than 0 and 1")
    return arrays


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """A regular file opened for reading; a link, pipe or device is refused unopened."""
    try:
        _check_regular(path, os.lstat(path))
        with os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
            _check_regular(path, os.fstat(file.fileno()))
            yield file
    except FileNotFoundError:
        raise StorageError(
            f"{path} is missing. Pass a directory that gpvi saved, and copy it as a whole."
        ) from None
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}. Check its permissions and the disk."
        ) from error


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(
            f"{path} is not a regular file but a link, directory, pipe or device. "
            "Put a copy of the file itself there."
        )


def _read_file(path: Path, limit: int) -> bytes:
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            _damaged(path, f"it is larger than {limit} bytes, the most that gpvi writes")
        return file.read(size)


def _parse_json(
    path: Path, content: bytes, make_object: Callable[[list[tuple[str, Any]]], Any]
) -> Any:
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=make_object,
            parse_float=_json_float,
            parse_constant=_json_constant,
        )
        _check_nesting(value)
    except RecursionError:
        _damaged(path, "its JSON is nested too deeply")
    except ValueError as error:
        _damaged(path, f"it does not hold valid JSON: {str(error)[:200]}", cause=error)
    return value


def _check_nesting(value: Any) -> None:
    """Refuse JSON that parses but is nested so deeply that traversing it would overflow the stack."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_NESTING + 1):  # the document stands within the manifest
        containers = [
            item
            for container in containers
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    if containers:
        raise RecursionError


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return mapping


def _json_object_or_float(pairs: list[tuple[str, Any]]) -> dict[str, Any] | float:
    mapping = _json_object(pairs)
    if _FLOAT not in mapping:
        return mapping
    if len(mapping) > 1 or mapping[_FLOAT] not in _NON_FINITE:
        raise ValueError(f"{_FLOAT!r} is not alone with one of {_NON_FINITE}")
    return float(mapping[_FLOAT])


def _json_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _json_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _damaged(
    path: Path,
    reason: str,
    remedy: str = "Restore the directory from a copy, or save the posterior again.",
    cause: Exception | None = None,
) -> NoReturn:
    message = f"{path} is damaged or was not written by gpvi: {reason}. {remedy}"
    raise StorageError(message) from cause
