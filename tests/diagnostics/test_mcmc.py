"""R̂, ESS and errors of means: against ArviZ, and against chains whose autocorrelation is known."""

import numpy as np
import pytest

from gpvi.diagnostics import verdict
from gpvi.diagnostics.mcmc import effective_sample_size, summary
from gpvi.errors import InputError


def autoregressive(correlations, chains, draws, seed=0):
    """x_t = r x_{t−1} + √(1 − r²) e_t from its stationary distribution, a coordinate for each r."""
    rng, r = np.random.default_rng(seed), np.asarray(correlations)
    noise = rng.standard_normal((chains, draws, len(r)))
    x = noise.copy()
    for t in range(1, draws):
        x[:, t] = r * x[:, t - 1] + np.sqrt(1 - r**2) * noise[:, t]
    return x


@pytest.mark.parametrize(("chains", "draws"), [(4, 300), (3, 157), (2, 64)])
def test_arviz_finds_the_same(chains, draws):
    import arviz

    x = autoregressive([0.0, 0.5, 0.8, -0.5], chains, draws)
    x[..., 1] = np.exp(x[..., 1])
    x[..., 2] += 0.3 * np.arange(chains)[:, None]
    found, data = summary(x), arviz.convert_to_dataset({"x": x})
    for values, theirs in [
        (found.rhat, arviz.rhat(data)),
        (found.ess_bulk, arviz.ess(data, method="bulk")),
        (found.ess_tail, arviz.ess(data, method="tail")),
        (found.mcse, arviz.mcse(data, method="mean")),
    ]:
        np.testing.assert_allclose(values, theirs["x"].values, rtol=1e-9)


@pytest.mark.parametrize("r", [-0.3, 0.0, 0.6, 0.9])
def test_the_autocorrelation_time_is_found(r):
    """τ = (1 + r)/(1 − r)."""
    x = autoregressive([r] * 20, 4, 4_000)
    expected = 16_000 * (1 - r) / (1 + r)
    assert abs(effective_sample_size(x).mean() / expected - 1) < 0.05
    found = summary(x)
    np.testing.assert_allclose(found.mcse, x.std((0, 1)) / np.sqrt(expected), rtol=0.2)
    assert found.rhat.max() < 1.03


def test_what_has_not_converged_is_seen():
    x = autoregressive([0.0] * 4, 4, 200)
    x[0, :, 0] += 1.0  # a chain elsewhere
    x[0, :, 1] *= 3.0  # a chain of another scale
    x[..., 2] += np.linspace(0, 1, 200)  # a common trend
    found = summary(x)
    assert (found.rhat[:3] > 1.03).all()
    assert found.rhat[3] < verdict.TRUSTED_RHAT
    assert found.ess_bulk[3] > verdict.TRUSTED_ESS


def test_coordinates_without_an_answer_are_not_numbers():
    x = autoregressive([0.0] * 3, 2, 50)
    x[0, 7, 0], x[..., 1] = np.inf, 2.0
    for values in summary(x):
        assert np.isnan(values[:2]).all()
        assert np.isfinite(values[2])


def test_blocks_of_coordinates_do_not_show():
    x = autoregressive(np.linspace(0, 0.5, 300), 2, 20)
    whole, some = summary(x), summary(x[..., 250:260])
    np.testing.assert_array_equal(whole.ess_bulk[250:260], some.ess_bulk)


def test_too_few_draws(getkey):
    with pytest.raises(InputError, match="7 draws each"):
        summary(np.zeros((4, 7, 1)))
