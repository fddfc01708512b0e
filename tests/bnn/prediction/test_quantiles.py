"""Quantiles of mixtures, against SciPy: exact for counts, for Student's t of any ν, and in few calls."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import special
from scipy import optimize, stats

from gpvi import bnn
from gpvi.bnn.prediction._quantiles import invert_cdf
from gpvi.methods import SVGD
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine

KEY = jax.random.key(0)
LEVELS = (0.01, 0.05, 0.5, 0.95, 0.99)


@dataclasses.dataclass(frozen=True)
class StudentT(bnn.Gaussian):
    """As in the documentation."""

    freedom: float = 4.0

    def moments(self, outputs, extra):
        scale = jnp.broadcast_to(self._noise(extra), outputs.shape)
        return outputs, scale**2 * self.freedom / (self.freedom - 2)

    def cdf(self, outputs, extra, y):
        z = (y - outputs) / self._noise(extra)
        half = special.betainc(self.freedom / 2, 0.5, self.freedom / (self.freedom + z**2)) / 2
        return jnp.where(z > 0, 1 - half, half)


def constants(values, likelihood, dtype=np.float64):
    """Networks whose one output, for x = 1, is one of these values."""
    network = bnn.mlp((1, 1))
    table = jnp.asarray(np.stack([np.zeros_like(values), values], 1), dtype)
    posterior = Posterior(
        SVGD(),
        Particles(table),
        Start(Affine.identity(2, dtype)),
        ("b", "w"),
        Training(0, 0, 0.0, {}),
    )
    return bnn.Predictive(posterior, network, likelihood)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_quantiles_of_large_counts_are_the_least_numbers_that_reach_the_level():
    rng, rows = np.random.default_rng(0), np.array([0.1, 0.6, 1.0, 1.4])
    values = 5 + rng.normal(size=40)
    own = constants(values, bnn.Poisson())
    found = own.quantiles(rows[:, None], LEVELS, key=KEY)[..., 0]
    counts = np.arange(60_000)
    for row, column in zip(rows, found.T, strict=True):
        mixture = np.mean([stats.poisson.cdf(counts, np.exp(row * v)) for v in values], 0)
        np.testing.assert_array_equal(column, [(mixture >= p).argmax() for p in LEVELS])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("freedom", [1.0, 2.0, 4.0])
def test_quantiles_of_students_t_need_no_variance(freedom):
    values = np.random.default_rng(1).normal(size=30)
    own = constants(values, StudentT(noise=0.01, freedom=freedom))
    found = own.quantiles([[1.0]], LEVELS, key=KEY)[:, 0, 0]
    for p, quantile in zip(LEVELS, found, strict=True):

        def gap(y, p=p):
            return stats.t.cdf((y - values) / 0.01, freedom).mean() - p

        assert quantile == pytest.approx(optimize.brentq(gap, -1e3, 1e3, xtol=1e-12), abs=1e-6)


def count_calls(cdf, p, low, high, *, integers):
    calls = []

    def counted(y):
        jax.debug.callback(lambda: calls.append(1))
        return cdf(y)

    found = jax.jit(lambda: invert_cdf(counted, p, low, high, integers=integers))()
    jax.effects_barrier()
    return found, len(calls)


def test_few_calls_find_them_and_a_poor_start_is_mended():
    p = jnp.array([0.05, 0.5, 0.95])
    for low, high in ((-4.0, 4.0), (50.0, 51.0)):
        found, calls = count_calls(
            jax.scipy.stats.norm.cdf, p, jnp.full(3, low), jnp.full(3, high), integers=False
        )
        np.testing.assert_allclose(found, stats.norm.ppf(p), atol=1e-5)
        assert calls <= 25
    rate = jnp.array([20.0, 300.0, 1_000.0])
    sd = jnp.sqrt(rate)
    found, calls = count_calls(
        lambda y: jnp.where(y < 0, 0, special.gammaincc(jnp.maximum(y, 0) + 1, rate)),
        p,
        rate - 5 * sd,
        rate + 5 * sd,
        integers=True,
    )
    np.testing.assert_array_equal(found, stats.poisson.ppf(p, rate))
    assert calls <= 12


def test_nan_stays_nan_and_unreachable_levels_are_infinite():
    p, unknown = jnp.full(2, 0.5), jnp.array([0.0, jnp.nan])
    found = invert_cdf(
        lambda y: jax.scipy.stats.norm.cdf(y, unknown), p, p - 2, p + 2, integers=False
    )
    np.testing.assert_allclose(found, unknown, atol=1e-5)
    for integers in (False, True):
        beyond = invert_cdf(lambda y: jnp.full_like(y, 0.2), p, p, p + 1, integers=integers)
        assert np.isinf(beyond).all()
