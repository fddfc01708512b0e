"""NumPyro models as flat vectors: NumPyro's own log-densities, Jacobians and batches as oracles, and every refusal."""

import functools
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, log_likelihood, potential_energy
from scipy import stats

import gpvi
from gpvi import Target
from gpvi.errors import InputError, NotAvailableError
from gpvi.targets.models._numpyro_sites import check_terms
from gpvi.targets.models.model import DrawsItsPrior

sample: Any = numpyro.sample
subsample: Any = numpyro.subsample
norm: Any = stats.norm
halfcauchy: Any = stats.halfcauchy
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(effects, errors):
    mu = sample("mu", dist.Normal(0, 5))
    tau = sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        theta = sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("shift", theta - mu)
        sample("y", dist.Normal(theta, errors), obs=effects)


def supports(y):
    """A latent of every kind of support that NumPyro maps to R^m."""
    sample("free", dist.Normal(0, 1).expand([2, 3]).to_event(1))
    low = sample("positive", dist.Gamma(2.0, 1.0))
    sample("above", dist.TruncatedNormal(0, 1, low=1.5))
    sample("below", dist.TruncatedNormal(0, 1, high=-0.5))
    sample("unit", dist.Beta(2.0, 3.0).expand([2]))
    high = sample("bounded", dist.Uniform(-1, low + 1))
    sample("simplex", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    sample("ordered", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    sample("improper", dist.ImproperUniform(constraints.positive, (), ()))
    sample("cholesky", dist.ImproperUniform(constraints.corr_cholesky, (), (3, 3)))
    sample("matrix", dist.ImproperUniform(constraints.positive_definite, (), (2, 2)))
    sample("angle", dist.ImproperUniform(constraints.circular, (), ()))
    numpyro.factor("extra", -(high**2))
    sample("y", dist.Normal(high, low), obs=y)


def regression(x, y, size):
    """Data in a plate, with positive scales of their own, under a scale handler; a prior outside."""
    slope = sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    noise = sample("noise", dist.HalfNormal(1))
    with numpyro.plate("datum", len(y), subsample_size=size) as i:
        with numpyro.handlers.scale(scale=0.7):
            own = sample("own", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
        mean = subsample(jnp.asarray(x), event_dim=1) @ slope
        sample("y", dist.Normal(mean + own[..., 0], noise), obs=jnp.asarray(y)[i])


X = np.random.default_rng(0).standard_normal((5, 2))
Y = np.random.default_rng(1).standard_normal(5)


def points(target, n=3):
    return np.random.default_rng(7).standard_normal((n, target.dim))


@functools.cache
def schools_target() -> Any:
    return Target.from_numpyro(eight_schools, EFFECTS, ERRORS, dtype="float64")


@functools.cache
def batched_target() -> Any:
    return Target.from_numpyro(regression, X, Y, 2, dtype="float64")


def with_jacobians(model, args, unconstrained):
    """log p at the constrained values plus log|det T′| of each site's bijection, without `potential_energy`."""

    def place(site):
        if site["name"] not in unconstrained:
            return None
        return biject_to(site["fn"].support)(unconstrained[site["name"]])

    seeded = seed(model, 0)
    sites = trace(substitute(seeded, substitute_fn=place)).get_trace(*args)
    values = {name: sites[name]["value"] for name in unconstrained}
    total, _ = log_density(seeded, args, {}, values)
    for name, u in unconstrained.items():
        bijection = biject_to(sites[name]["fn"].support)
        total += jnp.sum(bijection.log_abs_det_jacobian(u, values[name]))
    return total


def test_every_support_against_numpyro():
    target: Any = Target.from_numpyro(supports, 0.3, dtype="float64")
    counts = {
        name: sum(entry.split("[")[0] == name for entry in target.names)
        for name in ("positive", "simplex", "ordered", "cholesky", "matrix")
    }
    assert counts == {"positive": 1, "simplex": 2, "ordered": 3, "cholesky": 3, "matrix": 3}
    assert target.names[:6] == tuple(f"free[{i},{j}]" for i in range(2) for j in range(3))
    with target.precision():
        model = target.model

        @jax.jit
        def both_ways(x):
            expected = with_jacobians(supports, (0.3,), model.unravel(x))
            return target.log_density(x), expected, model.constrain(x)

        for x in points(target):
            value, expected, constrained = jax.device_get(both_ways(jnp.asarray(x)))
            np.testing.assert_allclose(value, expected, rtol=1e-10)
            check_supports(constrained)


def check_supports(constrained):
    assert all(value.dtype == np.float64 for value in constrained.values())
    np.testing.assert_allclose(constrained["simplex"].sum(), 1)
    assert (np.diff(constrained["ordered"]) > 0).all()
    assert -1 < constrained["bounded"] < constrained["positive"] + 1
    np.testing.assert_allclose((constrained["cholesky"] ** 2).sum(1), 1)
    assert (np.linalg.eigvalsh(constrained["matrix"]) > 0).all()
    assert constrained["above"] > 1.5
    assert constrained["below"] < -0.5


def test_eight_schools_by_hand():
    target = schools_target()
    assert target.names == ("mu", "tau", *(f"theta[{i}]" for i in range(8)))
    assert target.size is target.batch_size is None
    with target.precision():
        target.check()
    for x in points(target):
        mu, tau, theta = x[0], np.exp(x[1]), x[2:]
        expected = (
            norm(0, 5).logpdf(mu)
            + halfcauchy(scale=5).logpdf(tau)
            + x[1]
            + norm(mu, tau).logpdf(theta).sum()
            + norm(theta, ERRORS).logpdf(EFFECTS).sum()
        )
        with target.precision():
            np.testing.assert_allclose(target.log_density(jnp.asarray(x)), expected, rtol=1e-12)


def test_what_the_model_says_of_a_point(getkey):
    target = schools_target()
    x = points(target)[0]
    with target.precision():
        at = jnp.asarray(x)
        values = target.model.constrain(at)
        likelihood = target.model.log_likelihood(at)
        drawn = jax.jit(jax.vmap(lambda k: target.model.predict(at, key=k)["y"]))(
            jax.random.split(getkey(), 4_000)
        )
        drawn = np.asarray(drawn)
        oracle = log_likelihood(
            eight_schools, {k: v[None] for k, v in values.items()}, EFFECTS, ERRORS
        )
    assert list(values) == ["mu", "tau", "theta", "shift"]
    np.testing.assert_allclose(values["tau"], np.exp(x[1]))
    np.testing.assert_allclose(values["shift"], x[2:] - x[0])
    np.testing.assert_allclose(likelihood["y"], oracle["y"][0])
    np.testing.assert_allclose(likelihood["y"], norm(x[2:], ERRORS).logpdf(EFFECTS))
    np.testing.assert_allclose(drawn.mean(0), x[2:], atol=5 * 18 / np.sqrt(4_000))
    np.testing.assert_allclose(drawn.std(0), ERRORS, rtol=0.06)
    np.testing.assert_array_equal(target.model.observed["y"], EFFECTS)
    assert target.model.dims["theta"] == target.model.dims["y"] == ("school",)


def test_batches_average_to_the_whole():
    """Over all (5 choose 2) batches, values and scores, with latents inside the plate; and the whole is NumPyro's."""
    target = batched_target()
    assert (target.size, target.batch_size) == (5, 2)
    assert target.dim == 2 + 1 + 5 * 2
    with target.precision():
        x = jnp.asarray(points(target)[0])
        batches = jnp.asarray(list(itertools.combinations(range(5), 2)))
        estimate = jax.jit(
            jax.vmap(lambda i: jax.value_and_grad(target.log_density)(x, target.batch(i)))
        )
        values, scores = map(np.asarray, estimate(batches))
        whole, score = map(np.asarray, jax.jit(jax.value_and_grad(target.log_density))(x))
        energy = jax.jit(
            lambda x: potential_energy(regression, (X, Y, None), {}, target.model.unravel(x))
        )(x)
    np.testing.assert_allclose(whole, -energy, rtol=1e-10)
    np.testing.assert_allclose(values.mean(), whole, rtol=1e-10)
    np.testing.assert_allclose(scores.mean(0), score, rtol=1e-9, atol=1e-10)
    assert np.std(values) > 0.1


def test_a_batch_is_numpyros_own(getkey):
    """A batch of the declared size has the log-density that NumPyro gives its subsampled model."""
    target = batched_target()
    with target.precision():
        x = jnp.asarray(points(target)[1])
        indices = jnp.asarray([3, 1])
        values = target.model.unravel(x)
        values["own"] = values["own"][indices]
        fixed = substitute(seed(regression, 0), data={"datum": indices})
        energy = jax.jit(lambda values: potential_energy(fixed, (X, Y, 2), {}, values))(values)
        value = jax.jit(lambda x: target.log_density(x, indices))(x)
        np.testing.assert_allclose(value, -energy, rtol=1e-10)
        everything = jax.eval_shape(target.model.log_likelihood, x)["y"]
    assert everything.shape == (5,)


TABLE = np.random.default_rng(2).standard_normal((30, 50))


def crossed(y, rows=None, columns=None):
    """A table of data in two plates, with effects of rows."""
    mean = sample("mean", dist.Normal(0, 1))
    with numpyro.plate("row", 30, subsample_size=rows, dim=-2) as i:
        effect = sample("effect", dist.Normal(mean, 1))
        sample("seen", dist.Normal(effect, 1), obs=jnp.asarray(y)[i, :1])
        with numpyro.plate("column", 50, subsample_size=columns, dim=-1) as j:
            sample("y", dist.Normal(effect, 1), obs=jnp.asarray(y)[i[:, None], j])


@pytest.mark.slow
def test_two_subsampled_plates(getkey):
    """Batches of the larger choose those of the other, without a bias; with all of it the sum is whole."""
    target: Any = Target.from_numpyro(crossed, TABLE, 3, 5, dtype="float64")
    assert (target.size, target.batch_size) == (50, 5)
    with target.precision():
        x = jnp.asarray(points(target)[0])
        batches = jax.vmap(lambda key: jax.random.permutation(key, 50)[:5])(
            jax.random.split(getkey(), 4_000)
        )
        estimate = jax.jit(jax.vmap(lambda i: target.log_density(x, target.batch(i))))
        values = np.asarray(estimate(batches))
        chosen = np.asarray(target.model._batch(batches[0])["row"])
        fixed = substitute(
            seed(crossed, 0), data={"row": jnp.asarray(chosen), "column": batches[0]}
        )
        at = target.model.unravel(x)
        whole = -float(potential_energy(crossed, (TABLE,), {}, at))
        at["effect"] = at["effect"][chosen]
        batched = -potential_energy(fixed, (TABLE, 3, 5), {}, at)
        np.testing.assert_allclose(target.log_density(x), whole, rtol=1e-10)
    np.testing.assert_allclose(values[0], batched, rtol=1e-10)
    assert len(np.unique(chosen)) == 3
    assert len(np.unique(values)) > 3_900
    assert abs(values.mean() - whole) < 4.5 * values.std() / np.sqrt(len(values))


def masked(y, seen):
    mu = sample("mu", dist.Normal(0, 1))
    with numpyro.plate("datum", 5):
        with numpyro.handlers.mask(mask=seen):
            sample("y", dist.Normal(mu, 1), obs=y)
        with numpyro.handlers.mask(mask=np.array([True, False, True, True, False])):
            sample("own", dist.Normal(mu, 1))


def test_masked_sites():
    """What is masked has no term, not even as NaN in the data."""
    seen = np.array([True, True, False, True, True])
    data = np.where(seen, Y, np.nan)
    target: Any = Target.from_numpyro(masked, data, seen, dtype="float64")
    with target.precision():
        x = jnp.asarray(points(target)[0])
        value, slope = jax.value_and_grad(target.log_density)(x)
        likelihood = target.model.log_likelihood(x)["y"]
    terms: Any = norm(x[0], 1).logpdf(Y) * seen
    own = norm(x[0], 1).logpdf(x[1:])[[0, 2, 3]]
    np.testing.assert_allclose(value, norm.logpdf(x[0]) + np.sum(terms) + np.sum(own), rtol=1e-10)
    np.testing.assert_allclose(likelihood, terms, rtol=1e-10)
    assert np.isfinite(slope).all()


def with_parameters(y):
    noise = numpyro.param("noise", lambda key: jnp.exp(jax.random.normal(key)))
    weights: Any = numpyro.param("weights", jnp.ones(2), constraint=constraints.positive)
    mu = sample("mu", dist.Normal(weights.sum(), 1))
    sample("y", dist.Normal(mu, noise), obs=y)


def test_parameters_are_held_where_they_begin(getkey):
    """As in NumPyro's MCMC, and with a warning; a random start is drawn once."""
    with pytest.warns(UserWarning, match=r"sites noise, weights are numpyro.param.*numpyro.sample"):
        target: Any = Target.from_numpyro(with_parameters, Y, dtype="float64")
    assert target.names == ("mu",)
    held = target.model.held
    np.testing.assert_array_equal(held["weights"], 1)
    with target.precision():
        x = jnp.asarray([0.7])
        expected = norm(2, 1).logpdf(0.7) + norm(0.7, held["noise"]).logpdf(Y).sum()
        np.testing.assert_allclose(target.log_density(x), expected, rtol=1e-10)
        draws = jax.vmap(lambda key: target.model.predict(x, key=key)["y"])(
            jax.random.split(getkey(), 2_000)
        )
        spread = float(jnp.std(draws))
    np.testing.assert_allclose(spread, held["noise"], rtol=0.05)


def line(x, y=None, groups=2):
    """A model that can be called at new covariates, with an effect of each group."""
    slope = sample("slope", dist.Normal(0, 1))
    with numpyro.plate("group", groups):
        effect = sample("effect", dist.Normal(100 * groups, 0.1))
    with numpyro.plate("datum", len(x)):
        mean = numpyro.deterministic("mean", slope * jnp.asarray(x) + effect[0])
        sample("y", dist.Normal(mean, 0.01), obs=y)


@functools.cache
def fitted_line() -> Any:
    target = Target.from_numpyro(line, X[:, 0], 200 + X[:, 0])
    return gpvi.fit(
        target, gpvi.SVGD(particles=8), key=jax.random.key(1), steps=2, init=None, progress=False
    )


def test_predictions_at_new_covariates(getkey):
    """The unknowns are those of the draws; what is new is drawn from the model."""
    key = getkey()
    new = np.array([0.0, 1.0, -2.0])
    predicted = jax.device_get(fitted_line().predict(new, key=key))
    assert {name: each.shape for name, each in predicted.items()} == {"mean": (8, 3), "y": (8, 3)}
    slopes = predicted["mean"][:, 1] - predicted["mean"][:, 0]
    known = np.asarray(fitted_line().draws(8, key=key)["slope"])
    np.testing.assert_allclose(np.sort(slopes), np.sort(known), atol=1e-4)
    assert (np.abs(predicted["y"] - predicted["mean"]) < 0.06).all()
    assert not np.allclose(predicted["y"], predicted["mean"], atol=1e-4)


def test_predictions_for_new_groups(getkey):
    """Effects of three groups instead of two are new, and drawn from their prior around 300."""
    predicted = fitted_line().predict(X[:, 0], groups=3, key=getkey(), draws=5)
    assert predicted["effect"].shape == (5, 3)
    assert (np.abs(np.asarray(predicted["effect"]) - 300) < 1).all()


def test_predictions_that_fail(getkey):
    with pytest.raises(InputError, match=r"line fails when it is run with the given arguments"):
        fitted_line().predict(key=getkey())
    plain = gpvi.fit(
        Target(lambda x: -(x @ x), dim=2), gpvi.SVGD(4), key=getkey(), steps=1, progress=False
    )
    with pytest.raises(NotAvailableError, match=r"Target.from_numpyro"):
        plain.predict(1.0, key=getkey())


def test_training_on_batches(getkey):
    target = batched_target()
    posterior = gpvi.fit(
        target,
        gpvi.SVGD(particles=4),
        key=getkey(),
        steps=3,
        batch_size=target.batch_size,
        init=None,
        progress=False,
    )
    draws = jax.device_get(posterior.draws(4, key=getkey()))
    assert draws["own"].shape == (4, 5, 3)
    np.testing.assert_allclose(draws["own"].sum(-1), 1, rtol=1e-5)
    assert (draws["noise"] > 0).all()


def test_temperature_and_reparametrisation():
    """A reparametrised site is drawn by its base, and given back as a deterministic one."""
    centred = numpyro.handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0)})
    cold: Any = Target.from_numpyro(centred, EFFECTS, ERRORS, dtype="float64", temperature=0.5)
    with cold.precision():
        x = jnp.asarray(points(cold)[0])
        values = cold.model.constrain(x)
        energy = potential_energy(centred, (EFFECTS, ERRORS), {}, cold.model.unravel(x))
        np.testing.assert_allclose(cold.log_density(x), -2 * energy, rtol=1e-12)
    assert "theta_decentered[7]" in cold.names
    np.testing.assert_allclose(
        values["theta"], values["mu"] + values["tau"] * values["theta_decentered"]
    )


