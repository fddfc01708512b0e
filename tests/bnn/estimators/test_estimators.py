"""The scikit-learn estimators: what they predict, what they refuse, and scikit-learn's own checks."""

import inspect
import logging
import pickle
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter

import gpvi
from gpvi import bnn
from gpvi.bnn import generators, training
from gpvi.bnn.estimators import _base
from gpvi.errors import InputError, UnknownOptionError
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine

KEY = jax.random.key(0)
FEW = gpvi.SVGD(particles=8)
"""A method that compiles quickly, for what does not depend on the method."""


def line(n=40, seed=0):
    """y = 30 + 20 x₀ + noise of sd 4, far from standardised."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * (1.0, 50.0) + (0.0, 1_000.0)
    return X, 30 + 20 * X[:, 0] + 4 * rng.normal(size=n)


def blobs(n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    return centres[labels] + rng.normal(size=(n, 2)), np.array(["ash", "elm", "fir"])[labels]


def pickled(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - of our own making


def quick(kind, **options):
    quickly = kind(hidden_layer_sizes=4, method=FEW, steps=100, random_state=0)
    return quickly.set_params(**options)


@pytest.fixture(scope="module")
def regressor():
    """Bayesian linear regression by GPVI."""
    return bnn.BayesianMLPRegressor((), prior="normal", steps=2_000, random_state=0).fit(*line())


@pytest.fixture(scope="module")
def classifier():
    return quick(bnn.BayesianMLPClassifier).fit(*blobs())


@pytest.fixture
def untrained(monkeypatch):
    """Put networks as they are initialised in place of training; gives the list of what was to be trained.

    Networks to start from are put at 1, 2, …
    """
    asked = []

    def begin(target, method, **options):
        asked.append({"target": target, "method": method, **options})
        points = target.starting_points(3, key=options["key"])
        affine = Affine.identity(target.dim, target.dtype)
        return Posterior(
            method, Particles(points), Start(affine), target.names, Training(0, 0, 0.0, {}), target
        )

    def begin_all(targets, method, *, key, init="auto", **options):
        keys = jax.random.split(key, len(targets))
        inits = [init] * len(targets) if isinstance(init, str) else init
        begun = zip(targets, keys, inits, strict=True)
        return [begin(t, method, key=k, init=i, **options) for t, k, i in begun]

    def map_networks(network, likelihood, prior, X, y, *, number, **options):
        size = network.size + len(likelihood.extra(network.outputs(X)))
        return jnp.ones(size, np.float32) * np.arange(1, number + 1, dtype=np.float32)[:, None]

    monkeypatch.setattr(training, "fit_one", begin)
    monkeypatch.setattr(training, "fit_seeds", begin_all)
    monkeypatch.setattr(training, "map_networks", map_networks)
    monkeypatch.setattr(training.CrossFitting, "sharpness", lambda *_, **options: 1.5)
    return asked


# Regression


def test_the_posterior_of_a_line_is_the_known_one(regressor):
    """Without hidden layers the model is conjugate given the noise: predictions in closed form, in the units of y."""
    X, y = line()
    Z = (X - X.mean(0)) / X.std(0)
    v = (y - y.mean()) / y.std()
    noise = float(np.exp(np.median(regressor.posterior_.sample(2_000, key=KEY)[:, -1])))
    A = np.c_[Z, np.ones(len(Z))]
    covariance = np.linalg.inv(A.T @ A / noise**2 + np.eye(3))
    mean = covariance @ A.T @ v / noise**2
    new = np.array([[0.5, 1_020.0], [3.0, 900.0]])
    a = np.c_[(new - X.mean(0)) / X.std(0), np.ones(2)]
    sd = np.sqrt(np.einsum("ij,jk,ik->i", a, covariance, a) + noise**2) * y.std()
    found, found_sd = regressor.predict(new, return_std=True)
    np.testing.assert_allclose(found, a @ mean * y.std() + y.mean(), atol=0.5)
    np.testing.assert_allclose(found_sd, sd, rtol=0.1)
    assert found_sd.min() > 3.0, "the noise of y, 4, belongs to the standard deviation"


def test_quantiles_samples_and_densities_are_of_one_distribution(regressor):
    X, y = line()
    mean, sd = regressor.predict(X[:3], return_std=True)
    quantiles = regressor.predict_quantiles(X[:3], (0.1, 0.5, 0.9))
    assert quantiles.shape == (3, 3) and (np.diff(quantiles) > 0).all()
    np.testing.assert_allclose(quantiles[:, 1], mean, atol=0.1 * sd.max())
    draws = regressor.sample_y(X[:3], 4_000, random_state=1)
    assert draws.shape == (3, 4_000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * sd.max() / 4_000**0.5)
    np.testing.assert_allclose((draws < quantiles[:, :1]).mean(1), 0.1, atol=0.03)
    near_normal = stats.norm.logpdf(y[:3], mean, sd)
    np.testing.assert_allclose(regressor.log_prob(X[:3], y[:3]), near_normal, atol=0.1)


def test_a_sample_is_one_network(regressor):
    """Noise aside, the values of one sample lie on one line; sampled row by row they would not."""
    X = np.c_[np.linspace(-3, 3, 300), np.full(300, 1_000.0)]
    residual = regressor.sample_y(X, 200, random_state=0) - regressor.predict(X)[:, None]
    ends = residual[:100].mean(0), residual[-100:].mean(0)
    assert np.corrcoef(ends)[0, 1] < -0.3, "a line that is low on the left is high on the right"
    adjacent = np.corrcoef(residual[0], residual[256])[0, 1]
    assert adjacent < 0.5, "noise is drawn anew in each block of rows"


@pytest.mark.slow
def test_several_outputs_keep_their_axis(untrained):
    X, y = line()
    both = quick(bnn.BayesianMLPRegressor).fit(X, np.c_[y, -0.01 * y])
    mean, sd = both.predict(X, return_std=True)
    assert mean.shape == sd.shape == (40, 2)
    assert both.predict_quantiles(X, (0.5,)).shape == (40, 2, 1)
    draws = both.sample_y(X, 30)
    assert draws.shape == (40, 2, 30), "more samples than the three particles"
    np.testing.assert_allclose(draws.std(2).mean(0), sd.mean(0), rtol=0.15)
    np.testing.assert_allclose(untrained[0]["target"].data[1].std(0), 1, rtol=1e-5)


def test_a_fixed_noise_is_in_the_units_of_y(untrained):
    X, y = line()
    found = quick(bnn.BayesianMLPRegressor, noise=7.0).fit(X, y)
    aleatoric = found.predictive_.predict(found.x_scaler_.transform(X), key=KEY).aleatoric
    np.testing.assert_allclose(np.sqrt(aleatoric) * y.std(), 7.0, rtol=1e-5)
    with pytest.raises(InputError, match="2 outputs"):
        quick(bnn.BayesianMLPRegressor, noise=7.0).fit(X, np.c_[y, y])


def test_heteroscedastic_networks_have_two_outputs_for_each_column(untrained):
    X, y = line()
    found = quick(bnn.BayesianMLPRegressor, noise="heteroscedastic").fit(X, y)
    _, sd = found.predict(X, return_std=True)
    assert sd.shape == (40,) and sd.std() > 0


def test_a_column_stays_a_column(regressor):
    X, y = line()
    regressor = pickled(regressor)
    regressor.fit(X, y[:, None])
    assert regressor.predict(X).shape == (40, 1)


# Classification


def test_probabilities_are_those_of_the_labels(classifier):
    X, y = blobs()
    assert list(classifier.classes_) == ["ash", "elm", "fir"]
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert classifier.score(X, y) > 0.9
    chosen = probabilities[np.arange(len(y)), np.searchsorted(classifier.classes_, y)]
    np.testing.assert_allclose(classifier.log_prob(X, y), np.log(chosen), rtol=1e-4, atol=1e-6)
    logs = classifier.predict_log_proba(X)
    np.testing.assert_allclose(logs, np.log(probabilities), rtol=1e-5, atol=1e-5)


def test_a_label_that_no_network_expects_has_a_finite_log_prob(classifier):
    far = np.repeat([[1e4, -1e4]], 3, axis=0)
    found = classifier.log_prob(far, classifier.classes_)
    assert np.isfinite(found).all()
    assert found.min() < -200
    np.testing.assert_allclose(classifier.predict_log_proba(far[:1])[0], found, rtol=1e-5)


def test_sampled_labels_follow_the_probabilities(classifier):
    between = np.array([[2.0, 0.3]])
    labels = classifier.sample_y(between, 398)
    assert labels.shape == (1, 398)
    share = (labels[0][:, None] == classifier.classes_).mean(0)
    np.testing.assert_allclose(share, classifier.predict_proba(between)[0], atol=0.1)


# Several members


@pytest.mark.slow
def test_members_predict_as_their_mixture():
    X, y = blobs()
    model = quick(bnn.BayesianMLPClassifier, members=3).fit(X, y)
    assert len(model.posteriors_) == 3 and model.posterior_ is model.posteriors_[0]
    scaled = model.x_scaler_.transform(X)
    alone = [
        bnn.Predictive(each, model.network_, model.likelihood_).predict(scaled, key=KEY).mean
        for each in model.posteriors_
    ]
    assert np.abs(alone[0] - alone[1]).max() > 1e-3, "each started elsewhere"
    np.testing.assert_allclose(model.predict_proba(X), np.mean(alone, 0), atol=1e-5)
    assert model.sample_y(X[:2], 30).shape == (2, 30), "more than the 24 particles"
    copy = pickled(model)
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert all(each.target is None for each in copy.posteriors_)


def test_every_member_goes_on_from_where_it_was(untrained):
    X, y = line()
    model = quick(bnn.BayesianMLPRegressor, members=2).partial_fit(X[:25], y[:25])
    before = model.posteriors_
    mean, sd = model.partial_fit(X[25:], y[25:]).predict(X, return_std=True)
    assert [asked["init"] for asked in untrained] == ["auto", "auto", *before]
    assert untrained[-1]["target"].size == 40
    outputs = np.concatenate(
        [
            bnn.Predictive(each, model.network_, model.likelihood_).outputs(
                model.x_scaler_.transform(X), key=KEY
            )
            for each in model.posteriors_
        ]
    )
    spread = outputs[..., 0].std(0) * model.y_scaler_.scale
    assert (sd > spread).all(), "the noise belongs to it, and what the members disagree about"
    np.testing.assert_allclose(
        mean, model.y_scaler_.inverse(outputs.mean(0))[:, 0], rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("kind", [bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier])
def test_by_default_five_generators_start_at_networks_of_their_own(kind, untrained):
    X, _ = line()
    y = np.arange(len(X)) % 2
    assert kind().members == "auto"
    fitted = kind(4).fit(X, y)
    held_out = kind is bnn.BayesianMLPClassifier
    assert len(fitted.posteriors_) == 5 and len(untrained) == 10
    for number, asked in enumerate(untrained[:5], start=1):
        at = 1 if held_out else number
        np.testing.assert_array_equal(asked["target"].starting_points(2, key=KEY), at)
        assert asked["method"].particles == 24
        shared = asked["target"].data[0] is untrained[0]["target"].data[0]
        assert shared != held_out or number == 1, (
            "each member of a classifier has its own held-out fold"
        )
    for asked in untrained[5:]:
        assert asked["target"].data[0] is untrained[5]["target"].data[0], "shared"
        np.testing.assert_allclose(asked["target"].data[0], fitted._data[0], rtol=1e-5)
    assert fitted.sharpness_ == (1.5 if held_out else 1)
    again = len(fitted.partial_fit(np.tile(X, (9, 1)), np.tile(y, 9)).posteriors_)
    assert again == 5 and len(untrained) == 15
    assert untrained[-1]["method"].particles == 24, "what goes on keeps its number"
    assert kind(4).fit(np.tile(X, (9, 1)), np.tile(y, 9)) is not None
    assert untrained[-1]["method"].particles == 8


@pytest.mark.slow
def test_the_noise_is_held_low_while_the_weights_learn_to_spread(untrained):
    bnn.BayesianMLPRegressor(4, steps=101).fit(*line())
    first, then = untrained[0], untrained[-1]
    assert (first["steps"], then["steps"]) == (50, 51)
    slopes = []
    for asked in (first, then):
        at = jnp.zeros(asked["target"].dim).at[-1].set(jnp.log(0.3))
        slopes.append(float(jax.grad(asked["target"].log_density)(at)[-1]))
    assert slopes[1] - slopes[0] > np.log(2) / 0.05**2 - 1, "pulled back to 0.15"
    untrained.clear()
    bnn.BayesianMLPRegressor(4, noise=0.5).fit(*line())
    bnn.BayesianMLPRegressor(4, noise="heteroscedastic").fit(*line())
    assert len(untrained) == 10, "where there is none to hold, no time is spent on it"


@pytest.mark.parametrize(
    ("options", "draws", "fitted"),
    [
        ({"members": 1}, 32, True),
        ({"hidden_layer_sizes": ()}, 32, False),
        ({"method": "mfvi"}, None, False),
        ({"method": FEW}, 8, False),
        ({"method": gpvi.GPVI(particles=7)}, 7, True),
    ],
)
def test_one_posterior_where_one_is_enough_or_asked_for(options, draws, fitted, untrained):
    """Without hidden layers there is one mode."""
    model = bnn.BayesianMLPRegressor(4).set_params(**options).fit(*line())
    assert len(model.posteriors_) == 1 and len(untrained) == (2 if fitted else 1)
    assert draws in (None, untrained[0]["method"].particles)
    starts = untrained[0]["target"].starting_points(2, key=KEY)
    assert bool((starts == 1).all()) == fitted


def test_large_networks_have_one_generator(untrained, monkeypatch):
    """Five would not be cheap."""
    monkeypatch.setattr(training, "LARGE", 18)
    monkeypatch.setattr(generators, "LARGE", 18)
    assert len(bnn.BayesianMLPRegressor(4).fit(*line()).posteriors_) == 1
    assert untrained[0]["method"] == bnn.method(18)


@pytest.mark.slow
def test_a_start_does_not_interpolate_few_data():
    """Networks free to choose σ would: the share in the 90 % interval was 0.54."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((330, 4))
    y = X @ rng.standard_normal(4) + np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(330)
    model = bnn.BayesianMLPRegressor(random_state=0).fit(X[:30], y[:30])
    low, high = model.predict_quantiles(X[30:], (0.05, 0.95)).T
    assert ((low < y[30:]) & (y[30:] < high)).mean() > 0.75


