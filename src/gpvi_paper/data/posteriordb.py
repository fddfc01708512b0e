"""Reads posteriordb (Magnusson et al., https://github.com/stan-dev/posteriordb): data and reference draws.

A directory holds `posteriors/NAME.json`, which names the rest, `data/*.json.zip` and `reference_draws/*.json.zip`, each
a JSON document alone in its archive. Draws are a list of chains, each a map from a parameter to its draws.
The repository's own `posterior_database/` keeps the last two one level deeper, and is read as well.
"""

import io
import lzma
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpvi.errors import InputError, StorageError
from gpvi.persistence import untrusted
from gpvi_paper.data.paths import first, no_directory

SOURCE = "https://github.com/stan-dev/posteriordb"
FOLDERS = (".", "posterior_database", "posteriordb", "posteriordb/posterior_database")
"""Where below the given directory the files may lie."""
LARGEST = 128 * 2**20
"""No document of posteriordb is so long once unpacked."""

_UNREADABLE = (
    ValueError,
    EOFError,
    OverflowError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Errors that reading a malformed archive may raise."""
_DATA = ("data", "data/data")
_DRAWS = ("reference_draws", "reference_posteriors/draws/draws")


class Stored(NamedTuple):
    """A posterior of the database."""

    name: str
    data: dict[str, Any]
    parameters: tuple[str, ...]
    """The names of the reference draws, such as `theta[1]`."""
    draws: Float[np.ndarray, "n q"]
    """Reference draws, the chains one after the other."""


def read(directory: str | os.PathLike[str] | None, name: str) -> Stored:
    """The data and the reference draws of a posterior, such as "eight_schools-eight_schools_centered"."""
    root = find(directory)
    if not untrusted.is_plain_name(name):
        raise InputError(f"{name[:200]!r} is not the name of a posterior. {_REMEDY}")
    entry = _document(root / "posteriors" / f"{name}.json")
    data = _unzipped(root, _DATA, _field(entry, "data_name", root, name))
    chains = _unzipped(root, _DRAWS, _field(entry, "reference_posterior_name", root, name))
    if not isinstance(data, dict):
        raise _damaged(root, f"the data of {name} are not a JSON object")
    parameters, draws = _stacked(chains, root, name)
    return Stored(name, data, parameters, draws)


def find(directory: str | os.PathLike[str] | None) -> Path:
    """The directory that holds posteriors, at or below the given one."""
    if directory is None:
        raise InputError(f"posteriordb is read from --data-dir DIR, which is missing. {_REMEDY}")
    root = Path(directory)
    found = first(root, FOLDERS, lambda place: (place / "posteriors").is_dir())
    if found is None:
        why = no_directory(root) or "the directory exists but has no posteriors/ in it"
        raise InputError(f"posteriordb is not in {root}: {why}. {_REMEDY}")
    return found


_REMEDY = f"Clone {SOURCE} and pass its posterior_database directory."


def _field(entry: Any, key: str, root: Path, name: str) -> str:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not untrusted.is_plain_name(value):
        raise _damaged(root, f"{name}.json names {str(value)[:200]!r} as its {key}")
    return value


def _document(path: Path) -> Any:
    try:
        return untrusted.json_value(untrusted.content(path, LARGEST))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    except ValueError as error:
        raise StorageError(f"{path} is not JSON: {str(error)[:200]}. {_REMEDY}") from error


def _unzipped(root: Path, places: tuple[str, ...], name: str) -> Any:
    """The JSON document of the archive of this name."""
    paths = [root / place / f"{name}.json.zip" for place in places]
    path = next((path for path in paths if path.is_file()), paths[0])
    try:
        with zipfile.ZipFile(io.BytesIO(untrusted.content(path, LARGEST))) as archive:
            (member,) = archive.infolist()
            if member.file_size > LARGEST:
                raise _damaged(path, f"it unpacks to {member.file_size:,} bytes")
            return untrusted.json_value(archive.read(member))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    except _UNREADABLE as error:
        raise _damaged(path, str(error)[:200]) from error


def _stacked(
    chains: Any, root: Path, name: str
) -> tuple[tuple[str, ...], Float[np.ndarray, "n q"]]:
    if not (isinstance(chains, list) and chains and all(isinstance(c, dict) and c for c in chains)):
        raise _damaged(root, f"the reference draws of {name} are not a list of chains")
    parameters = tuple(chains[0])
    if any(tuple(chain) != parameters for chain in chains):
        raise _damaged(root, f"the chains of {name} have different parameters")
    try:
        columns = [np.concatenate([chain[p] for chain in chains]) for p in parameters]
        draws = np.stack(columns, 1).astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise _damaged(
            root, f"the reference draws of {name} do not fit together ({str(error)[:200]})"
        ) from error
    if not np.isfinite(draws).all():
        raise _damaged(root, f"a reference draw of {name} is not finite")
    return parameters, draws


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} is damaged: {why}. {_REMEDY}")
