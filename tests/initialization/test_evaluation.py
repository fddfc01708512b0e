"""The log-density of the search: its batches, and fewer evaluations if it is expensive."""

import jax
import numpy as np
import pytest

from gpvi.initialization import _evaluation as evaluation
from gpvi.initialization import variational
from gpvi.initialization._candidates import CANDIDATES
from gpvi.initialization._evaluation import BATCH, BLOCK, HostDensity

pytestmark = pytest.mark.usefixtures("x64")


def gaussian(x):
    return -0.5 * (x**2).sum()


@pytest.mark.parametrize("number", [1, BATCH, BATCH + 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_values_are_those_of_each_point_however_many_there_are(number):
    x = np.random.default_rng(0).standard_normal((number, 3))
    found = HostDensity(lambda x: -0.5 * (x**2).sum(), 3).values(x)
    np.testing.assert_allclose(found, -0.5 * (x**2).sum(1), rtol=1e-12)


def test_fewer_candidates_and_scores(monkeypatch):
    asked = []
    values = HostDensity.values
    monkeypatch.setattr(
        HostDensity, "values", lambda self, x: (asked.append(len(x)), values(self, x))[1]
    )
    variational(gaussian, np.zeros(2), key=jax.random.key(0))
    assert max(asked) == CANDIDATES
    usual = sum(asked)
    asked.clear()
    monkeypatch.setattr(evaluation, "EXPENSIVE", 0)
    found = variational(gaussian, np.zeros(2), key=jax.random.key(0))
    assert sum(asked) < usual / 3
    np.testing.assert_allclose(found.location, 0.0, atol=0.05)
    np.testing.assert_allclose(np.asarray(found.scale), np.eye(2), atol=0.05)


def test_calls_stay_short(monkeypatch):
    sizes = []
    call = HostDensity._call
    monkeypatch.setattr(
        HostDensity, "_call", lambda self, f, x: (sizes.append(len(x)), call(self, f, x))[1]
    )
    points = np.zeros((BLOCK, 2))
    cheap = HostDensity(gaussian, 2).values(points)
    assert sizes == [BLOCK]
    monkeypatch.setattr(evaluation, "EXPENSIVE", 0)
    np.testing.assert_array_equal(HostDensity(gaussian, 2).values(points), cheap)
    assert set(sizes[1:]) == {BATCH}
