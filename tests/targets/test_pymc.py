"""PyMC models as flat vectors: PyMC's own log-densities, transforms and names as oracles, and every refusal."""

import os
import sys
import warnings
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gpvi
from gpvi import Target
from gpvi.errors import InputError, NotAvailableError, ReliabilityWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pm: Any = pytest.importorskip("pymc", reason="PyMC is not installed: pip install 'gpvi[pymc]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*arviz.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning"),
]
norm: Any = stats.norm
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter", "Hotchkiss", "Lawrence", "St Paul", "Hermon"]


@cache
def eight_schools() -> Any:
    with pm.Model(coords={"school": SCHOOLS}) as model:
        errors = pm.Data("errors", ERRORS, dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, errors, observed=EFFECTS, dims="school")
    return model


@cache
def schools_target() -> Any:
    return Target.from_pymc(eight_schools())


@cache
def fitted() -> Any:
    return gpvi.fit(
        schools_target(),
        gpvi.SVGD(particles=6),
        key=jax.random.key(0),
        steps=3,
        init=None,
        progress=False,
    )


def everything() -> Any:
    """A variable of every kind of transform, two potentials, and data of three kinds."""
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        free = pm.Normal("free", 0, 1, shape=(2, 3))
        positive = pm.Gamma("positive", 2, 1)
        unit = pm.Beta("unit", 2, 3, shape=2)
        bounded = pm.Uniform("bounded", -1, positive + 1)
        pm.Dirichlet("simplex", np.array([1.0, 2.0, 3.0]))
        pm.Normal("ordered", 0, 3, shape=3, transform=ordered, initval=np.array([-1.0, 0.0, 1.0]))
        pm.TruncatedNormal("above", 0, 1, lower=1.5)
        pm.Flat("flat")
        pm.LKJCholeskyCov(
            "cholesky", eta=2, n=2, sd_dist=pm.Exponential.dist(1.0), compute_corr=True
        )
        pm.GaussianRandomWalk("walk", sigma=positive, init_dist=pm.Normal.dist(0, 1), shape=4)
        pm.Potential("penalty", -((bounded - 0.2) ** 2))
        pm.Potential("more", -(free**2))
        pm.Poisson("k", pm.math.exp(free[0]), observed=np.array([1, 0, 4]))
        pm.Bernoulli("b", unit, observed=np.array([1, 0]))
        pm.StudentT("y", nu=4, mu=model["flat"], sigma=positive, observed=np.array([0.3, 1.0]))
    return model


@pytest.mark.slow
def test_log_density_and_values_are_pymcs():
    """At random points: PyMC compiled by itself, without JAX."""
    model = everything()
    target: Any = Target.from_pymc(model)
    log_density = model.compile_logp(mode="FAST_COMPILE")  # needs no C compiler
    values = model.compile_fn(
        model.replace_rvs_by_values(model.unobserved_RVs),
        inputs=model.value_vars,
        point_fn=False,
        mode="FAST_COMPILE",
    )
    start = model.initial_point(random_seed=0)
    assert target.dtype == np.float64
    for x in np.random.default_rng(7).standard_normal((3, target.dim)):
        cut = np.split(x, np.cumsum([np.size(part) for part in start.values()])[:-1])
        point = {
            name: np.reshape(part, np.shape(start[name]))
            for name, part in zip(start, cut, strict=True)
        }
        with target.precision():
            at = jnp.asarray(x)
            constrained = jax.device_get(target.model.constrain(at))
            # PyTensor holds some constants, such as log 2π, in float32
            np.testing.assert_allclose(target.log_density(at), log_density(point), rtol=1e-7)
        found = values(*(point[value.name] for value in model.value_vars))
        expected = dict(zip([rv.name for rv in model.unobserved_RVs], found, strict=True))
        assert constrained.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(constrained[name], value, rtol=1e-9, atol=1e-12)


