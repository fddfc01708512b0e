"""Damage to files and words that is the same for the same seed: what a broken disk does, and what an attacker would."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUMBERS = (
    "-1",
    "0",
    "1e999",
    "-1e999",
    "NaN",
    str(2**31),
    str(2**60),
    "9" * 30,
    "9" * 5_000,
    "1.5",
    "null",
    "true",
)
NAMES = (
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "",
    "a\0b",
    "x" * 5_000,
    "\udcff",
    "CON",
    "~",
    "%s%n",
    "é/ü",
)
WORDS = tuple(word.encode("utf-8", "surrogateescape") for word in (*NUMBERS, *NAMES))
BOMB = gzip.compress(bytes(2**20), 1) * 400
"""Four hundred thousand bytes that unpack to four hundred million."""


class Mutator:
    """Draws one kind of damage after another."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self._rng.integers(max(1, n)))

    def pick(self, items):
        return items[self.below(len(items))]

    def content(self, content: bytes) -> bytes:
        """The content after one to four blows."""
        for _ in range(1 + self.below(4)):
            content = self.pick(self.BLOWS)(self, content)
        return content

    def _flip(self, content: bytes) -> bytes:
        if not content:
            return content
        at = self.below(len(content))
        return content[:at] + bytes([content[at] ^ (1 << self.below(8))]) + content[at + 1 :]

    def _truncate(self, content: bytes) -> bytes:
        return content[: self.below(len(content) + 1)]

    def _grow(self, content: bytes) -> bytes:
        return content + self._rng.bytes(self.below(600))

    def _cut(self, content: bytes) -> bytes:
        at = self.below(len(content))
        return content[:at] + content[at + 1 + self.below(64) :]

    def _repeat(self, content: bytes) -> bytes:
        at = self.below(len(content))
        piece = content[at : at + 1 + self.below(128)]
        return content[:at] + piece * (1 + self.below(8)) + content[at:]

    def _integer(self, content: bytes) -> bytes:
        """A length that lies: 0, 1, −1, 2³¹, 2⁶⁰ in 1 to 8 bytes of either order."""
        size = self.pick((1, 2, 4, 8))
        value = self.pick((0, 1, 2**31, 2**32 - 1, 2**60, 2**64 - 1)) % 2 ** (8 * size)
        at = self.pick((self.below(min(16, len(content) + 1)), self.below(len(content) + 1)))
        word = value.to_bytes(size, self.pick(("little", "big")))
        return content[:at] + word + content[at + size :]

    def _number(self, content: bytes) -> bytes:
        """Digits of the text exchanged for another number or name."""
        digits = [i for i, byte in enumerate(content[:20_000]) if 48 <= byte <= 57]
        if not digits:
            return content
        at = self.pick(digits)
        end = at
        while end < len(content) and content[end : end + 1] in b"0123456789.eE+-":
            end += 1
        return content[:at] + self.pick(WORDS) + content[max(end, at + 1) :]

    def _name(self, content: bytes) -> bytes:
        """What stands between two quotes exchanged."""
        quotes = [i for i, byte in enumerate(content[:20_000]) if byte == 34]
        if len(quotes) < 2:
            return content
        at = self.below(len(quotes) - 1)
        return content[: quotes[at] + 1] + self.pick(WORDS) + content[quotes[at + 1] :]

    def _nest(self, content: bytes) -> bytes:
        depth = self.pick((10, 100, 5_000, 200_000))
        at = self.below(len(content) + 1)
        opening = self.pick((b"[", b'{"a":', b"(", b"[],"))
        return content[:at] + opening * depth + content[at:]

    def _noise(self, content: bytes) -> bytes:
        return self._rng.bytes(self.below(300))

    def _text(self, content: bytes) -> bytes:
        at = self.below(len(content) + 1)
        return (
            content[:at]
            + self.pick((b"\xff\xfe", b"\xc3", b"\0" * 9, b"\r\n", b",,", b"}{", b"#", b" "))
            + content[at:]
        )

    BLOWS: tuple[Callable, ...] = (
        _flip, _flip, _flip, _truncate, _grow, _cut, _repeat, _integer, _integer,
        _number, _number, _number, _name, _name, _nest, _noise, _text,
    )  # fmt: skip

    def file(self, path: Path) -> None:
        """The file itself: gone, empty, a link, a directory, a pipe."""
        kind = self.below(6)
        path.unlink()
        if kind == 0:
            return
        if kind == 1:
            path.touch()
        elif kind == 2:
            path.symlink_to("/dev/zero")
        elif kind == 3:
            path.mkdir()
        elif kind == 4:
            os.mkfifo(path)
        else:
            path.symlink_to(path)

    def words(self, words: list[str]) -> list[str]:
        """A command line with one to three blows."""
        words = list(words)
        for _ in range(1 + self.below(3)):
            at, kind = self.below(len(words) + 1), self.below(6)
            if kind == 0 and words:
                words.pop(at % len(words))
            elif kind == 1:
                words.insert(at, self.pick(WORDS).decode("utf-8", "surrogateescape"))
            elif kind == 2 and words:
                words[at % len(words)] = self.pick(WORDS).decode("utf-8", "surrogateescape")
            elif kind == 3 and words:
                words.insert(at, self.pick(words))
            elif words:
                word = words[at % len(words)].encode("utf-8", "surrogateescape")
                words[at % len(words)] = self.content(word)[:10_000].decode(
                    "utf-8", "surrogateescape"
                )
        return words


def restore(path: Path, content: bytes) -> None:
    """The file as it was, whatever became of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(content)
