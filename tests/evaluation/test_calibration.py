"""Simulation-based calibration finds an exact method calibrated, and a wrong one not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError
from gpvi.evaluation.calibration import AT_ONCE, Calibration
from gpvi.training import program

DATA = 4
FULL_RANK = gpvi.FullRankVI(particles=64, learning_rate=0.05)


def simulate(key):
    """x ~ N(0, I₂), y_i ~ N(x, I₂), each of which counts once."""
    a, b = jax.random.split(key)
    x = jax.random.normal(a, (2,))
    return x, {"y": x + jax.random.normal(b, (DATA, 2)), "count": jnp.ones(DATA)}


class LogLikelihood(eqx.Module):
    """A module, so that targets share what is compiled."""

    def __call__(self, x, batch):
        return -0.5 * batch["count"] * ((batch["y"] - x) ** 2).sum(1)


class LogPrior(eqx.Module):
    def __call__(self, x):
        return -0.5 * (x**2).sum()


def posterior(data):
    return gpvi.Target(log_likelihood=LogLikelihood(), log_prior=LogPrior(), data=data, dim=2)


def too_narrow(data):
    return posterior(data | {"count": 6 * data["count"]})


@pytest.mark.slow
def test_conjugate_posteriors_are_calibrated_and_a_data_counted_sixfold_is_not():
    """All fits are of one form, twenty at a time: one program serves the right ones and the wrong ones."""
    shared = {
        "key": jax.random.key(0),
        "simulations": 40,
        "draws": 19,
        "steps": 300,
        "init": None,
        "progress": False,
    }
    right = gpvi.sbc(simulate, posterior, FULL_RANK, **shared)
    assert right.ranks.shape == (40, 2)
    assert right.calibrated, str(right)
    wrong = gpvi.sbc(simulate, too_narrow, FULL_RANK, **shared)
    assert not wrong.calibrated
    assert "NOT calibrated" in str(wrong)
    ends = np.isin(wrong.ranks, [0, 19]).mean()
    assert ends > 0.3, "too narrow a posterior crowds the ranks at both ends"


def test_p_values_of_uniform_ranks_are_uniform():
    rng = np.random.default_rng(0)
    found = Calibration(rng.integers(0, 100, (2_000, 50)), 99, tuple(f"x{i}" for i in range(50)))
    assert 0.35 < found.p_values.mean() < 0.65
    assert found.calibrated
    skewed = Calibration(rng.integers(0, 60, (200, 1)), 99, ("x",))
    assert skewed.p_values[0] < 1e-6


def test_the_figure_has_a_panel_for_each_coordinate():
    rng = np.random.default_rng(0)
    found = Calibration(rng.integers(0, 20, (100, 5)), 19, tuple("abcde"))
    figure = found.figure()
    assert [axes.get_title().split()[0] for axes in figure.axes] == list("abcde")


@pytest.mark.parametrize("wrong", [{"simulations": 3}, {"draws": 0}])
def test_too_few_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        gpvi.sbc(simulate, posterior, FULL_RANK, key=jax.random.key(0), **wrong)


def test_more_draws_than_particles_are_refused_before_any_fit():
    def simulate(key):
        raise AssertionError("nothing is to be simulated")

    for method, held in ((gpvi.SVGD(particles=50), 50), (gpvi.NUTS(chains=2, draws=20), 40)):
        name = type(method).__name__
        with pytest.raises(InputError, match=f"draws is 99, and {name} ends with {held}: use"):
            gpvi.sbc(simulate, posterior, method, key=jax.random.key(0))


@pytest.mark.slow
def test_chains_take_the_steps_of_their_own():
    chains = gpvi.HMC(chains=2, draws=20, warmup=20, leapfrogs=2)
    found = gpvi.sbc(
        simulate,
        posterior,
        chains,
        key=jax.random.key(0),
        simulations=10,
        draws=19,
        init=None,
        progress=False,
    )
    assert found.ranks.shape == (10, 2)


@pytest.mark.slow
def test_plain_functions_are_traced_once():
    """Two rounds of twenty simulations, one program."""

    def log_likelihood(x, batch):
        return -0.5 * ((batch["y"] - x) ** 2).sum(1)

    program._program.cache_clear()
    gpvi.sbc(
        simulate,
        lambda data: gpvi.Target(log_likelihood=log_likelihood, data=data, dim=2),
        FULL_RANK,
        key=jax.random.key(0),
        simulations=2 * AT_ONCE,
        draws=1,
        steps=2,
        init=None,
        progress=False,
    )
    assert program._program.cache_info().misses == 1