def test_eight_schools_by_hand():
    target = schools_target()
    assert target.names == ("mu", "tau", *(f"z[{i}]" for i in range(8)))
    with target.precision():
        target.check()
    for x in np.random.default_rng(3).standard_normal((2, 10)):
        mu, tau, z = x[0], np.exp(x[1]), x[2:]
        prior = norm(0, 5).logpdf(mu) + stats.halfcauchy.logpdf(tau, scale=5) + x[1]
        terms = norm(mu + tau * z, ERRORS).logpdf(EFFECTS)
        with target.precision():
            at = jnp.asarray(x)
            expected = prior + norm.logpdf(z).sum() + terms.sum()
            np.testing.assert_allclose(target.log_density(at), expected, rtol=1e-7)
            np.testing.assert_allclose(target.model.log_likelihood(at)["y"], terms, rtol=1e-10)
            values = target.model.constrain(at)
        np.testing.assert_allclose(values["theta"], mu + tau * z)


def test_new_data_are_drawn_from_the_model(getkey):
    target = schools_target()
    x = jnp.asarray(np.linspace(-1, 1, 10))
    with target.precision():
        draw = jax.jit(jax.vmap(lambda key: target.model.predict(x, key=key)["y"]))
        drawn = np.asarray(draw(jax.random.split(getkey(), 4_000)))
        theta = np.asarray(target.model.constrain(x)["theta"])
    error = ERRORS / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(0) - theta) < 5 * error).all()
    np.testing.assert_allclose(drawn.std(0), ERRORS, rtol=0.06)


def test_arviz_has_the_names_dims_and_coords_of_pymc(getkey):
    exported = fitted().to_arviz(key=getkey(), draws=6)
    assert set(exported["posterior"].data_vars) == {"mu", "tau", "z", "theta"}
    for group in ("posterior_predictive", "log_likelihood"):
        assert exported[group]["y"].dims == ("chain", "draw", "school")
    for group, name in (
        ("posterior", "theta"),
        ("observed_data", "y"),
        ("constant_data", "errors"),
    ):
        assert list(exported[group][name]["school"].values) == SCHOOLS
    np.testing.assert_array_equal(exported["observed_data"]["y"], EFFECTS)
    np.testing.assert_array_equal(exported["constant_data"]["errors"], ERRORS)
    assert fitted().draws(6, key=getkey())["theta"].shape == (6, 8)


@pytest.mark.slow
def test_pymc_predicts_from_the_export(getkey):
    """PyMC takes the draws for its own: it resamples the data, and none of the unknowns."""
    model = eight_schools()
    exported = fitted().to_arviz(key=getkey(), draws=6, predictive=False)
    drawn = pm.sample_posterior_predictive(
        exported, model=model, progressbar=False, var_names=["theta", "y"], random_seed=1
    )["posterior_predictive"]
    assert drawn["y"].shape == (1, 6, 8)
    np.testing.assert_allclose(drawn["theta"], exported["posterior"]["theta"])


def test_the_process_is_left_as_it_was():
    """PyMC's JAX module turns x64 on and asks for a hundred devices; neither must outlive its import."""
    schools_target()
    assert "device_count=100" not in os.environ.get("XLA_FLAGS", "")
    assert jnp.zeros(1).dtype == np.float32


def test_single_precision_agrees():
    single: Any = Target.from_pymc(eight_schools(), dtype="float32", temperature=2.0)
    x = np.linspace(-1, 1, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, slope = jax.value_and_grad(single.log_density)(jnp.asarray(x, jnp.float32))
    assert value.dtype == slope.dtype == np.float32
    double = schools_target()
    with double.precision():
        np.testing.assert_allclose(value, double.log_density(jnp.asarray(x)) / 2, rtol=1e-5)
    assert single.debug().ok


def test_missing_data_become_unknowns(getkey):
    data = np.array([0.5, np.nan, 1.5, np.nan])
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=data)
    target: Any = Target.from_pymc(model)
    assert target.names == ("mu", "y_unobserved[0]", "y_unobserved[1]")
    with target.precision():
        x = jnp.asarray([0.3, -1.0, 2.0])
        completed = np.array([0.5, -1.0, 1.5, 2.0])
        expected = norm.logpdf(0.3) + norm(0.3, 1).logpdf(completed).sum()
        np.testing.assert_allclose(target.log_density(x), expected, rtol=1e-10)
        np.testing.assert_allclose(target.model.constrain(x)["y"], completed)
    np.testing.assert_array_equal(target.model.observed["y_observed"], [0.5, 1.5])


