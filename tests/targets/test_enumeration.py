"""Discrete sites of NumPyro models: sums by hand, NumPyro's own sums and draws as oracles, and every refusal."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from scipy import stats
from scipy.special import logsumexp

import gpvi
from gpvi import Target
from gpvi.errors import InputError, NotAvailableError

pytest.importorskip("funsor", reason="funsor is not installed: pip install 'gpvi[discrete]'")
sample: Any = numpyro.sample
norm: Any = stats.norm
beta: Any = stats.beta
Y = np.array([-2.1, -1.4, 0.3, 1.8, 2.5])
TRANSITIONS = np.array([[0.8, 0.2], [0.3, 0.7]])
DRAWS = 4_000


def mixture(y):
    """The states of each datum, written plainly, and a deterministic site that depends on them."""
    weight = sample("weight", dist.Beta(2, 2))
    means = sample("means", dist.Normal(jnp.array([-1.0, 1.0]), 2).to_event(1))
    with numpyro.plate("datum", len(y)):
        z = sample("z", dist.Bernoulli(weight))
        mean = numpyro.deterministic("mean", means[z])
        sample("y", dist.Normal(mean, 1), obs=y)


def chain(y):
    """A hidden Markov model by `scan`."""
    means = sample("means", dist.Normal(jnp.array([-1.0, 1.0]), 2).to_event(1))

    def step(state, value):
        state = sample("z", dist.Categorical(jnp.asarray(TRANSITIONS)[state]))
        sample("y", dist.Normal(means[state], 1), obs=value)
        return state, None

    scan(step, 0, jnp.asarray(y))


def chains(y):
    """Several chains side by side, each step with two data, in a plate of their own."""
    means = sample("means", dist.Normal(jnp.array([-1.0, 1.0]), 2).to_event(1))

    def step(state, value):
        with numpyro.plate("series", y.shape[1]):
            state = sample("z", dist.Categorical(jnp.asarray(TRANSITIONS)[state]))
            with numpyro.plate("twice", 2, dim=-2):
                sample("y", dist.Normal(means[state], 1), obs=value)
        return state, None

    scan(step, jnp.zeros(y.shape[1], int), jnp.stack([jnp.asarray(y)] * 2, 1))


def looped(y):
    """The same chain as `chain`, as a loop."""
    from numpyro.contrib.funsor import markov

    means = sample("means", dist.Normal(jnp.array([-1.0, 1.0]), 2).to_event(1))
    state = 0
    for t in markov(range(len(y))):
        state = sample(f"z{t}", dist.Categorical(jnp.asarray(TRANSITIONS)[state]))
        sample(f"y{t}", dist.Normal(means[state], 1), obs=y[t])


@functools.cache
def target_of(model) -> Any:
    data = np.stack([Y, -Y, Y[::-1]], 1) if model is chains else Y
    return Target.from_numpyro(model, data, dtype="float64")


def paths(y, means, repeats=1):
    """log p(z, y) of all 2^T paths of a chain that starts in state 0."""
    found = {}
    for path in np.ndindex(*(2,) * len(y)):
        before = (0, *path[:-1])
        transitions = sum(np.log(TRANSITIONS[i, j]) for i, j in zip(before, path, strict=True))
        found[path] = transitions + repeats * norm(means[list(path)], 1).logpdf(y).sum()
    return found


def states_at(target, x, n=DRAWS):
    keys = jax.random.split(jax.random.key(5), n)
    draw = jax.jit(jax.vmap(lambda key: target.model.constrain(x, key=key)))
    return jax.device_get(draw(keys))


def agrees(counts, probabilities, n=DRAWS):
    """Frequencies within 4.5 standard errors, and not below what one draw in a hundred thousand would show."""
    errors = np.sqrt(probabilities * (1 - probabilities) / n) + 1 / n
    return (np.abs(counts / n - probabilities) < 4.5 * errors).all()


@pytest.mark.slow
def test_a_mixture():
    target = target_of(mixture)
    assert target.names == ("weight", "means[0]", "means[1]")
    x = np.array([0.3, -1.5, 1.5])
    weight = 1 / (1 + np.exp(-0.3))
    scores = np.log([1 - weight, weight]) + norm(x[1:], 1).logpdf(Y[:, None])
    prior = beta(2, 2).logpdf(weight) + np.log(weight * (1 - weight))
    prior += norm([-1, 1], 2).logpdf(x[1:]).sum()
    with target.precision():
        at = jnp.asarray(x)
        expected = prior + np.logaddexp.reduce(scores, 1).sum()
        np.testing.assert_allclose(target.log_density(at), expected, rtol=1e-10)
    assert target.model.dims["z"] == target.model.dims["mean"] == ("datum",)


@pytest.mark.slow
def test_states_of_a_mixture():
    """Each has its probability given its datum, and the deterministic site goes with it."""
    target, x = target_of(mixture), np.array([0.3, -1.5, 1.5])
    weight = 1 / (1 + np.exp(-0.3))
    scores = np.log([1 - weight, weight]) + norm(x[1:], 1).logpdf(Y[:, None])
    with target.precision():
        drawn = states_at(target, jnp.asarray(x))
    np.testing.assert_array_equal(drawn["mean"], np.where(drawn["z"], 1.5, -1.5))
    assert agrees(drawn["z"].sum(0), np.exp(scores - logsumexp(scores, 1, keepdims=True))[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize("model", [chain, looped])
def test_a_chain_of_states_is_drawn_jointly(model):
    """Every one of 2⁵ paths has its probability: a draw of each state by itself would not."""
    target = target_of(model)
    means = np.array([-0.5, 0.5])
    scores = paths(Y, means)
    total = logsumexp(list(scores.values()))
    with target.precision():
        at = jnp.asarray(means)
        expected = total + norm([-1, 1], 2).logpdf(means).sum()
        np.testing.assert_allclose(target.log_density(at), expected, rtol=1e-10)
        drawn = states_at(target, at)
    names = ["z"] if model is chain else [f"z{t}" for t in range(len(Y))]
    z = np.concatenate([drawn[name].reshape(DRAWS, -1) for name in names], 1)
    counts = np.array([(z == path).all(1).sum() for path in scores])
    assert agrees(counts, np.exp(np.array(list(scores.values())) - total))


@pytest.mark.slow
def test_chains_side_by_side():
    target = target_of(chains)
    means = np.array([-0.5, 0.5])
    with target.precision():
        at = jnp.asarray(means)
        drawn = states_at(target, at)["z"]
        value = float(target.log_density(at))
    assert drawn.shape == (DRAWS, 5, 3)
    assert target.model.dims["z"] == ("z_dim_0", "series")
    total = norm([-1, 1], 2).logpdf(means).sum()
    for series, data in enumerate([Y, -Y, Y[::-1]]):
        scores = paths(data, means, repeats=2)
        total += logsumexp(list(scores.values()))
        found = np.exp(np.array(list(scores.values())) - logsumexp(list(scores.values())))
        counts = np.array([(drawn[:, :, series] == path).all(1).sum() for path in scores])
        assert agrees(counts, found)
    np.testing.assert_allclose(value, total, rtol=1e-10)


@pytest.mark.slow
def test_states_are_among_the_draws(getkey):
    """Of a fit: with its keys, in ArviZ, with new data, and without a likelihood of single observations."""
    posterior = gpvi.fit(
        target_of(mixture),
        gpvi.SVGD(particles=6),
        key=getkey(),
        steps=3,
        init=None,
        progress=False,
    )
    key = getkey()
    draws = posterior.draws(6, key=key)
    np.testing.assert_array_equal(draws["z"], posterior.draws(6, key=key)["z"])
    exported = posterior.to_arviz(key=getkey(), draws=6)
    assert exported["posterior"]["z"].dims == ("chain", "draw", "datum")
    assert exported["posterior_predictive"]["y"].shape == (1, 6, 5)
    assert "log_likelihood" not in exported
    assert "z[4]" in posterior.summary(key=key).names


def poisson(y):
    k = sample("k", dist.Poisson(sample("rate", dist.Gamma(2, 1))))
    sample("y", dist.Normal(k, 1), obs=y)


def sequential(y):
    k = sample("k", dist.Bernoulli(sample("p", dist.Beta(1, 1))), infer={"enumerate": "sequential"})
    sample("y", dist.Normal(k, 1), obs=y)


def unplated(y):
    z = sample("z", dist.Bernoulli(sample("p", dist.Beta(1, 1))).expand([5]))
    sample("y", dist.Normal(z, 1), obs=y)


def subsampled(y):
    p = sample("p", dist.Beta(1, 1))
    with numpyro.plate("datum", 5, subsample_size=2) as i:
        sample("y", dist.Normal(sample("z", dist.Bernoulli(p)), 1), obs=jnp.asarray(y)[i])


def scaled(y):
    p = sample("p", dist.Beta(1, 1))
    with numpyro.handlers.scale(scale=2.0):
        sample("z", dist.Bernoulli(p))


def branching(y):
    z = sample("z", dist.Bernoulli(sample("p", dist.Beta(1, 1))))
    sample("y", dist.Normal(1.0 if z else -1.0, 1), obs=0.3)


def two_chains(y):
    p = sample("p", dist.Beta(1, 1))

    def step(states, value):
        one = sample("one", dist.Bernoulli(jnp.where(states[0], p, 1 - p)))
        two = sample("two", dist.Bernoulli(jnp.where(states[1], p, 1 - p)))
        sample("y", dist.Normal(one + two, 1), obs=value)
        return (one, two), None

    scan(step, (0, 0), jnp.asarray(y))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (poisson, r"'k' is a discrete latent \(Poisson\) with infinitely many values.*obs="),
        (sequential, "'sequential'.*leave the mark out"),
        (unplated, "'z' has an axis of length 5 outside of any plate.*numpyro.plate"),
        (subsampled, "subsamples plate 'datum' and has discrete latents.*Leave subsample_size out"),
        (scaled, "'z' is scaled.*Leave the handler out"),
        (branching, "branching fails"),
        (two_chains, "fails when its discrete latents .*join several into one"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_that_are_refused(model, message):
    with pytest.raises(InputError, match=message) as found:
        Target.from_numpyro(model, Y)
    assert "\n" not in str(found.value)


def test_without_funsor(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    hide = lambda name: None if name == "funsor" else real(name)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", hide)
    with pytest.raises(NotAvailableError, match=r"discrete latents \(z\).*'gpvi\[discrete\]'"):
        Target.from_numpyro(mixture, Y)
