"""Likelihoods and priors that a user wrote: trained, predicted with, saved and loaded."""

import importlib.util
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gpvi
from gpvi import bnn, specs
from gpvi.bnn.likelihoods import as_likelihood
from gpvi.bnn.priors import as_prior
from gpvi.errors import InputError, NotAvailableError, StorageError
from gpvi.specs import spec

KEY = jax.random.key(0)
NETWORK = bnn.mlp((2, 3, 1), "tanh")
X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.exp(X[:, 0])


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A module of the user's, in a file of its own."""
    path = tmp_path_factory.mktemp("user") / "user_models.py"
    path.write_text(
        textwrap.dedent(
            '''
            import jax.numpy as jnp
            from jax.scipy import stats
            from gpvi import bnn
            from gpvi.specs import spec


            @spec
            class OwnExponential(bnn.Likelihood):
                """y > 0 with mean scale · exp(output); the least that a likelihood must define."""

                scale: float = 1.0

                def log_prob(self, outputs, extra, y):
                    log_mean = jnp.log(self.scale) + outputs
                    return (-log_mean - y * jnp.exp(-log_mean)).sum(1)

                def moments(self, outputs, extra):
                    mean = self.scale * jnp.exp(outputs)
                    return mean, mean**2


            @spec
            class OwnLaplace(bnn.Prior):
                scale: float = 0.5

                def log_prob(self, flat, network):
                    return stats.laplace.logpdf(flat, scale=self.scale).sum()
            '''
        )
    )
    found = importlib.util.spec_from_file_location("user_models", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def predictive(own):
    return bnn.fit(
        NETWORK,
        own.OwnExponential(2.0),
        X,
        Y,
        key=KEY,
        prior=own.OwnLaplace(),
        method=gpvi.SVGD(particles=4),
        steps=20,
        progress=False,
    )


def test_the_target_is_likelihood_plus_prior(own):
    target = bnn.target(NETWORK, own.OwnExponential(2.0), own.OwnLaplace(0.7), X, Y)
    assert target.dim == NETWORK.size
    w = 0.3 * jax.random.normal(KEY, (NETWORK.size,))
    mean = 2.0 * np.exp(NETWORK.apply(w, jnp.asarray(X, jnp.float32)))
    expected = (
        stats.expon.logpdf(Y[:, None], scale=mean).sum() + stats.laplace.logpdf(w, scale=0.7).sum()
    )
    assert target.log_density(w) == pytest.approx(expected, rel=1e-4)


def test_it_is_trained_and_predicts(own, predictive):
    assert predictive.likelihood == own.OwnExponential(2.0)
    found = predictive.predict(X, key=KEY)
    means = 2.0 * np.exp(predictive.outputs(X, key=KEY))
    np.testing.assert_allclose(found.mean, means.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.variance, (2 * means**2).mean(0) - found.mean**2, rtol=1e-3)
    densities = stats.expon.pdf(Y[:, None], scale=means).mean(0)[:, 0]
    np.testing.assert_allclose(
        predictive.log_prob(X, Y, key=KEY), np.log(densities), rtol=1e-3, atol=1e-4
    )


def test_it_is_saved_and_loaded(own, predictive, tmp_path, monkeypatch):
    predictive.save(tmp_path / "saved")
    again = bnn.load(tmp_path / "saved", NETWORK)
    assert again.likelihood == own.OwnExponential(2.0)
    np.testing.assert_array_equal(
        again.predict(X, key=KEY).mean, predictive.predict(X, key=KEY).mean
    )
    with monkeypatch.context() as patch:
        patch.delitem(specs._registry, "OwnExponential")
        with pytest.raises(StorageError, match=r"class 'OwnExponential'.*import the module"):
            bnn.load(tmp_path / "saved", NETWORK)
        passed = bnn.load(tmp_path / "saved", NETWORK, classes=[own.OwnExponential])
        assert passed.likelihood == again.likelihood
    with pytest.raises(InputError, match="was saved: leave it out"):
        bnn.load(tmp_path / "saved", NETWORK, likelihood=own.OwnExponential(3.0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.sample(X, 2, key=KEY), r"OwnExponential has no sample.*Define sample"),
        (lambda p: p.interval(X, key=KEY), r"OwnExponential has no cdf.*Predictive\.sample"),
        (lambda p: p.log_probabilities(X, key=KEY), "no distribution over classes"),
        (lambda p: p.likelihood.entropy(jnp.ones((1, 1))), "no closed form"),
    ],
)
def test_what_it_does_not_define_is_named(call, words, predictive):
    with pytest.raises(NotAvailableError, match=words):
        call(predictive)


def test_a_class_must_inherit_and_define_what_is_required():
    class Incomplete(bnn.Likelihood):
        def log_prob(self, outputs, extra, y):
            return outputs.sum(1)

    class Alike:
        def log_prob(self, flat, network):
            return 0.0

    with pytest.raises(TypeError, match=r"abstract.*moments"):
        Incomplete()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match=r"abstract.*log_prob"):
        bnn.Prior()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(
        InputError, match=r"likelihood is .*Alike.*subclass of gpvi\.bnn\.Likelihood"
    ):
        as_likelihood(Alike())
    with pytest.raises(InputError, match=r"prior is .*Alike.*subclass of gpvi\.bnn\.Prior"):
        as_prior(Alike())
    for kind in (bnn.Gaussian, bnn.Heteroscedastic, bnn.Categorical, bnn.Bernoulli, bnn.Poisson):
        assert issubclass(kind, bnn.Likelihood)


def test_a_prior_of_the_noise():
    @spec
    class OwnNoise(bnn.NoisePrior):
        def log_prob(self, log_noise):
            return (log_noise - jnp.exp(log_noise)).sum()

    likelihood = bnn.Gaussian(noise=OwnNoise())
    assert likelihood.extra(1) == ("log_noise[0]",)
    expected = stats.expon.logpdf(np.exp(-0.3)) - 0.3
    assert likelihood.log_prior(jnp.array([-0.3])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_classes_of_ones_own_are_temperature_scaled_like_the_built_in():
    """A classifier whose logits are scaled; at scale 1 it is `Categorical`, which it does not inherit from."""

    @spec
    class OwnClasses(bnn.Likelihood):
        scale: float = 1.0
        discrete = classifies = True

        def columns(self, outputs):
            return 1

        def classes(self, outputs):
            return outputs

        def prepare(self, y, outputs):
            return np.asarray(y).astype(np.int32)

        def log_prob(self, outputs, extra, y):
            logs = jax.nn.log_softmax(self.scale * outputs)
            return jnp.take_along_axis(logs, y[:, None], 1)[:, 0]

        def moments(self, outputs, extra):
            p = jax.nn.softmax(self.scale * outputs)
            return p, p * (1 - p)

    network, labels = bnn.mlp((2, 3, 3)), np.arange(12) % 3
    target = bnn.target(network, OwnClasses(), "fan-in", X, labels)
    posterior = gpvi.fit(target, gpvi.SVGD(particles=4), key=KEY, steps=2, progress=False)
    mine, built_in = (
        bnn.Predictive(posterior, network, likelihood, sharpness=2.0)
        for likelihood in (OwnClasses(), bnn.Categorical())
    )
    found, expected = (each.predict(X, key=KEY) for each in (mine, built_in))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
    )
    np.testing.assert_allclose(
        mine.log_probabilities(X, key=KEY), built_in.log_probabilities(X, key=KEY), rtol=1e-4
    )