def test_what_jax_cannot_draw_is_left_to_pymc(getkey):
    with pm.Model() as model:
        means = pm.Normal("means", np.array([-1.0, 1.0]), 1)
        pm.NormalMixture("y", w=[0.5, 0.5], mu=means, sigma=1.0, observed=np.array([0.1, 2.0]))
    target: Any = Target.from_pymc(model)
    with target.precision():
        x = jnp.asarray([-1.0, 1.0])
        terms = np.logaddexp(norm(-1, 1).logpdf([0.1, 2.0]), norm(1, 1).logpdf([0.1, 2.0]))
        likelihood = target.model.log_likelihood(x)["y"]
        np.testing.assert_allclose(likelihood, terms + np.log(0.5), rtol=1e-9)
        if isinstance(target.model._predicted, str):
            with pytest.warns(ReliabilityWarning, match="pm.sample_posterior_predictive"):
                assert target.model.predict(x, key=getkey()) == {}
        else:
            assert target.model.predict(x, key=getkey())["y"].shape == (2,)


def no_variables() -> None:
    pm.Normal("y", 0, 1, observed=np.zeros(3))


def discrete() -> None:
    k = pm.Poisson("k", 3)
    pm.Normal("y", k, 1, observed=np.zeros(3))


def minibatch() -> None:
    batch = pm.Minibatch(np.zeros(10), batch_size=2)
    pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=batch, total_size=10)


def nan_data() -> None:
    x = np.array([0.0, np.nan])
    pm.Normal("y", pm.Normal("mu", 0, 1) * x, 1, observed=np.zeros(2))


def outside() -> None:
    pm.Gamma("y", 2, pm.HalfNormal("rate", 1), observed=np.array([-1.0]))


def unknown_operation() -> None:
    from pytensor.compile.ops import as_op
    from pytensor.tensor.type import dscalar

    @as_op(itypes=[dscalar], otypes=[dscalar])
    def black_box(value: Any) -> Any:
        return value**2

    pm.Normal("y", black_box(pm.Normal("mu", 0, 1)), 1, observed=np.zeros(2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (no_variables, "has no free variables.*pm.Normal"),
        (discrete, r"discrete variables, 'k' \(Poisson\).*pm.Mixture.*leave their rows out"),
        (minibatch, "draws random numbers whenever.*pm.Minibatch.*subsample_size"),
        (nan_data, r"no point with a finite log-density.*'y': nan.*NaN"),
        (outside, r"no point with a finite log-density.*'y': -inf"),
        (unknown_operation, r"the log-density of the PyMC model cannot be compiled.*jax_funcify"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_that_are_refused(build, message):
    with pm.Model() as model:
        build()
    with pytest.raises(InputError, match=message) as found:
        Target.from_pymc(model)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("model", [3.0, pytest, eight_schools, None])
def test_what_is_no_model(model):
    with pytest.raises(InputError, match=r"pass the model of PyMC itself"):
        Target.from_pymc(model)


def test_new_arguments_are_pymcs_affair(getkey):
    with pytest.raises(NotAvailableError, match=r"pm.set_data.*sample_posterior_predictive"):
        fitted().predict(np.zeros(3), key=getkey())


def test_without_pymc(monkeypatch):
    real = importlib_find_spec()
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "pymc" else real(name)
    )
    with pytest.raises(NotAvailableError, match=r"pip install 'gpvi\[pymc\]'"):
        Target.from_pymc(eight_schools())


def importlib_find_spec() -> Any:
    return sys.modules["importlib.util"].find_spec
