"""Fetches image sets from their hosts into a cache, by pooch; every file is checked against its known digest."""

from pathlib import Path
from typing import NamedTuple

from gpvi.errors import InputError, NotAvailableError, StorageError


class Source(NamedTuple):
    """The files of a data set with their SHA-256, and the hosts that have them, the first one preferred."""

    hosts: tuple[str, ...]
    files: dict[str, str]


SOURCES: dict[str, Source] = {
    "mnist": Source(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "cifar10": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        {
            "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        },
    ),
}
"""MNIST's original host no longer serves it: both hosts are mirrors, checked against its digests."""


def fetch(name: str, cache: Path | None = None) -> Path:
    """The directory that holds the files of this data set, downloaded if not in the cache."""
    source = SOURCES[name]
    try:
        import pooch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise NotAvailableError(
            f"{name} is not cached, and downloading needs pooch: pip install 'gpvi[data]', or pass --data-dir DIR with "
            f"{', '.join(source.files)} in it."
        ) from None
    folder = (Path(pooch.os_cache("gpvi")) if cache is None else cache) / name
    for file, digest in source.files.items():
        failures = []
        for host in source.hosts:
            try:
                pooch.retrieve(host + file, known_hash=f"sha256:{digest}", fname=file, path=folder)
                break
            except ValueError as error:
                raise StorageError(
                    f"{host}{file} is not the published file: {error}. Try again, or pass --data-dir DIR."
                ) from error
            except OSError as error:  # requests' errors are, too
                failures.append(f"{host}: {error}")
        else:
            raise InputError(
                f"{file} of {name} could not be downloaded ({'; '.join(failures)}). Fetch it by other means and pass "
                "--data-dir DIR."
            )
    return folder