def test_arguments_stay_concrete():
    """Models may compute shapes from their data, as many do."""

    def grouped(group, y):
        effects = sample("effect", dist.Normal(0, 1).expand([len(np.unique(group))]))
        if np.max(y) > 0:
            sample("y", dist.Normal(effects[group], 1), obs=y)

    target = Target.from_numpyro(grouped, group=np.array([0, 1, 2, 1]), y=np.arange(4.0))
    assert target.dim == 3
    target.check()


def test_draws_of_the_prior_are_unconstrained():
    """log of a gamma variable; an improper prior has no draws."""

    def model(y):
        rate = sample("rate", dist.Gamma(3.0, 2.0))
        sample("y", dist.Poisson(rate), obs=y)

    target = Target.from_numpyro(model, np.array([1]))
    assert isinstance(target.model, DrawsItsPrior)
    draws = target.model.prior_draws(4_000, key=jax.random.key(0))
    assert draws.shape == (4_000, 1)
    np.testing.assert_allclose(np.exp(draws).mean(), 1.5, atol=0.06)

    def improper(y):
        mean = sample("mean", dist.ImproperUniform(constraints.real, (), ()))
        sample("y", dist.Normal(mean, 1.0), obs=y)

    target = Target.from_numpyro(improper, np.array([1.0]))
    assert isinstance(target.model, DrawsItsPrior)
    assert target.model.prior_draws(4, key=jax.random.key(0)).shape == (0, 1)


