"""Fixtures of every test: keys that never repeat within a test, and double precision for the oracles."""

import itertools

import hypothesis
import jax
import pytest

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
