"""Fixtures of every test: keys that never repeat within a test, and double precision for the oracles."""

import itertools
import os

import hypothesis
import jax
import pytest

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1"
"""Tests compile much and compute little: this saves an eighth of their time. Read when the first array is made."""

hypothesis.settings.register_profile("gpvi", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("gpvi")


@pytest.fixture
def getkey():
    """A function that gives a new key at every call; the same ones in every run."""
    count = itertools.count()
    return lambda: jax.random.key(next(count))


@pytest.fixture(scope="module")
def x64():
    """Compute in float64 for a whole module: `pytestmark = pytest.mark.usefixtures("x64")`."""
    with jax.enable_x64(True):
        yield