# Training in parts


def test_partial_fit_goes_on_with_all_data_in_the_first_units(untrained):
    X, y = line()
    parts = quick(bnn.BayesianMLPRegressor).partial_fit(X[:25], y[:25])
    first = parts.posterior_
    parts.partial_fit(X[25:], y[25:])
    assert untrained[1]["init"] is first
    inputs, outputs = untrained[1]["target"].data
    np.testing.assert_allclose(inputs, (X - X[:25].mean(0)) / X[:25].std(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs[:, 0], (y - y[:25].mean()) / y[:25].std(), rtol=1e-4)
    assert (untrained[0]["key"] != untrained[1]["key"]).all()
    quick(bnn.BayesianMLPRegressor).fit(X, y).partial_fit(X, y)
    assert untrained[-1]["target"].size == 80, "data of `fit` count, too"


def test_partial_fit_of_a_classifier_knows_all_classes_beforehand(untrained):
    X, y = blobs()
    first = y == "ash"
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        quick(bnn.BayesianMLPClassifier).partial_fit(X, y)
    parts = quick(bnn.BayesianMLPClassifier)
    parts.partial_fit(X[first], y[first], classes=["fir", "elm", "ash"])
    with pytest.raises(ValueError, match="not the same as on last call"):
        parts.partial_fit(X, y, classes=["ash", "elm"])
    with pytest.raises(ValueError, match="labels"):
        parts.partial_fit(X, np.where(first, "oak", y))
    parts.partial_fit(X[~first], y[~first])
    labels = parts.classes_[np.asarray(untrained[-1]["target"].data[1])]
    assert list(labels) == [*y[first], *y[~first]]


# With scikit-learn


def test_the_same_random_state_gives_the_same_model_and_another_one_does_not(classifier):
    X, y = blobs()
    again = quick(bnn.BayesianMLPClassifier).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    other = quick(bnn.BayesianMLPClassifier, random_state=1).fit(X, y)
    assert np.abs(other.predict_proba(X) - classifier.predict_proba(X)).max() > 1e-4


def test_a_prediction_does_not_depend_on_its_neighbours(regressor, classifier):
    X = np.repeat(line()[0], 8, axis=0)
    assert len(X) > _base.ROWS
    np.testing.assert_array_equal(regressor.predict(X)[::8], regressor.predict(line()[0]))
    (one,) = regressor.predict(X[:1])
    np.testing.assert_array_equal(one, regressor.predict(X)[0])


def test_many_rows_are_predicted_as_few(regressor):
    X = np.resize(line()[0], (_base.MANY_ROWS + 5, 2))
    few = regressor.predict(X[-7:], return_std=True)
    many = regressor.predict(X, return_std=True)
    np.testing.assert_allclose([part[-7:] for part in many], few, rtol=1e-5)


def test_far_from_the_data_nothing_is_nan(regressor):
    mean, sd = regressor.predict([[1e20, 0.0]], return_std=True)
    assert np.isfinite(mean).all() and not np.isnan(sd).any()


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError])
def test_what_cannot_be_learned_again_leaves_the_model_as_it_was(error, monkeypatch, untrained):
    X, y = line()
    regressor = bnn.BayesianMLPRegressor(8, random_state=0).fit(X, y)
    classifier = bnn.BayesianMLPClassifier(8, random_state=0).fit(*blobs())
    before = regressor.predict(X), classifier.predict(blobs()[0])

    def fails(*args, **options):
        raise error

    monkeypatch.setattr(training, "fit_seeds", fails)
    with pytest.raises(error):
        regressor.fit(X * 100 + 500, y * 7)
    with pytest.raises(error):
        classifier.fit(blobs()[0], np.where(blobs()[1] == blobs()[1][0], "cat", "dog"))
    np.testing.assert_array_equal(regressor.predict(X), before[0])
    np.testing.assert_array_equal(classifier.predict(blobs()[0]), before[1])