def test_the_start_is_where_the_log_density_is_finite():
    """The prior's median of an interval's end lies below the datum, where the likelihood is zero."""

    def ends(y):
        high = sample("high", dist.LogNormal(0, 0.1))
        sample("y", dist.Uniform(0, high), obs=y)

    target = Target.from_numpyro(ends, jnp.asarray(3.0))
    target.check()
    assert np.exp(target.initial[0]) > 3


def impossible(y):
    scale = sample("scale", dist.HalfNormal(1))
    sample("y", dist.Gamma(2.0, scale), obs=y)


def twice(y):
    sample("a", dist.Normal(0, 1))
    sample("a", dist.Normal(0, 1))


def no_latent(y):
    sample("y", dist.Normal(0, 1), obs=y)


def with_delta(y):
    sample("d", dist.Delta(1.0))


def few_batches(y):
    with numpyro.plate("rows", 4, subsample_size=2), numpyro.plate("columns", 6, subsample_size=3):
        sample("a", dist.Normal(0, 1))


def forgets_the_indices(y):
    a = sample("a", dist.Normal(0, 1))
    with numpyro.plate("datum", 5, subsample_size=2):
        sample("y", dist.Normal(a, 1), obs=jnp.arange(5.0))


def renamed(y, calls=[]):  # noqa: B006
    calls.append(0)
    sample(f"a{len(calls)}", dist.Normal(0, 1))


