"""Which cases of a test run at once, which are left to the slow ones, and which of these run together."""

import zlib

import pytest

PARTS = 4
"""The slow tests run in so many parts; each is to take less than 20 minutes on two cores."""


def part(name: str) -> int:
    """The part of a slow test, by its name alone: it stays there whatever tests come and go."""
    return number(zlib.crc32(name.encode()))


def number(count: int) -> int:
    """From 1 to `PARTS`, counted round and round."""
    return (count - 1) % PARTS + 1


def some_slow(cases, fast):
    """All cases of one parameter; those beside `fast` are slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def slow(*values, id=None):
    """One case that is slow."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)