def test_a_pickled_model_predicts(classifier, regressor):
    for model, rows in ((classifier, blobs()[0]), (regressor, line()[0])):
        copy = pickled(model)
        np.testing.assert_array_equal(copy.predict(rows), model.predict(rows))
        assert copy.posterior_.target is None
        assert model.posterior_.target is not None


def test_a_pickled_model_goes_on(untrained):
    X, y = line()
    copy = pickled(quick(bnn.BayesianMLPRegressor).fit(X, y))
    copy.partial_fit(X, y)
    assert untrained[-1]["init"].method == FEW
    assert untrained[-1]["target"].size == 80


def test_a_second_fit_of_the_same_shapes_compiles_nothing(classifier, caplog):
    """Grid search and cross-validation fit the same shapes again and again."""
    X, y = blobs()
    classifier.predict(X)
    other = quick(bnn.BayesianMLPClassifier, random_state=5)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        other.fit(3 * X + 1, y[::-1]).predict(X)
        assert "ompil" not in caplog.text
        jax.jit(lambda x: x + 1)(1.0)
        assert "ompil" in caplog.text, "what is looked for is what JAX says"


def test_what_is_trained_follows_the_options(untrained):
    X, y = line(300)
    prior_of = lambda asked: asked["target"]._log_prior.prior  # noqa: E731
    asked = quick(bnn.BayesianMLPRegressor, verbose=1).fit(X, y) and untrained[-1]
    assert prior_of(asked) == bnn.FanIn(), "particles near a mode need a narrower one"
    assert asked["steps"] == 100 and asked["batch_size"] == 128 and asked["progress"] is True
    quick(bnn.BayesianMLPRegressor, batch_size=None).fit(X, y)
    assert untrained[-1]["batch_size"] is None and untrained[-1]["progress"] is False
    quick(bnn.BayesianMLPRegressor, batch_size=1_000).fit(X, y)
    assert untrained[-1]["batch_size"] == 300
    quick(bnn.BayesianMLPRegressor, hidden_layer_sizes=np.array([4, 2])).fit(X[:100], y[:100])
    assert untrained[-1]["batch_size"] is None, "no batches of few data"
    quick(bnn.BayesianMLPRegressor, method="nuts", steps=None, temperature=0.5).fit(X, y)
    assert untrained[-1]["batch_size"] is None, "transitions need all the data"
    assert untrained[-1]["steps"] == gpvi.NUTS().default_steps()
    assert untrained[-1]["target"].temperature == 0.5
    assert prior_of(untrained[-1]) == bnn.FanIn(2.0, 2.0)
    quick(bnn.BayesianMLPRegressor, method="gpvi").fit(X, y)
    assert isinstance(untrained[-1]["method"], gpvi.GPVI)
    assert untrained[-1]["batch_size"] == 128
    assert prior_of(untrained[-1]) == bnn.Sparse(), (
        "a family of densities must be able to drop units"
    )
    quick(bnn.BayesianMLPRegressor, method="amortized-svgd").fit(X, y)
    assert untrained[-1]["method"].generator.scale < 0.1, "networks start narrow"
    assert {"svgd", "mfvi", "ensemble", "nuts", "hmc"} <= training.named_methods().keys()