def of_letters(y):
    sample("y", dist.Normal(sample("a", dist.Normal(0, 1)), 1), obs="abc")


def rows_of_numpy(y):
    a = sample("a", dist.Normal(0, 1))
    with numpyro.plate("datum", 5, subsample_size=2) as i:
        sample("y", dist.Normal(a, 1), obs=np.arange(5.0)[i])


@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3.0, "model is 3.0; pass the NumPyro model itself"),
        (lambda y: y, "has no sites: it is not a NumPyro model"),
        (lambda: None, "fails when it is run.*TypeError"),
        (twice, "names a site twice.*`a`"),
        (no_latent, "no_latent has no latent sites.*numpyro.sample"),
        (with_delta, "'d' has a Delta.*numpyro.deterministic"),
        (few_batches, "plates rows, columns.*'columns', has 120 batches.*all but one"),
        (renamed, "has a site 'a2' when it is first called.*names that do not depend"),
        (of_letters, "site 'y' observes 'abc', which is no number"),
        (rows_of_numpy, r"NumPy arrays at the indices of a plate.*jnp.asarray\(y\)\[i\]"),
        (forgets_the_indices, "'datum' and fails on a batch of 2 of 5.*numpyro.subsample"),
        (impossible, "no point with a finite log-density.*'y': -inf|'y': nan"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_that_are_refused(model, message):
    with pytest.raises(InputError, match=message):
        Target.from_numpyro(model, -1.0)


def pairs(y):
    mu = sample("mu", dist.Normal(0, 1).expand([5]))
    sample("y", dist.Normal(mu[:, None], 1), obs=y)


def pairs_in_a_plate(y):
    mu = sample("mu", dist.Normal(0, 1).expand([5]))
    with numpyro.plate("datum", 5):
        sample("y", dist.Normal(mu[:, None], 1), obs=y)


def pairs_of_a_column(y):
    mu = sample("mu", dist.Normal(0, 1).expand([5]))
    sample("y", dist.Normal(mu, 1), obs=y[:, None])


def a_column_in_a_plate(y):
    with numpyro.plate("datum", 5):
        mu = sample("mu", dist.Normal(0, 1))
        sample("y", dist.Normal(mu, 1), obs=y[:, None])


def pairs_as_events(y):
    mu = sample("mu", dist.Normal(0, 1).expand([5]))
    sample("y", dist.Normal(mu[:, None], 1).to_event(1), obs=y)


@pytest.mark.parametrize(
    "model",
    [pairs, pairs_in_a_plate, pairs_of_a_column, a_column_in_a_plate, pairs_as_events],
    ids=lambda model: model.__name__,
)
def test_pairs_of_data_are_refused(model):
    with pytest.raises(InputError, match=r"'y' has a value of shape .* broadcasts? .*\(5, 5\)"):
        Target.from_numpyro(model, Y)


def scalars(y):
    sample("y", dist.Normal(sample("a", dist.Normal(0, 1)), 1), obs=y)


def plated(y):
    a = sample("a", dist.Normal(0, 1))
    with numpyro.plate("datum", 5):
        sample("y", dist.Normal(a, 1), obs=y)


def one_value_in_a_plate(y):
    with numpyro.plate("datum", 5):
        sample("zero", dist.Normal(sample("a", dist.Normal(0, 1)), 1), obs=0.0)


def one_value_for_all(y):
    a = sample("a", dist.Normal(0, 1).expand([5]))
    sample("zero", dist.Normal(a, 1), obs=0.0)


def repeated_in_a_plate(y):
    a = sample("a", dist.Normal(0, 1).expand([3, 1]))
    with numpyro.plate("again", 3, dim=-2), numpyro.plate("datum", 5, dim=-1):
        sample("y", dist.Normal(a, 1), obs=y)


def events(y):
    a = sample("a", dist.Normal(0, 1).expand([5]))
    sample("y", dist.Normal(a, 1).to_event(1), obs=y)
    sample("z", dist.MultivariateNormal(a, jnp.eye(5)), obs=np.ones((3, 5)))
    sample("k", dist.Categorical(logits=a), obs=np.array([1, 2, 4]))
    sample("columns", dist.Normal(a[:, None], 1), obs=np.ones((5, 2)))


@pytest.mark.parametrize(
    "model",
    [scalars, plated, one_value_in_a_plate, one_value_for_all, repeated_in_a_plate, events],
    ids=lambda model: model.__name__,
)
def test_other_broadcasting_is_taken(model):
    check_terms(trace(seed(model, 0)).get_trace(Y))


def test_a_model_with_every_other_broadcasting_has_a_density():
    def model(y):
        for each in (plated, one_value_in_a_plate, repeated_in_a_plate):
            with numpyro.handlers.scope(prefix=each.__name__):
                each(y)

    target = Target.from_numpyro(model, Y)
    assert np.isfinite(target.log_density(target.initial))


def test_numbers_drawn_inside_a_model_are_told():
    def noisy():
        key: Any = numpyro.prng_key()
        noise = jax.random.normal(key)
        sample("a", dist.Normal(noise, 1))

    with pytest.warns(UserWarning, match=r"calls numpyro.prng_key\(\): .* held"):
        Target.from_numpyro(noisy)


def test_a_series_of_pandas_inside_a_model():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": Y, "y": Y})

    def model():
        b = sample("b", dist.Normal(0, 1))
        sample("y", dist.Normal(b * frame["x"], 1), obs=frame["y"].values)

    with pytest.raises(
        InputError, match=r"traced value .*\(TracerArrayConversionError\).*\.values"
    ) as found:
        Target.from_numpyro(model)
    assert "\n" not in found.value.args[0]


def test_options_that_the_model_also_takes():
    def tempered(y, temperature):
        sample("y", dist.Normal(sample("a", dist.Normal(0, 1)), temperature), obs=y)

    with pytest.raises(InputError, match=r"temperature=2.0 is meant for the model or.*partial"):
        Target.from_numpyro(tempered, 1.0, temperature=2.0)
    bound = functools.partial(tempered, temperature=2.0)
    assert Target.from_numpyro(bound, 1.0, temperature=0.5).temperature == 0.5


def test_without_numpyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'gpvi\[numpyro\]'"):
        Target.from_numpyro(eight_schools, EFFECTS, ERRORS)
