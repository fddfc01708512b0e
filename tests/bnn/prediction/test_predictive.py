"""What posteriors over networks predict: streamed averages against direct ones, and their mixtures."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from gpvi import GPVI, bnn
from gpvi.bnn.prediction import _draws, _mixture
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AffineFlow, Triangular
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine
from selection import some_slow

KEY = jax.random.key(0)


def posterior_of(network, extra=0, seed=0, spread=0.3):
    """A posterior with some generator, without training."""
    dim = network.size + extra
    spec = Triangular(2, AffineFlow(spread), (4,), scale=spread)
    generator = spec.build(dim, key=jax.random.key(seed), dtype=jnp.float32)
    centre = jnp.concatenate([network.init(jax.random.key(seed)), jnp.full(extra, -1.0)])
    affine = Affine(centre, jnp.ones(dim))
    names = tuple(map(str, range(dim)))
    return Posterior(GPVI(spec), generator, Start(affine), names, Training(0, 0, 0.0, {}))


KINDS = {
    "gaussian": (bnn.Gaussian(), 2, 2),
    "heteroscedastic": (bnn.Heteroscedastic(), 4, 0),
    "poisson": (bnn.Poisson(), 2, 0),
    "bernoulli": (bnn.Bernoulli(), 1, 0),
    "categorical": (bnn.Categorical(), 3, 0),
}


X = np.random.default_rng(3).standard_normal((7, 3))


def predictive_of(kind, seed=0):
    likelihood, outputs, extra = KINDS[kind]
    network = bnn.mlp((3, 4, outputs), "tanh")
    return bnn.Predictive(posterior_of(network, extra, seed), network, likelihood)


def drawn_directly(own, n, key):
    """All n networks at once: their outputs and other coordinates."""
    networks = _draws.network_draws(own.members, n, key=jax.random.split(key)[0])
    size = own.network.size

    @eqx.filter_jit
    def draw(networks):
        blocks = [networks.draw(jnp.asarray(i))[0] for i in range(networks.blocks)]
        flat = jnp.concatenate(blocks)[:n]
        out = jax.vmap(own.network.apply, (0, None))(flat[:, :size], jnp.asarray(X, jnp.float32))
        return out, flat[:, size:]

    return draw(networks)


@pytest.mark.parametrize("kind", some_slow(KINDS, fast=("categorical",)))
def test_streaming_is_the_direct_average(kind, monkeypatch):
    """In blocks of 8 networks and 3 rows, with idle places in the last of each."""
    own, n = predictive_of(kind), 45
    monkeypatch.setattr(_draws, "BLOCK_WEIGHTS", 8 * own.posterior.dim)
    monkeypatch.setattr(_mixture, "FORWARD_PASSES", 24)
    found = own.predict(X, key=KEY, draws=n)
    y = own.sample(X, n, key=KEY)[-1]
    log_prob = own.log_prob(X, y, key=KEY, draws=n)
    out, extra = drawn_directly(own, n, KEY)

    @jax.jit
    def directly(out, extra):
        mean, variance = jax.vmap(own.likelihood.moments)(out, extra)
        each = jax.vmap(own.likelihood.log_prob, (0, 0, None))(out, extra, y)
        density = jax.nn.logsumexp(each, 0) - math.log(n)
        return mean.mean(0), variance.mean(0), mean.var(0), density

    mean, aleatoric, epistemic, density = directly(out, extra)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.aleatoric, aleatoric, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.epistemic, epistemic, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(log_prob, density, rtol=1e-4)
    np.testing.assert_allclose(own.outputs(X, n, key=KEY), out, rtol=1e-4, atol=1e-5)
    if own.likelihood.classifies:
        mixed = own.likelihood.entropy(mean)
        of_one = lambda o, e: own.likelihood.entropy(own.likelihood.moments(o, e)[0])  # noqa: E731
        each = jax.jit(jax.vmap(of_one))(out, extra).mean(0)
        assert found.entropy is not None and found.mutual_information is not None
        np.testing.assert_allclose(found.entropy, mixed, rtol=1e-4)
        np.testing.assert_allclose(found.mutual_information, mixed - each, atol=1e-5)
        assert (found.mutual_information > 1e-3).all()
    else:
        assert found.entropy is None and found.mutual_information is None


@pytest.mark.parametrize("kind", some_slow(KINDS, fast=("gaussian",)))
def test_law_of_total_variance(kind):
    """Draws of y know nothing of the split, and have the variance that it sums to."""
    own = predictive_of(kind)
    found, y = own.predict(X, key=KEY, draws=20_000), own.sample(X, 20_000, key=KEY)
    if kind == "categorical":
        y = np.eye(3)[np.asarray(y)]
    y = np.asarray(y)
    sd = np.asarray(found.std)
    assert (np.abs(y.mean(0) - found.mean) < 5 * sd / 141).all()
    np.testing.assert_allclose(y.var(0), found.variance, rtol=0.12)
    assert (found.epistemic > 0.01 * found.variance).all()


def test_quantiles_invert_the_mixture():
    own, n, levels = predictive_of("gaussian"), 45, (0.1, 0.9)
    found = own.quantiles(X, levels, key=KEY, draws=n)
    lower, upper = own.interval(X, 0.8, key=KEY, draws=n)
    np.testing.assert_allclose(lower, found[0], atol=1e-5)
    np.testing.assert_allclose(upper, found[1], atol=1e-5)
    out, extra = drawn_directly(own, n, KEY)
    means, variances = map(np.asarray, jax.vmap(own.likelihood.moments)(out, extra))
    for p, own_row in zip(levels, found, strict=True):
        for row, column in np.ndindex(*own_row.shape):
            m, s = means[:, row, column], variances[:, row, column] ** 0.5
            gap = lambda v, m=m, s=s, p=p: stats.norm.cdf(v, m, s).mean() - p  # noqa: E731
            expected = optimize.brentq(gap, -50, 50)
            assert own_row[row, column] == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_quantiles_of_counts():
    """The least whole number that reaches the level."""
    own, n = predictive_of("poisson"), 45
    out, _ = drawn_directly(own, n, KEY)
    counts = np.arange(200)
    mixture = stats.poisson.cdf(counts[:, None, None, None], np.exp(np.asarray(out))).mean(1)
    for p, found in zip(
        (0.1, 0.5, 0.95), own.quantiles(X, (0.1, 0.5, 0.95), key=KEY, draws=n), strict=True
    ):
        np.testing.assert_array_equal(found, (mixture >= p).argmax(0))


def test_memory_does_not_grow_with_the_draws():
    """Compiled for ten networks and for ten thousand."""
    network = bnn.mlp((3, 400, 1))
    own = bnn.Predictive(posterior_of(network), network, bnn.Gaussian(0.1))
    inputs = jnp.asarray(X, jnp.float32)

    def scratch(n):
        networks = dataclasses.replace(_draws.network_draws(own.members, 10, key=KEY), number=n)
        mixture = _mixture.Mixture(network, own.likelihood, networks)
        arrays, static = eqx.partition(mixture, eqx.is_array)

        def run(arrays, inputs):
            return eqx.combine(arrays, static).predict(inputs).mean

        program = jax.jit(run).lower(arrays, inputs).compile()
        memory = program.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    few, many = scratch(20), scratch(10_000)
    assert many < 1.02 * few
    assert many < 10_000 * network.size * 4 / 50


@pytest.mark.parametrize("kind", some_slow(("gaussian", "categorical"), fast=("categorical",)))
def test_rows_are_taken_some_at_a_time(kind, monkeypatch):
    own, y = predictive_of(kind), np.arange(len(X)) % 3
    y = y if kind == "categorical" else np.stack([y, y], 1)

    def all_of_it():
        moments = own.predict(X, key=KEY, draws=20)
        log_prob = own.log_prob(X, y, key=KEY, draws=20)
        if kind == "categorical":
            return moments, log_prob
        return moments, log_prob, own.quantiles(X, (0.1, 0.9), key=KEY, draws=20)

    whole = all_of_it()
    asked = []
    plain = _mixture.Mixture.predict
    monkeypatch.setattr(_mixture, "OUTPUTS_IN_MEMORY", 2 * 20 * 3)
    counted = lambda mixture, inputs: asked.append(len(inputs)) or plain(mixture, inputs)  # noqa: E731
    monkeypatch.setattr(_mixture.Mixture, "predict", counted)
    parts = all_of_it()
    assert max(asked) < len(X) and len(asked) > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), parts, whole)


def test_several_posteriors_predict_as_their_mixture(monkeypatch):
    """In blocks of 8 networks with idle places; network i is of one member, i + 3 of the same."""
    own, n = [predictive_of("gaussian", seed) for seed in range(3)], 40
    posteriors = [each.posterior for each in own]
    monkeypatch.setattr(_draws, "BLOCK_WEIGHTS", 8 * own[0].posterior.dim)
    mixture = bnn.Predictive(posteriors, own[0].network, own[0].likelihood)
    out = np.asarray(mixture.outputs(X, n, key=KEY))
    found = mixture.predict(X, key=KEY, draws=n)
    assert len(out) == n
    np.testing.assert_allclose(found.mean, out.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.epistemic, out.var(0), rtol=1e-3, atol=1e-5)
    many = np.asarray(mixture.outputs(X, 6_000, key=KEY))
    alone = [np.asarray(each.outputs(X, 2_000, key=KEY)) for each in own]
    means, sd = np.stack([each.mean(0) for each in alone]), np.std(alone)
    for member in range(3):
        gaps = np.abs(many[member::3].mean(0) - means).max((1, 2))
        assert gaps.min() < 0.15 * sd < np.sort(gaps)[1]
    firsts = {mixture.outputs(X, 1, key=jax.random.key(i)).tobytes() for i in range(3)}
    assert len(firsts) == 3


@pytest.mark.parametrize("n", [1, 2, 4, 7, 9])
def test_a_mixture_may_have_fewer_networks_than_members_or_a_block_without_any(n, monkeypatch):
    """Three members in blocks of two: with 1, 2 or 7 networks some blocks hold none."""
    own = [predictive_of("gaussian", seed) for seed in range(3)]
    monkeypatch.setattr(_draws, "BLOCK_WEIGHTS", 2 * own[0].posterior.dim)
    posteriors = [each.posterior for each in own]
    mixture = bnn.Predictive(posteriors, own[0].network, own[0].likelihood)
    out = np.asarray(mixture.outputs(X, n, key=KEY))
    found = mixture.predict(X, key=KEY, draws=n)
    np.testing.assert_allclose(found.mean, out.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.epistemic, out.var(0), rtol=1e-3, atol=1e-5)


def test_posteriors_of_different_forms_do_not_mix():
    first, second = predictive_of("gaussian"), predictive_of("categorical")
    with pytest.raises(InputError, match="2 posteriors are of 2 different forms"):
        bnn.Predictive([first.posterior, second.posterior], first.network, first.likelihood)
    with pytest.raises(InputError, match="one or more"):
        bnn.Predictive([], first.network, first.likelihood)


def test_all_particles_by_default():
    network = bnn.mlp((3, 4, 1), "tanh")
    base = posterior_of(network)
    table = jax.vmap(network.init)(jax.random.split(KEY, 6))
    identity = Affine.identity(network.size, jnp.float32)
    particles = Posterior(
        base.method, Particles(table), Start(identity), base.names, Training(0, 0, 0.0, {})
    )
    own = bnn.Predictive(particles, network, bnn.Gaussian(0.1))
    out = np.stack([network.apply(flat, jnp.asarray(X, jnp.float32)) for flat in table])
    found = own.predict(X, key=KEY)
    np.testing.assert_allclose(found.mean, out.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.epistemic, out.var(0), atol=1e-5)
    fewer = np.asarray(own.outputs(X, 4, key=KEY))
    assert all(np.isclose(row, out, atol=1e-5).all((1, 2)).any() for row in fewer)
    with pytest.raises(NotAvailableError, match="are 6 networks, and 7 are asked for"):
        own.predict(X, key=KEY, draws=7)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: p.predict(X[:, :2], key=KEY), InputError, "fails on inputs"),
        (lambda p: p.predict(X, key=KEY, draws=0), InputError, "0.*≥ 1"),
        (lambda p: p.quantiles(X, 1.0, key=KEY), InputError, "between 0 and 1"),
        (lambda p: p.interval(X, 1.5, key=KEY), InputError, "between 0 and 1"),
        (lambda p: p.log_prob(X, np.zeros((6, 2)), key=KEY), InputError, "7 rows and y 6"),
        (
            lambda p: bnn.Predictive(p.posterior, bnn.mlp((3, 90, 2)), "gaussian"),
            InputError,
            "fewer than",
        ),
        (
            lambda p: bnn.Predictive(p.posterior, p.network, "poisson").predict(X, key=KEY),
            InputError,
            "2 coordinates beside",
        ),
        (
            lambda p: predictive_of("categorical").quantiles(X, 0.5, key=KEY),
            NotAvailableError,
            "no order",
        ),
    ],
)
def test_refusals(call, kind, message):
    with pytest.raises(kind, match=message):
        call(predictive_of("gaussian"))


def scaled(kind, sharpness=2.5):
    own = predictive_of(kind)
    return bnn.Predictive(own.posterior, own.network, own.likelihood, sharpness=sharpness)


@pytest.mark.parametrize("kind", some_slow(("categorical", "bernoulli"), fast=("categorical",)))
def test_temperature_scaled_predictions_agree_with_each_other(kind):
    plain, sharp = predictive_of(kind), scaled(kind)
    before, after = (each.predict(X, key=KEY) for each in (plain, sharp))
    np.testing.assert_allclose(after.mean, bnn.temperature_scaled(before.mean, 2.5), rtol=1e-5)
    np.testing.assert_allclose(after.variance, after.mean * (1 - after.mean), rtol=1e-3)
    np.testing.assert_allclose(
        after.epistemic / after.variance, before.epistemic / before.variance, rtol=1e-3
    )
    assert after.mutual_information is not None and after.entropy is not None
    assert before.entropy is not None and (after.entropy < before.entropy).all()
    assert (after.mutual_information > 0).all() and (after.mutual_information < after.entropy).all()
    logs = sharp.log_probabilities(X, key=KEY)
    np.testing.assert_allclose(jnp.exp(logs).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        jnp.exp(logs)[:, -after.mean.shape[1] :], after.mean, rtol=1e-4, atol=1e-6
    )
    labels = np.arange(len(X)) % logs.shape[1]
    np.testing.assert_allclose(
        sharp.log_prob(X, labels, key=KEY), logs[np.arange(len(X)), labels], rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["categorical", "bernoulli"])
def test_log_probabilities_are_those_of_each_label(kind):
    plain = predictive_of(kind)
    logs = plain.log_probabilities(X, key=KEY)
    for label in range(logs.shape[1]):
        each = plain.log_prob(X, np.full(len(X), label), key=KEY)
        np.testing.assert_allclose(logs[:, label], each, rtol=1e-5)


def test_several_labels_at_once_have_no_classes():
    network = bnn.mlp((3, 4, 2), "tanh")
    own = bnn.Predictive(posterior_of(network), network, "bernoulli")
    with pytest.raises(NotAvailableError, match="2 outputs is no distribution over classes"):
        own.log_probabilities(X, key=KEY)


def test_token_ids_stay_integers_and_counts_do_not():
    class Tokens(eqx.Module):
        embedding: eqx.nn.Embedding

        def __init__(self, key):
            self.embedding = eqx.nn.Embedding(20, 2, key=key)

        def __call__(self, x):
            return jax.vmap(self.embedding)(x).mean(0)

    network, ids = bnn.Network.from_equinox(Tokens), np.arange(30).reshape(10, 3) % 20
    target = bnn.target(network, "gaussian", "fan-in", ids, np.ones((10, 2)))
    assert target.data[0].dtype == np.int32
    assert jnp.isfinite(target.log_density(target.initial))
    own = bnn.Predictive(posterior_of(network, 2), network, "gaussian")
    assert jnp.isfinite(own.predict(ids.tolist(), key=KEY, draws=3).mean).all()
    with pytest.raises(InputError, match=r"takes whole numbers.*X.astype\(int\)"):
        network.outputs(ids / 2)
    counts = bnn.target(bnn.mlp((3, 1)), "gaussian", "fan-in", ids, np.ones(10))
    assert counts.data[0].dtype == np.float32