def test_sample_weights_are_refused_as_scikit_learn_does():
    for kind in (bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier):
        assert not has_fit_parameter(kind(), "sample_weight")
        with pytest.raises(TypeError, match="sample_weight"):
            kind().fit([[0.0], [1.0]], [0, 1], sample_weight=[1, 2])  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("X", "y", "told"),
    [
        ([[np.inf], [1.0]], [0, 1], "contains infinity"),
        ([[0.0], [1.0]], [0, np.nan], "contains NaN"),
        ([[0.0], [1.0]], [0, 1, 1], "inconsistent numbers of samples"),
        (np.empty((0, 2)), np.empty(0), r"0 sample\(s\)"),
        ([0.0, 1.0], [0, 1], "Expected 2D array"),
    ],
)
@pytest.mark.parametrize("name", ["BayesianMLPRegressor", "BayesianMLPClassifier"])
def test_bad_data_get_the_usual_errors(name, X, y, told):
    with pytest.raises(ValueError, match=told):
        getattr(bnn, name)().fit(X, y)


def test_what_was_not_learned_is_refused(regressor):
    with pytest.raises(ValueError, match="only one class"):
        bnn.BayesianMLPClassifier().fit([[0.0], [1.0]], [1, 1])
    with pytest.raises(ValueError, match="Unknown label type"):
        bnn.BayesianMLPClassifier().fit([[0.0], [1.0]], [0.3, 1.7])
    for kind in (bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier):
        for method in ("predict", "sample_y"):
            with pytest.raises(NotFittedError):
                getattr(kind(), method)([[0.0]])
    with pytest.raises(
        ValueError, match="X has 1 features, but BayesianMLPRegressor is expecting 2"
    ):
        regressor.predict([[0.0]])
    with pytest.raises(ValueError, match="y has 2 outputs"):
        regressor.partial_fit([[0.0, 1.0]], [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "svdg"}, "Did you mean 'svgd'"),
        ({"method": gpvi.SVGD}, "pass a name such as 'nuts', or a method"),
        ({"prior": "gaussian"}, "unknown prior"),
        ({"activation": "rulu"}, "Did you mean 'relu'"),
        ({"hidden_layer_sizes": (0,)}, "hidden layer size is 0"),
        ({"hidden_layer_sizes": 2.5}, "hidden layer size is 2.5"),
        ({"hidden_layer_sizes": None}, "hidden layer size is None"),
        ({"hidden_layer_sizes": "wide"}, "hidden layer size is 'wide'"),
        ({"draws": 0}, "draws is 0"),
        ({"members": 0}, "members is 0"),
        ({"members": "many"}, "unknown members"),
        ({"batch_size": "small"}, "unknown batch_size"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"noise": "loud"}, "unknown noise"),
        ({"noise": -1.5}, "noise is -1.5"),
        ({"noise": True}, "noise"),
        ({"steps": 0}, "steps is 0"),
        ({"method": gpvi.NUTS(), "batch_size": 10}, "batch_size is 10"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(options, told, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((InputError, UnknownOptionError, gpvi.errors.NotAvailableError), match=told):
        bnn.BayesianMLPRegressor().set_params(**options).fit(*line())


@pytest.mark.parametrize("kind", [bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier])
def test_every_option_is_documented(kind):
    parameters = (
        (inspect.getdoc(kind) or "").partition("Parameters\n")[2].partition("Attributes\n")[0]
    )
    named = re.findall(r"^[a-z][\w, ]*$", parameters, re.M)
    assert set(inspect.signature(kind).parameters) == {
        n for line in named for n in line.split(", ")
    }


# Every method


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(training.named_methods()))
def test_every_method_learns_a_line_by_name(name):
    X, y = line()
    model = bnn.BayesianMLPRegressor(8, method=name, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    mean, sd = model.predict(X, return_std=True)
    assert 2 < np.median(sd) < 12
    copy = pickled(model)
    np.testing.assert_array_equal(copy.predict(X), mean)


@pytest.mark.slow
def test_in_a_pipeline_and_a_grid_search():
    X, y = line()
    model = make_pipeline(PolynomialFeatures(2), quick(bnn.BayesianMLPRegressor))
    grid = {"bayesianmlpregressor__prior": ["normal", bnn.FanIn(2.0)]}
    search = GridSearchCV(model, grid, cv=2, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.7
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


@pytest.mark.slow
def test_heteroscedastic_noise_grows_where_the_data_do():
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (200, 1))
    y = rng.normal(size=200) * np.exp(X[:, 0])
    options = {"noise": "heteroscedastic", "steps": 400, "hidden_layer_sizes": 8}
    model = quick(bnn.BayesianMLPRegressor, **options).fit(X, y)
    _, sd = model.predict([[-1], [1]], return_std=True)
    assert sd[1] > 2 * sd[0]


@pytest.mark.slow
def test_partial_fit_learns_from_both_halves():
    """The second half alone says that y falls; with the first in mind, it rises."""
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.where(X[:, 0] < 0, 4 * X[:, 0], 0.2 * -X[:, 0])
    parts = quick(bnn.BayesianMLPRegressor, hidden_layer_sizes=8)
    parts.partial_fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    assert parts.posterior_.start.report == "continued from a posterior"
    assert parts.predict([[-0.9]]) < -2 < parts.predict([[0.9]])


@pytest.mark.slow
def test_chains_go_on_with_new_data():
    """The log-density they stood at was that of the old data: kept, no transition would be accepted.

    Two short chains may end in different modes, and miss a single point by 0.3 or more.
    """
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.where(X[:, 0] < 0, 4 * X[:, 0], -0.2 * X[:, 0])
    method = gpvi.NUTS(chains=2, draws=100, warmup=200, max_doublings=6)
    parts = bnn.BayesianMLPRegressor(4, method=method, random_state=0)
    parts.partial_fit(X[:10], y[:10])
    before = np.std(parts.predict(X[10:]) - y[10:])
    parts.partial_fit(X[10:], y[10:])
    assert parts.posterior_.training.history["acceptance"].mean() > 0.4
    assert before > 0.8
    assert np.std(parts.predict(X[10:]) - y[10:]) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twenty_points_are_enough_for_a_curve(seed):
    """Noise explained it before: the error was 0.46, and 0.12 by Markov chains."""
    rng = np.random.default_rng(seed)
    x, new = rng.uniform(-1, 1, (20, 1)), np.linspace(-0.9, 0.9, 50)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.standard_normal(20)
    model = bnn.BayesianMLPRegressor(random_state=0).fit(x, y)
    assert np.sqrt(np.mean((model.predict(new) - np.sin(3 * new[:, 0])) ** 2)) < 0.33


@pytest.mark.slow
def test_noise_does_not_explain_what_the_network_should():
    """Under a Gaussian prior of the output weights GPVI found noise of 1 and more here."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-4, 4, 80)
    y = -(1 + x) * np.sin(1.2 * x) + 0.2 * rng.standard_normal(80)
    model = bnn.BayesianMLPRegressor(activation="tanh", random_state=0).fit(x[:, None], y)
    log_noise = np.asarray(model.posterior_.sample(500, key=jax.random.key(0)))[:, -1]
    assert 0.15 < np.exp(log_noise).mean() * model.y_scaler_.scale[0] < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bnn.BayesianMLPRegressor, bnn.BayesianMLPClassifier])
def test_scikit_learns_own_checks_pass(kind, monkeypatch):
    """As a user has it: the checks pass options of any type, which the tests' type checker would refuse first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    check_estimator(kind(16, steps=300), on_skip=None)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_label_is_named(missing):
    labels = np.array(["a", "b", missing, "a"], dtype=object)
    with pytest.raises(InputError, match=r"y holds (None|nan) at index \(2,\).* remove the row"):
        quick(bnn.BayesianMLPClassifier).fit(np.eye(4), labels)
