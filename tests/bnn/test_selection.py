"""Choices by held-out rows: noise where it varies, and a stop before networks follow single rows."""

import jax
import numpy as np

from gpvi import bnn
from gpvi.bnn._selection import Choice, Curve, chosen, held_out_curve

KEY = jax.random.key(0)


def test_the_choice_is_the_least_nll_and_then_the_least_rmse():
    steps = np.array([10, 20, 30])
    plain = Curve(steps, np.array([0.1, 0.1, 0.1]), np.array([1.0, 0.9, np.nan]))
    varying = Curve(steps, np.array([0.5, 0.4, np.nan]), np.array([0.8, 1.2, np.nan]))
    assert chosen([plain, varying]) == Choice(1, 20)


def curves(y, X):
    options = {"members": 3, "steps": 600, "batch_size": 128, "key": KEY}
    pairs = [(bnn.Gaussian(), 1), (bnn.Heteroscedastic(), 2)]
    return [
        held_out_curve(bnn.mlp((1, 16, o), "silu"), each, bnn.StandardNormal(), X, y, **options)
        for each, o in pairs
    ]


def test_noise_that_varies_is_found():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, (600, 1))
    noise = rng.normal(size=(600, 1))
    assert chosen(curves(np.sin(2 * X) + np.exp(1.5 * X - 2) * noise, X)).which == 1


def test_scores_are_of_rows_that_were_held_out():
    """A shuffled y can be fitted, but not predicted: no RMSE is below the standard deviation of y by much."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(200, 1)), rng.normal(size=(200, 1))
    found = curves(y, X)[0]
    assert len(found.steps) == 10 and found.steps[-1] == 600
    assert found.rmse.min() > 0.85
