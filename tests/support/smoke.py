"""A little of everything, as a program: fit, diagnose, save, load, a network, NumPyro, PyMC, ArviZ, scikit-learn.

It runs where only the library and its extras are installed, so it uses no test tools.
"""

import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import gpvi
from gpvi.bnn import BayesianMLPRegressor

KEY = jax.random.key(0)


def density() -> None:
    """The default method on a Gaussian, saved and loaded."""
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    posterior = gpvi.fit(target, key=KEY, progress=False)
    found = posterior.diagnose(key=KEY)
    assert found.verdict.level == "good", str(found)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "normal.gpvi"
        posterior.save(path)
        again = gpvi.load(path)
    assert np.array_equal(again.sample(10, key=KEY), posterior.sample(10, key=KEY))


def model() -> None:
    """A NumPyro model, and its draws in ArviZ."""

    def normal(y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        scale = numpyro.sample("scale", dist.HalfNormal(5))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, scale), obs=y)

    y = np.random.default_rng(0).normal(3.0, 2.0, 50).astype(np.float32)
    target = gpvi.Target.from_numpyro(normal, y)
    posterior = gpvi.fit(target, gpvi.FullRankVI(), key=KEY, steps=500, progress=False)
    draws = posterior.to_arviz(key=KEY, draws=500)
    assert abs(float(draws.posterior["mean"].mean()) - y.mean()) < 0.3
    assert float(draws.posterior["scale"].min()) > 0


def states() -> None:
    """A NumPyro model with discrete latents, summed out and drawn again."""

    def mixture(y):
        share = numpyro.sample("share", dist.Beta(2, 2))
        with numpyro.plate("data", len(y)):
            state = numpyro.sample("state", dist.Bernoulli(share))
            numpyro.sample("y", dist.Normal(6.0 * state, 1.0), obs=y)

    y = np.array([0.1, -0.4, 5.8, 6.3], np.float32)
    target = gpvi.Target.from_numpyro(mixture, y)
    posterior = gpvi.fit(target, gpvi.FullRankVI(), key=KEY, steps=100, progress=False)
    assert np.asarray(posterior.draws(50, key=KEY)["state"]).mean(0).round().tolist() == [
        0,
        0,
        1,
        1,
    ]


def pymc() -> None:
    """A PyMC model, its deterministics and their dims."""
    import pymc as pm

    y = np.random.default_rng(0).normal(3.0, 2.0, 50)
    with pm.Model(coords={"unit": ["m", "cm"]}) as normal:
        mean, scale = pm.Normal("mean", 0, 10), pm.HalfNormal("scale", 5)
        pm.Deterministic("means", mean * np.array([1.0, 100.0]), dims="unit")
        pm.Normal("y", mean, scale, observed=y)
    target = gpvi.Target.from_pymc(normal)
    posterior = gpvi.fit(target, gpvi.FullRankVI(), key=KEY, steps=500, progress=False)
    draws = posterior.to_arviz(key=KEY, draws=500)
    assert abs(float(draws.posterior["mean"].mean()) - y.mean()) < 0.3
    assert draws.posterior["means"].dims == ("chain", "draw", "unit")


def chains() -> None:
    """NUTS, by BlackJAX."""
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    method = gpvi.NUTS(chains=2, draws=50, warmup=50)
    posterior = gpvi.fit(target, method, key=KEY, progress=False)
    assert posterior.sample(50, key=KEY).shape == (50, 2)


def network() -> None:
    """A Bayesian network, by the scikit-learn estimator."""
    x = np.linspace(-1, 1, 40)[:, None]
    estimator = BayesianMLPRegressor(hidden_layer_sizes=(8,), steps=200, random_state=0)
    mean, sd = estimator.fit(x, np.sin(2 * x[:, 0])).predict(x, return_std=True)
    assert mean.shape == sd.shape == (40,)
    assert np.isfinite(mean).all() and (sd > 0).all()


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (density, model, states, pymc, chains, network):
            part()
            print(part.__name__, flush=True)
