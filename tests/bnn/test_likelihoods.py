"""Likelihoods, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from gpvi import bnn
from gpvi.bnn import likelihoods
from gpvi.bnn.likelihoods import as_likelihood
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError

KEY = jax.random.key(0)


def softplus(x):
    return np.logaddexp(0.0, x)


OUT = np.array([[0.3, -0.8], [1.2, 0.1], [-0.5, 0.9]])


LOG_NOISE = np.array([-0.7, 0.2])


HALF = OUT[:, :1], 1e-3 + softplus(OUT[:, 1:])


SOFTMAX = np.exp(OUT) / np.exp(OUT).sum(1, keepdims=True)


SIGMOID = 1 / (1 + np.exp(-OUT))


CASES = {
    "gaussian": (bnn.Gaussian(), LOG_NOISE, stats.norm(OUT, np.exp(LOG_NOISE)), OUT + 0.4),
    "fixed": (bnn.Gaussian(0.6), LOG_NOISE[:0], stats.norm(OUT, 0.6), OUT - 0.2),
    "heteroscedastic": (
        bnn.Heteroscedastic(),
        LOG_NOISE[:0],
        stats.norm(*HALF),
        np.array([[0.1], [2.0], [-1.0]]),
    ),
    "bernoulli": (
        bnn.Bernoulli(),
        LOG_NOISE[:0],
        stats.bernoulli(SIGMOID),
        np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]),
    ),
    "poisson": (
        bnn.Poisson(),
        LOG_NOISE[:0],
        stats.poisson(np.exp(OUT)),
        np.array([[0.0, 3.0], [1.0, 2.0], [5.0, 0.0]]),
    ),
}


def f32(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


def sampled(likelihood, out, extra, n=20_000):
    one = lambda key: likelihood.sample(out, extra, key=key)  # noqa: E731
    return jax.jit(jax.vmap(one))(jax.random.split(KEY, n))


@pytest.mark.parametrize("kind", CASES)
def test_against_scipy(kind):
    likelihood, extra, reference, y = CASES[kind]
    out, extra, values = f32(OUT, extra, likelihood.prepare(y, 2))
    log_density = reference.logpmf if likelihood.discrete else reference.logpdf
    own = jax.jit(likelihood.log_prob)(out, extra, values)
    np.testing.assert_allclose(own, log_density(y).sum(1), rtol=1e-5)
    mean, variance = likelihood.moments(out, extra)
    np.testing.assert_allclose(mean, reference.mean(), rtol=1e-5)
    np.testing.assert_allclose(variance, reference.var(), rtol=1e-5)
    draws = np.asarray(sampled(likelihood, out, extra))
    np.testing.assert_allclose(
        draws.mean(0), reference.mean(), atol=5 * reference.std().max() / 141
    )
    np.testing.assert_allclose(draws.var(0), reference.var(), rtol=0.12)
    if likelihood.classifies:
        np.testing.assert_allclose(likelihood.entropy(mean), reference.entropy().sum(1), rtol=1e-5)
        with pytest.raises(NotAvailableError, match="no order"):
            likelihood.cdf(out, extra, values)
    else:
        at = y + 0.3
        np.testing.assert_allclose(
            likelihood.cdf(out, extra, f32(at)[0]), reference.cdf(at), rtol=1e-4
        )
        with pytest.raises(NotAvailableError, match="no closed form"):
            likelihood.entropy(mean)


@pytest.mark.parametrize(("axis", "shape"), [(0, r"\(\)"), (None, r"\(3, 1\)")])
def test_log_prob_must_give_one_number_for_each_datum(axis, shape):
    class Mine(bnn.Gaussian):
        def log_prob(self, outputs, extra, y):
            return (y - outputs).sum() if axis == 0 else y - outputs

    with pytest.raises(InputError, match=rf"Mine.log_prob gives shape {shape}.*sum\(1\)"):
        bnn.target(bnn.mlp((3, 1)), Mine(), "fan-in", np.ones((5, 3)), np.ones(5))


def test_categorical():
    likelihood = bnn.Categorical()
    out, extra = f32(OUT, LOG_NOISE[:0])
    y = np.array([1, 0, 1])
    own = likelihood.log_prob(out, extra, jnp.asarray(likelihood.prepare(y, 2)))
    np.testing.assert_allclose(own, np.log(SOFTMAX[np.arange(3), y]), rtol=1e-5)
    mean, variance = likelihood.moments(out, extra)
    np.testing.assert_allclose(mean, SOFTMAX, rtol=1e-5)
    np.testing.assert_allclose(variance, SOFTMAX * (1 - SOFTMAX), rtol=1e-5)
    np.testing.assert_allclose(likelihood.entropy(mean), stats.entropy(SOFTMAX, axis=1), rtol=1e-5)
    draws = np.asarray(sampled(likelihood, out, extra))
    np.testing.assert_allclose((draws == 1).mean(0), SOFTMAX[:, 1], atol=0.02)


@pytest.mark.parametrize(
    ("prior", "sigma"),
    [
        (bnn.HalfCauchy(0.5), stats.halfcauchy(scale=0.5)),
        (bnn.LogNormal(0.2, 0.7), stats.lognorm(0.7, scale=0.2)),
    ],
)
def test_noise_priors(prior, sigma):
    """The density of log σ is σ times that of σ, and integrates to one."""
    log_noise = np.array([-1.0, 0.4])
    expected = (sigma.logpdf(np.exp(log_noise)) + log_noise).sum()
    likelihood = bnn.Gaussian(prior)
    assert likelihood.log_prior(*f32(log_noise)) == pytest.approx(expected, rel=1e-5)
    grid = np.linspace(-30.0, 30.0, 6_001)
    density = np.exp(jax.vmap(prior.log_prob)(jnp.asarray(grid[:, None], jnp.float32)))
    assert integrate.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-3)


def test_extra_coordinates():
    assert bnn.Gaussian(0.1).extra(3) == ()
    assert bnn.Gaussian("sampled").extra(2) == ("log_noise[0]", "log_noise[1]")
    np.testing.assert_allclose(bnn.Gaussian(start_noise=0.2).start(2), np.log([0.2, 0.2]))
    assert bnn.Gaussian(likelihoods.Flat()).log_prior(jnp.ones(2)) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bnn.Gaussian(0.0), "> 0"),
        (lambda: bnn.Gaussian("leraned"), "Did you mean 'learned'"),
        (lambda: bnn.Gaussian(3j), "HalfCauchy"),  # pyright: ignore[reportArgumentType]
        (lambda: bnn.Heteroscedastic().prepare([1.0], 3), "3 outputs"),
        (lambda: as_likelihood("gausian"), "Did you mean 'gaussian'"),
        (lambda: as_likelihood(bnn.Poisson), "Poisson"),
        (lambda: bnn.Gaussian().prepare(["a"], 1), "numbers"),
        (lambda: bnn.Gaussian().prepare([[1.0, 2.0]], 1), r"\(1, 2\).*1 column"),
        (lambda: bnn.Gaussian().prepare([1.0, np.nan], 1), "holds nan at index .1, 0."),
        (lambda: bnn.Categorical().prepare([0, 3], 3), "3 in row 1.*0 to 2"),
        (lambda: bnn.Categorical().prepare([0, -1], 3), "-1 in row 1"),
        (lambda: bnn.Categorical().prepare([0.5], 3), "0.5 in row 0"),
        (lambda: bnn.Categorical().prepare(["a"], 3), "whole numbers"),
        (lambda: bnn.Categorical().prepare(np.eye(3), 3), "argmax"),
        (lambda: bnn.Categorical().prepare([0], 1), "Bernoulli"),
        (lambda: bnn.Bernoulli().prepare([0, 2], 1), "2.0 in row 1.*0 to 1"),
        (lambda: bnn.Poisson().prepare([-1.0], 1), "-1.0 in row 0.*≥ 0"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((InputError, UnknownOptionError), match=message):
        make()
