"""The table of a posterior's quantities, against NumPy, ArviZ and closed forms."""

from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gpvi
from gpvi.errors import InputError, NotAvailableError
from gpvi.methods.carriers import Chains
from gpvi.posterior.summary import SHOWN, aligned, summarise
from known_posteriors import MEAN, VARIANCE, gaussian, holding, particles, target


def test_of_a_density_known_in_closed_form(getkey):
    """The mean of 4,000 draws is within five standard errors; the quantiles are those of a Gaussian."""
    found = gaussian(target()).summary(key=getkey())
    sd = np.sqrt(VARIANCE)
    assert found.names == ("mu", "twice")
    assert found.draws == 4_000
    row = found["mu"]
    assert list(row) == ["mean", "sd", "5 %", "median", "95 %"]
    assert row["mean"] == pytest.approx(MEAN, abs=5 * sd / 4_000**0.5)
    assert row["sd"] == pytest.approx(sd, rel=0.06)
    for column, quantile in (("5 %", -1.645), ("median", 0), ("95 %", 1.645)):
        assert row[column] == pytest.approx(MEAN + quantile * sd, abs=0.15 * sd)
    for column, value in row.items():
        assert found["twice"][column] == pytest.approx(2 * value, rel=1e-9), column


def test_it_is_in_the_support_of_the_model(getkey):
    def scale():
        numpyro.sample("tau", dist.HalfNormal(1))
        numpyro.sample("theta", dist.Normal(0, 1).expand([2, 1]))

    of = gpvi.Target.from_numpyro(scale, dtype="float64")
    found = gaussian(of, mean=0.0, variance=1.0).summary(key=getkey(), draws=500)
    assert found.names == ("tau", "theta[0,0]", "theta[1,0]")
    assert found.draws == 500
    assert found["tau"]["5 %"] > 0


def test_chains_have_what_arviz_computes(getkey):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100 * 3, 1)) + np.tile([0.0, 0.2, 0.5], 100)[:, None]
    with jax.enable_x64(True):
        model = Chains(jnp.asarray(rows), jnp.zeros(300, bool), jnp.asarray(100), 3)
    posterior = holding(model, target())
    found = posterior.summary(key=getkey())
    data = posterior.to_arviz(key=getkey(), predictive=False, log_likelihood=False)
    theirs: Any = arviz.summary(data, round_to="none")
    for name in found.names:
        row = found[name]
        assert row["mean"] == pytest.approx(theirs.loc[name, "mean"], rel=1e-6)
        assert row["R̂"] == pytest.approx(theirs.loc[name, "r_hat"], rel=1e-6)
        worst = min(theirs.loc[name, "ess_bulk"], theirs.loc[name, "ess_tail"])
        assert row["ESS"] == pytest.approx(worst, rel=1e-6)


def test_of_particles_it_takes_all(getkey):
    found = particles([[0.0], [1.0], [5.0]], target()).summary(key=getkey())
    assert found.draws == 3
    assert found["mu"]["median"] == pytest.approx(2.5)


def test_the_table():
    rng = np.random.default_rng(0)
    named = {"mu": 1e3 + 7.0 * rng.standard_normal(50), "fixed": np.full(50, 0.25)}
    found = summarise(named, lambda x: None)
    x = named["mu"]
    cells = [f"{v:.2f}" for v in (x.mean(), x.std(), *np.quantile(x, [0.05, 0.5, 0.95]))]
    head, *lines = str(found).splitlines()
    assert head.split() == ["mean", "sd", "5", "%", "median", "95", "%"]
    assert lines[0].split() == ["mu", *cells]
    assert lines[1].split() == ["fixed", "0.25", "0", "0.25", "0.25", "0.25"]
    assert len({len(line) for line in (head, *lines)}) == 1


def test_a_long_table_is_cut_where_it_is_printed():
    found = summarise({"w": np.zeros((5, SHOWN + 3))}, lambda x: None)
    assert len(found.names) == SHOWN + 3
    *_, last, more = str(found).splitlines()
    assert last.startswith(f"w[{SHOWN - 1}]")
    assert more == "… and 3 more, in .names and .columns"


def test_columns_line_up():
    assert aligned([["a", "bb", "c"], ["dd", "e", "f"]], left=(0, 2)) == ["a   bb  c", "dd   e  f"]


def test_what_is_refused(tmp_path, getkey):
    with pytest.raises(InputError, match=r"no row 'tau'; .names has the 2"):
        gaussian(target()).summary(key=getkey())["tau"]
    with pytest.raises(InputError, match="number of draws is 0"):
        gaussian(target()).summary(key=getkey(), draws=0)
    gaussian(target()).save(tmp_path / "saved")
    with pytest.raises(NotAvailableError, match=r"summary.*needs the target.*with_target"):
        gpvi.load(tmp_path / "saved").summary(key=getkey())
