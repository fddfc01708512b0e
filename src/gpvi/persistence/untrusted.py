"""Files that nobody vouches for: what is read of them is bounded before it is in memory.

A few bytes can promise many: a compressed file of a kilobyte unpacks to a megabyte, and three bytes of JSON, `[],`,
make an object of sixty-four. Errors are `OSError` where the file cannot be read, `ValueError` where its content is not
what it must be; whoever reads says which file it was and what to do.
"""

import gzip
import io
import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, TypeGuard

MOST_CONTAINERS = 1_000_000
"""Lists and objects of a JSON document."""
MOST_DIGITS = 18
"""Of a whole number: more do not fit into 64 bits."""


def content(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes; of a gzipped one (NAME.gz), what it unpacks to."""
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "it is not a regular file")
        if path.suffix == ".gz":
            found = _unpacked(file, limit)
        else:
            if status.st_size > limit:
                raise ValueError(f"it has {status.st_size:,} bytes, more than {limit:,}")
            found = file.read(limit + 1)
    if len(found) > limit:
        raise ValueError(f"it holds more than {limit:,} bytes")
    return found


def _unpacked(file: io.BufferedReader, limit: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            return stream.read(limit + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"it does not unpack ({error})") from error


def json_value(content: bytes) -> Any:
    """The value of a JSON document of a sensible number of parts, not too deeply nested."""
    containers = content.count(b"[") + content.count(b"{")
    if containers > MOST_CONTAINERS:
        raise ValueError(
            f"it holds {containers:,} lists and objects, more than {MOST_CONTAINERS:,}"
        )
    try:
        return json.loads(content.decode("utf-8"), parse_int=_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"the number {digits[:MOST_DIGITS]}… is too large")
    return int(digits)


def is_plain_name(name: object) -> TypeGuard[str]:
    """Whether a name from a file is that of a neighbour, and leads nowhere else."""
    allowed = r"[\w\-+. ()\[\],=]{1,200}"
    return (
        isinstance(name, str)
        and re.fullmatch(allowed, name, re.ASCII) is not None
        and name.strip(". ") != ""
    )
