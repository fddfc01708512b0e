"""Networks of one's own, trained as the estimators train theirs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.bnn import training
from gpvi.bnn.generators import default_gpvi
from gpvi.errors import InputError, NotAvailableError, TrainingWarning, UnknownOptionError

KEY = jax.random.key(0)


class Curve(eqx.Module):
    """1-8-1, tanh."""

    inner: eqx.nn.Linear
    outer: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.inner, self.outer = eqx.nn.Linear(1, 8, key=a), eqx.nn.Linear(8, 1, key=b)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))


NETWORK = bnn.Network.from_equinox(Curve)


def sine(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.7, 1.7, (n, 1))
    return x, np.sqrt(2) * np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(n)


@pytest.mark.slow
def test_a_curve_is_not_taken_for_noise():
    """From a random network it was: RMSE 0.7."""
    X, y = sine(80)
    new_X, new_y = sine(500, seed=1)
    found = bnn.fit(NETWORK, "gaussian", X, y, key=KEY, steps=1_500, progress=False)
    assert len(found.members) == training.MEMBERS
    mean = found.predict(new_X, key=KEY).mean[:, 0]
    assert float(gpvi.metrics.rmse(mean, new_y)) < 0.25
    low, high = found.interval(new_X, 0.9, key=KEY)
    assert gpvi.metrics.interval_coverage(low[:, 0], high[:, 0], new_y) > 0.8


@pytest.mark.slow
def test_it_trains_what_the_estimators_train():
    """The same parts, key and standardised data: the same posteriors."""
    X, y = sine(40)
    model = bnn.BayesianMLPRegressor(4, steps=20, members=2, random_state=0).fit(X, y)
    found = bnn.fit(
        model.network_,
        model.likelihood_,
        model.x_scaler_.transform(X),
        model.y_scaler_.transform(y[:, None]),
        key=jax.random.fold_in(jax.random.key(model._seed), 0),
        members=2,
        steps=20,
        progress=False,
    )
    for ours, theirs in zip(found.members, model.posteriors_, strict=True):
        np.testing.assert_array_equal(ours.sample(5, key=KEY), theirs.sample(5, key=KEY))


@pytest.mark.slow
def test_a_likelihood_of_ones_own_keeps_its_coordinates():
    class Twice(bnn.Gaussian):
        def log_prob(self, outputs, extra, y):
            return 2 * super().log_prob(outputs, extra, y)

    X, y = sine(30)
    found = bnn.fit(NETWORK, Twice(), X, y, key=KEY, steps=10, members=1, progress=False)
    assert found.posterior.dim == NETWORK.size + 1
    assert isinstance(found.likelihood, Twice)


@pytest.mark.slow
def test_data_of_other_units_are_told():
    X, y = sine(30)
    options = {"key": KEY, "steps": 2, "members": 1, "method": "mfvi", "progress": False}
    with pytest.warns(TrainingWarning, match=r"^y is not standardised: column 0 has mean"):
        bnn.fit(NETWORK, "gaussian", X, 1e4 * y, **options)
    with pytest.warns(TrainingWarning, match=r"^X is not standardised: column 0 has mean 500"):
        bnn.fit(NETWORK, "gaussian", X + 500, y, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"network": Curve}, InputError, "network is .*from_equinox"),
        ({"key": -1}, InputError, "key is -1"),
        ({"members": 0}, InputError, "members is 0"),
        ({"members": "many"}, UnknownOptionError, "members"),
        ({"steps": 0}, InputError, "steps is 0"),
        ({"batch_size": 0}, InputError, "batch_size is 0"),
        ({"method": "gpiv"}, UnknownOptionError, "Did you mean 'gpvi'"),
        ({"y": np.full(30, np.nan)}, InputError, "nan"),
        ({"X": gpvi.Stream((sine(30)[0],))}, NotAvailableError, "streamed.*gpvi.bnn.method"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_compiled(
    options, error, words, monkeypatch
):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    X, y = sine(30)
    asked = {"network": NETWORK, "likelihood": "gaussian", "X": X, "y": y, "key": KEY} | options
    with pytest.raises(error, match=words):
        bnn.fit(**asked)


class TestDefaultsOfFit:
    @pytest.mark.slow
    def test_a_network_has_a_method_of_its_own(self):
        target = bnn.target(NETWORK, "gaussian", "sparse", *sine(30))
        with pytest.warns(TrainingWarning, match=r"gpvi.bnn.fit\s+starts several"):
            posterior = gpvi.fit(target, key=KEY, steps=2, progress=False)
        assert posterior.method == default_gpvi(target.dim)

    def test_what_is_asked_for_is_trained_without_a_word(self, recwarn):
        target = bnn.target(NETWORK, "gaussian", "sparse", *sine(30))
        posterior = gpvi.fit(target, bnn.method(target.dim), key=KEY, steps=2, progress=False)
        gpvi.fit(target, key=KEY, init=posterior, steps=2, progress=False)
        assert not [w for w in recwarn if issubclass(w.category, TrainingWarning)]

    def test_one_layer_has_one_mode(self):
        target = bnn.target(bnn.mlp((1, 1)), "gaussian", "normal", *sine(30))
        suggested = target.suggestion()
        assert suggested is not None and suggested.note == ""
        assert gpvi.Target(lambda x: -x @ x, dim=2).suggestion() is None
