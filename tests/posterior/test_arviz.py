"""Draws out: names, supports, chains and the groups that ArviZ reads, for posteriors known in closed form."""

import functools
import sys
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

import gpvi
from gpvi import Target
from gpvi.errors import InputError, NotAvailableError
from gpvi.methods.carriers import Chains
from known_posteriors import (
    MEAN,
    VARIANCE,
    Y,
    gaussian,
    holding,
    particles,
    target,
)

pytestmark = pytest.mark.usefixtures("unexplored")

mpl.use("Agg")
norm: Any = stats.norm


@functools.cache
def exported():
    return gaussian(target()).to_arviz(key=jax.random.key(1), draws=2_000)


def test_draws_have_names(getkey):
    posterior, key = gaussian(target()), getkey()
    draws = posterior.draws(50, key=key)
    assert set(draws) == {"mu", "twice"}
    np.testing.assert_allclose(draws["mu"], posterior.sample(50, key=key)[:, 0])
    np.testing.assert_allclose(draws["twice"], 2 * np.asarray(draws["mu"]))


def test_draws_of_a_plain_target_and_of_a_tree(getkey):
    def log_density(x):
        return -jnp.sum(x**2)

    plain = gaussian(Target(log_density, dim=2, dtype="float64"))
    assert plain.draws(3, key=getkey())["x"].shape == (3, 2)
    named = gaussian(Target(log_density, dim=2, dtype="float64", names=("a", "b")))
    assert {name: x.shape for name, x in named.draws(3, key=getkey()).items()} == {
        "a": (3,),
        "b": (3,),
    }
    tree = {"w": np.zeros((2, 1)), "b": [np.zeros(1)]}
    of_tree = Target.from_pytree(lambda t: -jnp.sum(t["w"] ** 2), tree, dtype="float64")
    draws = gaussian(of_tree).draws(3, key=getkey())
    assert jax.tree.map(np.shape, draws) == {"w": (3, 2, 1), "b": [(3, 1)]}
    data = particles(np.zeros((2, 3)), of_tree).to_arviz(key=getkey())
    assert set(data["posterior"].data_vars) == {"w", "b.0"}


def test_a_loaded_posterior_needs_its_target(tmp_path, getkey):
    gaussian(target()).save(tmp_path / "saved")
    loaded = gpvi.load(tmp_path / "saved")
    for ask in (lambda: loaded.draws(3, key=getkey()), lambda: loaded.to_arviz(key=getkey())):
        with pytest.raises(NotAvailableError, match=r"needs the target.*with_target"):
            ask()
    assert set(loaded.with_target(target()).draws(3, key=getkey())) == {"mu", "twice"}


