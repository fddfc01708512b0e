"""The plot of a prediction over one input."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError

mpl.use("Agg")


def trained(likelihood, y):
    X = np.linspace(-1, 1, 12)[:, None]
    network = gpvi.bnn.mlp((1, 3, 3 if likelihood == "categorical" else 1), "tanh")
    with gpvi.errors.quietly():
        made = gpvi.bnn.fit(
            network, likelihood, X, y(X), key=0, method="svgd", steps=3, progress=False
        )
    return made, X


@pytest.mark.slow
def test_a_band_of_the_interval():
    predictive, X = trained("gaussian", lambda X: X)
    ax = predictive.plot(X, X[:, 0], level=0.8, key=2)
    curve, data = ax.lines
    grid = np.asarray(curve.get_xdata())
    assert (grid[0], grid[-1]) == pytest.approx((-1.2, 1.2))
    found = predictive.predict(grid[:, None], key=2).mean
    np.testing.assert_allclose(curve.get_ydata(), np.asarray(found)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(data.get_xydata(), np.stack([X[:, 0], X[:, 0]], 1), rtol=1e-6)
    low, high = predictive.interval(grid[:, None], 0.8, key=2)
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(float(np.min(low)), rel=1e-4)
    assert band[:, 1].max() == pytest.approx(float(np.max(high)), rel=1e-4)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["80% of y", "mean", "data"]
    assert predictive.plot(X, ax=ax) is ax
    for wrong in (np.zeros((3, 2)), np.zeros(3), np.zeros((0, 1))):
        with pytest.raises(InputError, match="over one input"):
            predictive.plot(wrong)
    plt.close("all")


def test_probabilities_of_classes():
    predictive, X = trained("categorical", lambda X: np.arange(len(X)) % 3)
    ax = predictive.plot(X)
    curves = np.stack([line.get_ydata() for line in ax.lines])
    np.testing.assert_allclose(curves.sum(0), 1, rtol=1e-5)
    assert [line.get_label() for line in ax.lines] == ["P(y = 0)", "P(y = 1)", "P(y = 2)"]
    plt.close("all")
