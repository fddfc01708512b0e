"""The reliability diagram draws what `gpvi.metrics.reliability` computes."""

import numpy as np
from matplotlib.figure import Figure

from gpvi import metrics
from gpvi_paper.report.charts.reliability import draw_reliability, reliability_diagram


def test_each_curve_is_shown_with_its_error():
    rng = np.random.default_rng(0)
    bins = metrics.reliability(rng.dirichlet(np.ones(4), 60), rng.integers(0, 4, 60), bins=5)
    drawing = reliability_diagram({"mixture": bins, "first": bins})
    assert drawing.startswith("<svg") and "mixture" in drawing
    assert drawing.count(f"ECE {float(bins.error):.3f}") == 2
    assert "currentColor" in drawing


def test_empty_bins_are_left_out():
    bins = metrics.reliability(np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 1]), bins=10)
    axes = Figure().subplots()
    draw_reliability(axes, {"a": bins})
    drawn = np.stack(axes.lines[1].get_data(), 1)
    np.testing.assert_allclose(drawn, [[0.6, 0.0], [0.8, 1.0]])
