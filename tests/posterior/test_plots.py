"""Plots: axes in, axes out; what is drawn is what the draws say."""

import re

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import gpvi
from gpvi import Target
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError
from gpvi.posterior import plots
from gpvi.posterior.history import Training
from gpvi.supports import Simplex
from known_posteriors import gaussian, particles

mpl.use("Agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def posterior(dim=2, **options):
    of = Target(log_density, dim=dim, dtype="float64", **options)
    return gaussian(of, mean=0.0, variance=1.0)


@pytest.mark.parametrize(("dim", "shape"), [(1, ()), (2, (2, 2)), (3, (3, 3)), (8, (5, 5))])
def test_pairs(dim, shape):
    axes = posterior(dim).plot(draws=200)
    assert np.shape(axes) == shape
    if dim == 3:
        assert [panel.axison for panel in axes.flat] == [1, 0, 0, 1, 1, 0, 1, 1, 1]
        assert axes[2, 1].get_xlabel() == "x[1]"
        assert axes[2, 1].get_ylabel() == "x[2]"


@pytest.mark.parametrize(("dim", "shape"), [(1, ()), (2, (1, 2)), (5, (2, 4)), (20, (3, 4))])
def test_marginals(dim, shape):
    axes = posterior(dim).plot(kind="marginals", draws=200)
    assert np.shape(axes) == shape
    assert sum(panel.axison for panel in np.ravel(axes)) == min(dim, 12)


def test_names_choose_what_is_shown():
    of = Target.from_supports(
        lambda p: -(p["a"] ** 2), {"a": "positive", "mix": Simplex(3)}, dtype="float64"
    )
    one = gaussian(of, mean=0.0, variance=1.0)
    assert one.plot("a", draws=200).get_xlabel() == "a"
    three = one.plot("mix", kind="marginals", draws=200)
    assert [panel.get_xlabel() for panel in three.flat] == ["mix[0]", "mix[1]", "mix[2]"]
    assert one.plot(["a", "mix[2]"], draws=200)[1, 0].get_ylabel() == "mix[2]"
    with pytest.raises(UnknownOptionError, match="Did you mean 'mix\\[2\\]'"):
        one.plot("mix[3]")


def test_axes_that_are_given_are_returned():
    _, ax = plt.subplots()
    assert posterior().plot(ax=ax, draws=200) is ax
    assert len(ax.lines) == 1, "a pair, not a marginal"
    _, axes = plt.subplots(1, 2)
    returned = posterior().plot(kind="marginals", ax=axes, draws=200)
    assert list(returned.flat) == list(axes)
    assert posterior().plot_weights(ax=ax) is ax
    assert posterior(3).plot(["x[2]"], ax=ax, draws=200) is ax
    with pytest.raises(InputError, match=re.escape("ax holds 2 axes, but 3 × 3 are needed")):
        posterior(3).plot(ax=axes, draws=200)
    with pytest.raises(InputError, match="ax is 'here'"):
        posterior().plot_weights(ax="here")


def test_contours_enclose_the_shares_of_the_target():
    """Of a standard normal, circles of radius √(−2 log(1 − share))."""
    ax = posterior().plot(draws=1_000)[1, 0]
    (contours,) = [each for each in ax.collections if hasattr(each, "levels")]
    radii = sorted(
        np.hypot(*path.vertices.T).mean() for path in contours.get_paths() if len(path.vertices)
    )
    for radius, share in zip(radii, (0.5, 0.9), strict=False):
        assert radius == pytest.approx(np.sqrt(-2 * np.log(1 - share)), rel=0.05)


def test_no_contours_where_the_plane_is_not_that_of_log_p(tmp_path):
    def contoured(axes):
        return any(hasattr(each, "levels") for each in axes[1, 0].collections)

    one = posterior()
    assert contoured(one.plot(draws=200))
    assert not contoured(one.plot(["x[1]", "x[0]"], draws=200))
    one.save(tmp_path / "saved")
    assert not contoured(gpvi.load(tmp_path / "saved").plot(draws=200))
    of = Target.from_supports(
        lambda p: -(p["a"] ** 2), {"a": "positive", "b": "real"}, dtype="float64"
    )
    assert not contoured(gaussian(of, mean=0.0, variance=1.0).plot(draws=200))


def test_the_same_posterior_has_the_same_picture():
    def drawn(**options):
        return posterior().plot(draws=50, **options)[1, 0].lines[0].get_xydata()

    np.testing.assert_array_equal(drawn(), drawn(key=0))
    assert (drawn(key=1) != drawn()).any()


def test_weights_fall_from_the_largest_and_average_one():
    wide = gaussian(Target(log_density, dim=1, dtype="float64"), mean=0.0, variance=2.0)
    ax = wide.plot_weights(draws=500, key=3)
    for line in ax.lines[:2]:
        weights = np.asarray(line.get_ydata())
        assert weights.mean() == pytest.approx(1, rel=1e-6)
        assert (np.diff(weights) <= 0).all()
    assert re.fullmatch(r"k̂ = -?\d\.\d\d, effective share 0\.\d{3}", ax.get_title())
    with pytest.raises(InputError, match="k̂ needs 100"):
        wide.plot_weights(draws=50)
    with jax.enable_x64(True):
        points = particles(np.zeros((5, 1)), wide.target)
    with pytest.raises(NotAvailableError, match="plot_weights needs the density"):
        points.plot_weights()
    assert points.plot() is not None


def test_curves_of_training():
    history = {"gradient_norm": np.ones(200), "elbo": np.linspace(-5, 0, 200)}
    training = Training(200, 200, 1.0, history)
    ax = training.plot()
    assert ax.get_ylabel() == "elbo"
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), history["elbo"])
    assert training.plot("gradient_norm", ax=ax) is ax
    with pytest.raises(UnknownOptionError, match="Did you mean 'elbo'"):
        training.plot("elb")
    with pytest.raises(InputError, match="no curve to draw"):
        Training(0, 0, 0.0, {}).plot()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for ask in (posterior().plot, posterior().plot_weights, lambda: plots.new_axes(1, 1)):
        with pytest.raises(NotAvailableError, match=r"pip install 'gpvi\[plots\]'"):
            ask()


def test_draws_that_do_not_vary_are_drawn():
    with jax.enable_x64(True):
        points = particles(np.zeros((5, 2)), posterior().target)
    assert points.plot().shape == (2, 2)
