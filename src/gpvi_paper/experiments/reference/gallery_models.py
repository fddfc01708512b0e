"""Ten PyMC models in the style of its example gallery, each on data simulated with a fixed seed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpvi.errors import require_extra

Build = Callable[[np.random.Generator], Any]


def _pymc() -> Any:
    """PyMC, imported when a model is built; its types are too narrow for its own models."""
    require_extra("pymc", "pymc", "the gallery of PyMC models")
    import pymc

    return pymc


def linear(rng: np.random.Generator) -> Any:
    """A score by two predictors, with labelled coefficients."""
    pm = _pymc()
    x = rng.standard_normal((80, 2)) * [1.0, 3.0]
    y = 20 + x @ np.array([2.0, -0.5]) + rng.normal(0, 2, 80)
    with pm.Model(coords={"predictor": ["age", "income"], "person": np.arange(80)}) as model:
        intercept = pm.Normal("intercept", 0, 20)
        slope = pm.Normal("slope", 0, 5, dims="predictor")
        sigma = pm.HalfNormal("sigma", 5)
        data = pm.Data("x", x, dims=("person", "predictor"))
        mean = pm.Deterministic("mean", intercept + data @ slope, dims="person")
        pm.Normal("y", mean, sigma, observed=y, dims="person")
    return model


def robust(rng: np.random.Generator) -> Any:
    """A line through points of which some are outliers."""
    pm = _pymc()
    x = np.linspace(0, 1, 60)
    y = 1 + 2 * x + rng.standard_t(2, 60) * 0.3
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 10), pm.Normal("slope", 0, 10)
        sigma, nu = pm.HalfCauchy("sigma", 1), pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=intercept + slope * x, sigma=sigma, observed=y)
    return model


def hierarchy(rng: np.random.Generator) -> Any:
    """Radon in twelve counties of unequal size: intercepts that vary, non-centred."""
    pm = _pymc()
    counties = [f"county {letter}" for letter in "ABCDEFGHIJKL"]
    county = np.repeat(np.arange(12), rng.integers(2, 15, 12))
    floor = rng.integers(0, 2, len(county))
    y = 1.5 + rng.normal(0, 0.4, 12)[county] - 0.7 * floor + rng.normal(0, 0.7, len(county))
    with pm.Model(coords={"county": counties}) as model:
        mean, spread = pm.Normal("mean", 0, 5), pm.HalfNormal("spread", 1)
        offset = pm.Normal("offset", 0, 1, dims="county")
        level = pm.Deterministic("level", mean + spread * offset, dims="county")
        floor_effect = pm.Normal("floor_effect", 0, 2)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", level[county] + floor_effect * floor, sigma, observed=y)
    return model


def logistic(rng: np.random.Generator) -> Any:
    """A yes or no by three predictors."""
    pm = _pymc()
    x = rng.standard_normal((120, 3))
    y = rng.binomial(1, 1 / (1 + np.exp(-(0.5 + x @ np.array([1.0, -2.0, 0.0])))))
    with pm.Model(coords={"predictor": ["a", "b", "c"]}) as model:
        intercept = pm.Normal("intercept", 0, 2.5)
        slope = pm.Normal("slope", 0, 2.5, dims="predictor")
        pm.Bernoulli("y", logit_p=intercept + x @ slope, observed=y)
    return model


def process(rng: np.random.Generator) -> Any:
    """A Gaussian process, its values integrated out."""
    pm = _pymc()
    x = np.linspace(0, 8, 20)[:, None]
    y = np.sin(x[:, 0]) + rng.normal(0, 0.3, 20)
    with pm.Model() as model:
        length, height = pm.Gamma("length", 4, 2), pm.HalfNormal("height", 2)
        latent = pm.gp.Marginal(cov_func=height**2 * pm.gp.cov.Matern52(1, length))
        latent.marginal_likelihood("y", X=x, y=y, sigma=pm.HalfNormal("sigma", 1))
    return model


def autoregression(rng: np.random.Generator) -> Any:
    """A series that depends on its two last values."""
    pm = _pymc()
    y = np.zeros(100)
    for t in range(2, 100):
        y[t] = 0.3 + 0.6 * y[t - 1] - 0.3 * y[t - 2] + rng.normal(0, 0.5)
    with pm.Model(coords={"lag": ["constant", "one", "two"]}) as model:
        rho, sigma = pm.Normal("rho", 0, 1, dims="lag"), pm.HalfNormal("sigma", 1)
        start = pm.Normal.dist(0, 1, shape=2)
        pm.AR("y", rho, sigma=sigma, constant=True, ar_order=2, init_dist=start, observed=y)
    return model


def walk(rng: np.random.Generator) -> Any:
    """A level that wanders, seen with noise."""
    pm = _pymc()
    y = np.cumsum(rng.normal(0, 0.5, 40)) + rng.normal(0, 0.5, 40)
    with pm.Model(coords={"day": np.arange(40)}) as model:
        drift, noise = pm.Gamma("drift", 4, 8), pm.Gamma("noise", 4, 8)
        start = pm.Normal.dist(0, 2)
        level = pm.GaussianRandomWalk("level", sigma=drift, init_dist=start, dims="day")
        pm.Normal("y", level, noise, observed=y, dims="day")
    return model


def mixture(rng: np.random.Generator) -> Any:
    """Two groups whose members are not known, summed over."""
    pm = _pymc()
    y = np.concatenate([rng.normal(-2, 1, 60), rng.normal(2, 0.7, 40)])
    with pm.Model(coords={"group": ["low", "high"]}) as model:
        weight = pm.Dirichlet("weight", np.ones(2), dims="group")
        ordered = pm.distributions.transforms.ordered
        means = pm.Normal(
            "means", 0, 5, dims="group", transform=ordered, initval=np.array([-1.0, 1.0])
        )
        sigma = pm.HalfNormal("sigma", 2, dims="group")
        pm.NormalMixture("y", w=weight, mu=means, sigma=sigma, observed=y)
    return model


def ordinal(rng: np.random.Generator) -> Any:
    """Answers from one to four by one predictor."""
    pm = _pymc()
    x = rng.standard_normal(120)
    y = np.digitize(1.2 * x + rng.logistic(size=120), [-1.5, 0.0, 1.5])
    with pm.Model(coords={"between": ["1|2", "2|3", "3|4"]}) as model:
        slope = pm.Normal("slope", 0, 2)
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal(
            "cuts", 0, 3, dims="between", transform=ordered, initval=np.array([-1.0, 0.0, 1.0])
        )
        pm.OrderedLogistic("y", eta=slope * x, cutpoints=cuts, observed=y)
    return model


def counts(rng: np.random.Generator) -> Any:
    """Counts with more spread than a Poisson distribution has, for unequal exposures."""
    pm = _pymc()
    x, exposure = rng.standard_normal(100), rng.uniform(0.5, 3, 100)
    rate = np.exp(0.8 + 0.5 * x) * exposure
    y = rng.poisson(rng.gamma(2.0, rate / 2.0))
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1)
        alpha = pm.Exponential("alpha", 0.5)
        mean = exposure * pm.math.exp(intercept + slope * x)
        pm.NegativeBinomial("y", mu=mean, alpha=alpha, observed=y)
    return model


MODELS: dict[str, tuple[str, Build]] = {
    "linear": ("Linear regression", linear),
    "robust": ("Robust regression", robust),
    "hierarchy": ("Hierarchy, non-centred", hierarchy),
    "logistic": ("Logistic regression", logistic),
    "process": ("Gaussian process", process),
    "autoregression": ("Autoregression", autoregression),
    "walk": ("Random walk", walk),
    "mixture": ("Mixture, marginalised", mixture),
    "ordinal": ("Ordinal data", ordinal),
    "counts": ("Count data", counts),
}
"""Name → title and the function that builds the model from a generator of its data."""
DATA_SEED = 20


def build(name: str) -> Any:
    """The model of this name, on its data."""
    return MODELS[name][1](np.random.default_rng([DATA_SEED, list(MODELS).index(name)]))
