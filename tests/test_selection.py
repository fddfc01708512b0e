"""The slow tests run in parts of about the same size, counted round and round."""

from collections import Counter

from selection import PARTS, number, part


def test_parts_are_about_as_large_as_each_other():
    names = [f"tests/room/test_thing.py::test_case[{i}]" for i in range(100 * PARTS)]
    counts = Counter(part(name) for name in names)
    assert counts.keys() == set(range(1, PARTS + 1))
    assert all(60 < count < 140 for count in counts.values())


def test_after_the_last_part_comes_the_first():
    assert [number(count) for count in range(PARTS + 2)] == [PARTS, *range(1, PARTS + 1), 1]
