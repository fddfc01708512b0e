"""Standardisation, and the warning about data that are not standardised."""

import re

import numpy as np
import pytest

from gpvi.bnn.standardisation import Standardisation, standardisation_advice


@pytest.mark.parametrize(
    "units", [(1e200, 0.0), (1e-200, 0.0), (0.01, 1e9)], ids=["huge", "tiny", "far"]
)
def test_columns_in_any_units_are_standardised(units):
    scale, shift = units
    plain = np.random.default_rng(0).normal(size=(50, 2))
    own = Standardisation.of(plain * scale + shift).transform(plain * scale + shift)
    np.testing.assert_allclose(own, (plain - plain.mean(0)) / plain.std(0), atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e200, 3e9 + 0.1])
def test_a_constant_column_is_only_shifted(value):
    found = Standardisation.of(np.full((1_001, 1), value))
    assert found.scale == 1
    np.testing.assert_allclose(found.mean, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda x: x, None),
        (lambda x: x * [1, 0.02, 1], "column 1 has mean"),
        (lambda x: x + np.array([0, 0, 5]), "column 2 has mean [45]"),
        (lambda x: 5 + 0.01 * x, "column 0 .* column 1 .* column 2 "),
        (lambda x: x * [1, 1, 50], r"column 2 .* deviation [45]\d"),
        (lambda x: np.tile(x, 3) * 100, "; and 6 columns more"),
        (lambda x: (x > 2).astype(float), None),
        (lambda x: x * [1, 0, 1], None),
        (lambda x: x * [1, 0, 1] + [0, 1e6, 0], r"column 1 has mean 1e\+06 and deviation 0"),
        (lambda x: x.reshape(10, 10, 3, 1), None),
    ],
)
def test_columns_in_other_units_are_named(change, named):
    """Rare events of zeros and ones, constants near 0 and single dark pixels are no matter of units."""
    found = standardisation_advice(change(np.random.default_rng(0).standard_normal((100, 3))), "X")
    assert found is None if named is None else re.search(named, found or "")
