"""Which cases of a test run at once, and which are left to the slow ones."""

import pytest


def some_slow(cases, fast):
    """All cases of one parameter; those beside `fast` are slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def slow(*values, id=None):
    """One case that is slow."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)
