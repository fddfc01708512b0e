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

from gpvi.errors import InputError
from gpvi.persistence import untrusted
from gpvi_paper.data.files import located, reading

SOURCE = "https://github.com/stan-dev/posteriordb"
FOLDERS = (".", "posterior_database", "posteriordb", "posteriordb/posterior_database")
"""Where below the given directory the files may lie."""
LARGEST = 128 * 2**20
"""No document of posteriordb is so long once unpacked."""

_UNREADABLE = (
    EOFError,
    OverflowError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Errors that a malformed archive may raise, beside `ValueError`."""
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


_REMEDY = f"Clone {SOURCE} and pass its posterior_database directory."


def read(directory: str | os.PathLike[str] | None, name: str) -> Stored:
    """The data and the reference draws of a posterior, such as "eight_schools-eight_schools_centered"."""
    root = find(directory)
    if not untrusted.is_plain_name(name):
        raise InputError(f"{name[:200]!r} is not the name of a posterior. {_REMEDY}")
    path = root / "posteriors" / f"{name}.json"
    with reading(path, _REMEDY):
        entry = untrusted.json_value(untrusted.content(path, LARGEST))
        data_name, draws_name = (
            _field(entry, key) for key in ("data_name", "reference_posterior_name")
        )
    data = _unzipped(root, _DATA, data_name)
    chains = _unzipped(root, _DRAWS, draws_name)
    with reading(root, _REMEDY):
        if not isinstance(data, dict):
            raise ValueError(f"the data of {name} are not a JSON object")
        return Stored(name, data, *_stacked(chains, name))


def find(directory: str | os.PathLike[str] | None) -> Path:
    """The directory that holds posteriors, at or below the given one."""
    if directory is None:
        raise InputError(f"posteriordb is read from --data-dir DIR, which is missing. {_REMEDY}")
    root = Path(directory)
    return located(
        "posteriordb is",
        [root / folder for folder in FOLDERS],
        lambda place: (place / "posteriors").is_dir(),
        root,
        lambda: "the directory exists but has no posteriors/ in it",
        _REMEDY,
    )


def _field(entry: Any, key: str) -> str:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not untrusted.is_plain_name(value):
        raise ValueError(f"it names {str(value)[:200]!r} as its {key}")
    return value


def _unzipped(root: Path, places: tuple[str, ...], name: str) -> Any:
    """The JSON document of the archive of this name."""
    paths = [root / place / f"{name}.json.zip" for place in places]
    path = next((path for path in paths if path.is_file()), paths[0])
    with reading(path, _REMEDY, *_UNREADABLE):
        packed = io.BytesIO(untrusted.content(path, LARGEST))
        with zipfile.ZipFile(packed) as archive:
            (member,) = archive.infolist()
            if member.file_size > LARGEST:
                raise ValueError(f"it unpacks to {member.file_size:,} bytes")
            return untrusted.json_value(archive.read(member))


def _stacked(chains: Any, name: str) -> tuple[tuple[str, ...], Float[np.ndarray, "n q"]]:
    if not (isinstance(chains, list) and chains and all(isinstance(c, dict) and c for c in chains)):
        raise ValueError(f"the reference draws of {name} are not a list of chains")
    parameters = tuple(chains[0])
    if any(tuple(chain) != parameters for chain in chains):
        raise ValueError(f"the chains of {name} have different parameters")
    try:
        columns = [np.concatenate([chain[p] for chain in chains]) for p in parameters]
        draws = np.stack(columns, 1).astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"the reference draws of {name} do not fit together ({str(error)[:100]})"
        ) from error
    if not np.isfinite(draws).all():
        raise ValueError(f"a reference draw of {name} is not finite")
    return parameters, draws
