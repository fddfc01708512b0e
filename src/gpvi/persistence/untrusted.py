"""Files from anywhere: what is read of them is bounded before it is in memory.

A few bytes can promise many: a compressed file of a kilobyte unpacks to a megabyte, and three bytes of JSON, `[],`,
make a list of fifty-six. Functions raise `OSError` if the file cannot be read, and `ValueError` if its content is not
what it must be; the caller adds which file it was and what to do.
"""

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard

MAX_CONTAINERS = 1_000_000
"""Lists and objects of a JSON document."""
MAX_DIGITS = 18
"""Of a whole number: more do not fit into 64 bits."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading; refuse a directory, pipe or device before it is opened."""
    _check_regular(path, os.stat(path))
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        _check_regular(path, os.fstat(file.fileno()))  # it may have been replaced since
        yield file


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "it is not a regular file", str(path))


def content(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; unpack a gzipped one (NAME.gz) to at most as many."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".gz":
            data = _unpacked(file, limit)
        elif size > limit:
            raise ValueError(f"it has {size:,} bytes, more than {limit:,}")
        else:
            data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it holds more than {limit:,} bytes")
    return data


def _unpacked(file: BufferedReader, limit: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            return stream.read(limit + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"it does not unpack ({error})") from error


def json_value(content: bytes) -> Any:
    """Parse a JSON document with a bounded number of parts that is not nested too deeply."""
    containers = content.count(b"[") + content.count(b"{")
    if containers > MAX_CONTAINERS:
        raise ValueError(f"it holds {containers:,} lists and objects, more than {MAX_CONTAINERS:,}")
    try:
        return json.loads(content.decode("utf-8"), parse_int=_bounded_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_strings(content: bytes, count: int) -> list[str]:
    """Parse a JSON list of exactly `count` strings, after checking that it is nothing else.

    There may be millions of them, and they may contain brackets and commas, so neither is a sign of trouble. The check
    replaces the strings by nothing: `[`, commas and `]` must remain.
    """
    if not 1 <= count <= len(content) // 3:  # quotes and a comma for each
        raise ValueError(f"{len(content):,} bytes do not hold {count:,} strings")
    rest, found = _STRING.subn(b"", content, count=count)
    if found != count or rest.translate(None, b" \t\r\n") != b"[" + b"," * (count - 1) + b"]":
        raise ValueError(f"it is not a list of {count:,} strings")
    return json.loads(content.decode("utf-8"))


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the number {digits[:MAX_DIGITS]}… is too large")
    return int(digits)


def is_plain_name(name: object) -> TypeGuard[str]:
    """Whether a name in a file can only refer to a file in the same directory."""
    allowed = r"[\w\-+. ()\[\],=]{1,200}"
    return (
        isinstance(name, str)
        and re.fullmatch(allowed, name, re.ASCII) is not None
        and name.strip(". ") != ""
    )