def test_the_groups():
    data = exported()
    posterior, stats_group = data["posterior"], data["sample_stats"]
    assert posterior["mu"].dims == ("chain", "draw")
    assert posterior["mu"].shape == (4, 500)
    assert abs(float(posterior["mu"].mean()) - MEAN) < 5 * np.sqrt(VARIANCE / 2_000)
    mu = posterior["mu"].to_numpy()
    exact = norm(MEAN, np.sqrt(VARIANCE)).logpdf(mu)
    np.testing.assert_allclose(stats_group["lp_q"], exact, rtol=1e-9)
    evidence = stats_group["lp"].to_numpy() - exact
    np.testing.assert_allclose(evidence, evidence.mean(), rtol=1e-9)
    np.testing.assert_allclose(np.exp(stats_group["log_weight"]).sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(stats_group["log_weight"], -np.log(2_000), atol=1e-6)
    assert posterior.attrs["method"] == "GPVI"
    pointwise = data["log_likelihood"]["y"]
    assert pointwise.dims == ("chain", "draw", "datum")
    np.testing.assert_allclose(pointwise, norm(mu[..., None], 1).logpdf(Y), rtol=1e-9)
    np.testing.assert_allclose(data["observed_data"]["y"], Y)
    assert data["observed_data"]["y"].dims == ("datum",)
    predicted = data["posterior_predictive"]["y"].to_numpy()
    assert predicted.shape == (4, 500, 30)
    assert abs(predicted.mean() - MEAN) < 5 * np.sqrt((1 / 30 + VARIANCE) / 2_000) * 30**0.5
    assert predicted.std() == pytest.approx(np.sqrt(1 + VARIANCE), rel=0.02)


def test_loo_is_the_leave_one_out_density():
    """elpd_loo against Σ log N(y_i; m_{−i}, 1 + v_{−i}), the exact predictive density without datum i."""
    found = arviz.loo(exported())
    v = 1 / (1 / 100 + len(Y) - 1)
    exact = norm(v * (Y.sum() - Y), np.sqrt(1 + v)).logpdf(Y).sum()
    elpd = getattr(found, "elpd_loo", None) or found.elpd
    assert float(elpd) == pytest.approx(exact, abs=0.1)


def test_arviz_summarises_independent_draws_without_a_warning():
    """Warnings are errors in the tests; R̂ and ESS are those of independent draws."""
    found: Any = arviz.summary(exported(), var_names=["mu"], round_to="none")
    assert abs(float(found.loc["mu", "r_hat"]) - 1) < 0.01
    assert float(found.loc["mu", "ess_bulk"]) > 1_500


@pytest.mark.parametrize(("asked", "shape"), [(1, (4, 1)), (4, (4, 1)), (10, (4, 3))])
def test_the_number_of_draws_is_rounded_up_to_four_chains(asked, shape, getkey):
    data = gaussian(target()).to_arviz(key=getkey(), draws=asked, predictive=False)
    assert data["posterior"]["mu"].shape == shape
    total = np.exp(data["sample_stats"]["log_weight"].to_numpy()).sum()
    np.testing.assert_allclose(total, 1, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.slow
def test_arviz_plots_the_predictive():
    name = "plot_ppc" if hasattr(arviz, "plot_ppc") else "plot_ppc_dist"
    assert getattr(arviz, name)(exported()) is not None
    plt.close("all")


def test_the_container_of_arviz_one(monkeypatch, getkey):
    import xarray

    monkeypatch.setattr(arviz, "__version__", "1.0.0")
    data = particles(np.zeros((10, 1)), target()).to_arviz(key=getkey(), predictive=False)
    assert isinstance(data, xarray.DataTree)
    assert set(data.children) == {"posterior", "sample_stats", "log_likelihood", "observed_data"}
    assert data["posterior/mu"].shape == (1, 10)


def test_particles_have_no_weights(getkey):
    data = particles([[0.0], [1.0]], target()).to_arviz(key=getkey())
    np.testing.assert_allclose(data["posterior"]["mu"], [[0.5, 2.5]])
    assert set(data["sample_stats"].data_vars) == {"lp"}
    assert data["posterior_predictive"]["y"].shape == (1, 2, 30)


def test_chains_stay_apart(getkey):
    """Row i·c + j is draw i of chain j; thinning keeps whole draws in order."""
    rows = np.arange(12.0)[:, None]
    with jax.enable_x64(True):
        model = Chains(jnp.asarray(rows), jnp.asarray(rows[:, 0] == 5), jnp.asarray(4), 3)
    posterior = holding(model, target())
    whole = posterior.to_arviz(key=getkey(), predictive=False, log_likelihood=False)
    values = (whole["posterior"]["mu"].to_numpy() - 0.5) / 2
    np.testing.assert_allclose(values, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])
    assert np.argwhere(whole["sample_stats"]["diverging"].to_numpy()).tolist() == [[2, 1]]
    thin = posterior.to_arviz(key=getkey(), draws=6, predictive=False, log_likelihood=False)
    values = (thin["posterior"]["mu"].to_numpy() - 0.5) / 2
    np.testing.assert_allclose(values, [[0, 9], [1, 10], [2, 11]])


@pytest.mark.parametrize("pointwise", [True, False])
def test_pointwise_likelihood_of_a_target_with_data(pointwise, getkey):
    def each(x, y):
        return -((y - x[0]) ** 2)

    def total(x, y):
        return each(x, y).sum()

    of = Target(log_likelihood=each if pointwise else total, data=Y, dim=1, dtype="float64")
    data = particles(np.linspace(0, 1, 4)[:, None], of).to_arviz(key=getkey())
    assert hasattr(data, "log_likelihood") == pointwise
    if pointwise:
        x = data["posterior"]["x"].to_numpy()
        np.testing.assert_allclose(data["log_likelihood"]["data"], -((Y - x) ** 2), rtol=1e-12)


def test_groups_that_would_not_fit(monkeypatch, getkey):
    monkeypatch.setattr("gpvi.posterior.arviz.LARGEST", 1_000)
    with pytest.raises(InputError, match=r"100 draws .* 30 data are 3,000 numbers.*predictive=Fal"):
        gaussian(target()).to_arviz(key=getkey(), draws=100)
    with pytest.raises(InputError, match="log_likelihood=False"):
        gaussian(target()).to_arviz(key=getkey(), draws=100, predictive=False)


def test_without_arviz(monkeypatch, getkey):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'gpvi\[arviz\]'"):
        gaussian(target()).to_arviz(key=getkey())


def test_a_variable_with_the_name_of_an_axis_is_refused(getkey):
    of = Target(lambda x: -0.5 * x @ x, dim=2, names=["chain", "speed"])
    with pytest.raises(InputError, match=r"'chain' is the name of an unknown.* rename yours"):
        particles(np.zeros((4, 2)), of).to_arviz(key=getkey())
