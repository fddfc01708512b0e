"""SVGD's fixed point in many dimensions against its closed form."""

import jax
import numpy as np

import gpvi
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.linear import collapse
from gpvi_paper.report.charts import curves


def test_svgd_keeps_the_variance_that_theory_says():
    """Eight particles in twenty dimensions end as a regular simplex: all distances equal, to the last digits."""
    n, dim = 8, 20
    posterior = gpvi.fit(
        gpvi.Target(collapse.log_density, dim=dim),
        gpvi.SVGD(particles=n),
        key=jax.random.key(0),
        steps=1_000,
        progress=False,
        init=None,
    )
    x = np.asarray(posterior.particles, float)
    ratio = x.var(0, ddof=1).mean() / collapse.SD**2
    np.testing.assert_allclose(ratio, collapse.collapsed_variance(n, dim), rtol=1e-3)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[np.triu_indices(n, 1)]
    np.testing.assert_allclose(squares, 2 * np.log(n) * n / (n - 1) * collapse.SD**2, rtol=1e-2)


def test_below_log_n_dimensions_nothing_collapses():
    assert collapse.collapsed_variance(1_000, 2) == 1.0
    assert collapse.collapsed_variance(50, 200) == 50 * np.log(50) / (49 * 200)


def test_smoke(monkeypatch):
    monkeypatch.setitem(collapse.FEW, "smoke", ((2,), (50,)))
    record = experiment("collapse").run("SVGD", "smoke", (0, 1), False)
    assert set(record.rows) == {"n50/variance_d2", "n50/theory_d2", "n50/seconds"}
    assert len(record.rows["n50/variance_d2"]) == 2


def test_the_figure_is_a_picture():
    line = ([2, 20, 200], np.array([[1.0, 0.5, 0.05], [1.0, 0.6, 0.06]]))
    image = curves.scaling_chart(
        {"SVGD": {"n = 50": line}}, {"n = 50": ([2, 200], [1.0, 0.04])}, ("d", "ratio")
    )
    assert image.startswith(b"\x89PNG")
