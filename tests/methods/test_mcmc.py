"""Chains: the table they are written to, their tuning, and what they find on posteriors with closed forms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics import mcmc as convergence
from gpvi.errors import InputError
from gpvi.methods.carriers import Chains
from gpvi.training.program import chunk_length

SMALL: dict[str, Any] = {"chains": 2, "draws": 10, "warmup": 20}


def gaussian(covariance, mean: Any = 0.0, dtype="float32"):
    precision = np.linalg.inv(covariance)
    return gpvi.Target(
        lambda x: -0.5 * (x - mean) @ precision @ (x - mean), dim=len(covariance), dtype=dtype
    )


def chains_of(posterior) -> Chains:
    assert isinstance(posterior.model, Chains)
    return posterior.model


def by_chain(posterior):
    """(chains, draws, d) in the target's own coordinates."""
    return np.asarray(chains_of(posterior).by_chain(posterior.particles))


@pytest.fixture(scope="module")
def correlated():
    """A fit of the default NUTS to a Gaussian with correlation 0.95 and scales of 0.01 to 10."""
    rng = np.random.default_rng(0)
    scales = np.array([10.0, 1.0, 0.01])
    correlation = np.array([[1.0, 0.95, 0.2], [0.95, 1.0, 0.1], [0.2, 0.1, 1.0]])
    covariance = correlation * np.outer(scales, scales)
    mean = rng.standard_normal(3) * scales
    target = gaussian(covariance, mean, "float64")
    posterior = gpvi.fit(target, gpvi.NUTS(), key=jax.random.key(0), progress=False)
    return posterior, mean, covariance


def test_a_table_of_chains():
    table = Chains.empty(2, 3, 1, jnp.float32)
    assert table.drawn.shape == (0, 1)
    first, last = {"begins": jnp.asarray(True)}, {"ends": jnp.asarray(True)}
    more, further = {"begins": jnp.asarray(False)}, {"ends": jnp.asarray(False)}
    rows = jnp.zeros((2, 1))
    for draw in range(2):
        rows = jnp.asarray([[10.0 * draw], [10.0 * draw + 1]])
        table = table.write(
            jnp.asarray(draw), rows, jnp.asarray([False, draw == 1]), **first, **last
        )
    under_way = table.write(
        jnp.asarray(2), rows + 100, jnp.asarray([True, False]), **first, **further
    )
    for found in (table, under_way):
        np.testing.assert_array_equal(found.drawn[:, 0], [0, 1, 10, 11])
        np.testing.assert_array_equal(found.by_chain(found.drawn)[..., 0], [[0, 10], [1, 11]])
        assert found.divergences == 1
    fine = jnp.asarray([False, False])
    assert under_way.write(jnp.asarray(2), rows, fine, **more, **last).divergences == 2
    assert under_way.write(jnp.asarray(2), rows, fine, **first, **last).divergences == 1


def funnel(x):
    """Neal's, whose neck no step size reaches."""
    return -0.5 * x[0] ** 2 / 9 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]


@pytest.mark.slow
def test_thinning_hides_no_divergence():
    """A draw is marked where any of the five transitions to it diverged, not the last alone."""
    method = gpvi.NUTS(chains=2, draws=60, warmup=100, thin=5)
    posterior = gpvi.fit(
        gpvi.Target(funnel, dim=2), method, key=jax.random.key(3), progress=False, init=None
    )
    rates = posterior.training.history["divergent"][100:].reshape(60, 5)
    of_draws = chains_of(posterior).divergent.reshape(60, 2)
    assert (rates > 0).any()
    np.testing.assert_array_equal(of_draws.any(1), (rates > 0).any(1))


def test_nuts_has_converged(correlated):
    posterior, _, _ = correlated
    found = convergence.summary(by_chain(posterior))
    assert found.rhat.max() < 1.01
    assert found.ess_bulk.min() > 1_000
    assert found.ess_tail.min() > 1_000
    assert chains_of(posterior).divergences == 0
    assert posterior.training.history["divergent"][1_000:].sum() == 0


def test_nuts_finds_mean_and_covariance(correlated):
    """Within four Monte-Carlo errors, by the effective number of draws of x and of each product of two coordinates."""
    posterior, mean, covariance = correlated
    chains = by_chain(posterior) - mean
    first, second = np.tril_indices(3)
    products = chains[..., first] * chains[..., second]
    for values, expected in [(chains, np.zeros(3)), (products, covariance[first, second])]:
        error = convergence.summary(values).mcse
        assert (np.abs(values.mean((0, 1)) - expected) < 4 * error).all()
        assert (error < 0.05 * values.std((0, 1))).all()


def test_the_step_size_is_that_of_the_acceptance_asked_for(correlated):
    history = correlated[0].training.history
    assert abs(history["acceptance"][1_000:].mean() - 0.8) < 0.12
    assert np.ptp(history["step_size"][1_000:]) == 0
    assert np.ptp(history["step_size"][:1_000]) > 0


@pytest.mark.slow
def test_a_masked_last_chunk_and_thinning_keep_what_was_asked_for():
    """401 transitions make no equal chunks, so that the last steps of the last chunk are computed and dropped."""
    method = gpvi.HMC(chains=2, draws=127, warmup=20, thin=3, leapfrogs=3)
    assert chunk_length(method.transitions)[1]
    posterior = gpvi.fit(
        gaussian(np.eye(2)), method, key=jax.random.key(0), progress=False, init=None
    )
    assert posterior.particles.shape == (254, 2)
    assert posterior.training.steps == 401
    assert len(np.unique(np.asarray(posterior.particles)[:, 0])) > 200
    chain = by_chain(posterior)
    last = np.asarray(posterior.auxiliary.walkers.position)
    np.testing.assert_allclose(chain[:, -1], posterior.affine.location + last, rtol=1e-6)


@pytest.mark.slow
def test_an_interrupted_run_has_the_draws_made_so_far(tmp_path):
    def stop(event):
        if event.step >= 40:
            raise StopIteration

    method = gpvi.HMC(chains=2, draws=30, warmup=20, leapfrogs=3)
    with pytest.warns(UserWarning, match="stopped by a callback after step 40"):
        posterior = gpvi.fit(
            gaussian(np.eye(2)),
            method,
            key=jax.random.key(0),
            progress=False,
            init=None,
            callbacks=[stop],
        )
    assert posterior.particles.shape == (40, 2)
    posterior.save(tmp_path / "saved")
    loaded = gpvi.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.particles, posterior.particles)
    with pytest.raises(gpvi.errors.NotAvailableError, match="41 draws are not available"):
        loaded.sample(41, key=jax.random.key(0))


@pytest.mark.slow
def test_a_given_step_size_is_left_alone():
    """The paper's setting in small: no adaptation, no jitter, unit mass."""
    method = gpvi.HMC(**SMALL, leapfrogs=25, step_size=5e-4, jitter=0.0)
    posterior = gpvi.fit(
        gaussian(np.diag([1.0, 9.0])), method, key=jax.random.key(0), progress=False, init=None
    )
    assert (posterior.training.history["step_size"] == np.float32(5e-4)).all()
    np.testing.assert_array_equal(posterior.auxiliary.tuning.inverse_mass, 1.0)
    moved = np.linalg.norm(np.diff(by_chain(posterior), axis=1), axis=-1)
    assert 1e-3 < moved.mean() < 0.1


@pytest.mark.slow
def test_the_mass_is_the_variance():
    target = gaussian(np.diag([100.0, 1.0, 0.01]))
    method = gpvi.HMC(chains=8, draws=10, warmup=400, leapfrogs=8)
    posterior = gpvi.fit(target, method, key=jax.random.key(0), progress=False, init=None)
    mass = np.asarray(posterior.auxiliary.tuning.inverse_mass)
    np.testing.assert_allclose(mass, [100.0, 1.0, 0.01], rtol=0.35)


def test_divergences_are_told_and_do_not_stop_the_run():
    """A step five times too long for the narrow coordinate: every trajectory leaves, and the chains stay finite."""
    method = gpvi.HMC(**SMALL, leapfrogs=50, step_size=0.5, jitter=0.0)
    target = gaussian(np.diag([1.0, 1e-2]))
    posterior = gpvi.fit(target, method, key=jax.random.key(0), progress=False, init=None)
    assert posterior.training.notes == ()
    assert chains_of(posterior).divergences == 20
    assert (posterior.training.history["divergent"] == 1).all()
    assert all(np.isfinite(values).all() for values in posterior.training.history.values())


def test_starting_points_outside_the_support_are_drawn_anew():
    target = gpvi.Target(
        lambda x: jnp.where(x[0] > 0, jnp.log(jnp.where(x[0] > 0, x[0], 1.0)) - x[0], -jnp.inf),
        dim=1,
        initial=jnp.asarray([0.1]),
    )
    method = gpvi.HMC(chains=16, draws=20, warmup=50, leapfrogs=4)
    posterior = gpvi.fit(target, method, key=jax.random.key(0), progress=False, init=None)
    assert (np.asarray(posterior.particles) > 0).all()


@pytest.mark.slow
def test_a_finished_run_can_go_on():
    method, target = gpvi.HMC(**SMALL, leapfrogs=4), gaussian(np.eye(2))
    first = gpvi.fit(target, method, key=jax.random.key(0), progress=False, init=None)
    more = gpvi.fit(target, key=jax.random.key(1), progress=False, init=first)
    assert more.particles.shape == first.particles.shape
    assert not np.isin(np.asarray(more.particles), np.asarray(first.particles)).any()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chains": 0}, "chains is 0"),
        ({"draws": 2.5}, "draws is 2.5"),
        ({"thin": 0}, "thin is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warmup": 5}, "give step_size="),
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"acceptance": 1.0}, "acceptance is 1.0"),
        ({"mass": "diag"}, "Did you mean 'diagonal'"),
        ({"leapfrogs": 0}, "leapfrogs is 0"),
        ({"jitter": 1.0}, "jitter is 1.0"),
        ({"leapfrog": 3}, "Did you mean 'leapfrogs'"),
    ],
)
def test_options_out_of_range(options, match):
    with pytest.raises(InputError, match=match):
        gpvi.HMC(**options)
