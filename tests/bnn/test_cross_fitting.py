"""Cross-fitting: the sharpness that held-out folds ask for, high for easy classes and low for noise."""

from typing import Any

import jax
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.bnn._cross_fitting import FOLDS, CrossFitting, can_cross_fit
from gpvi.errors import InputError
from gpvi.generators import Linear

KEY = jax.random.key(0)
METHOD = gpvi.GPVI(generator=Linear(), particles=8, learning_rate=1e-2)
STEPS = 100


def blobs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that lie apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    at = np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]])[labels]
    return at + 0.25 * rng.normal(size=(n, 2)), labels


def nll(p, labels) -> float:
    return -float(np.log(np.asarray(p)[np.arange(len(labels)), labels]).mean())


# ------------------------------------------------------------------------------------------ parts


@pytest.mark.parametrize(("number", "members"), [(10, 1), (23, 5), (40, 7)])
def test_no_member_trains_on_its_fold_and_folds_do_not_overlap(number, members):
    labels = np.arange(number) % 2
    found = CrossFitting.of(labels, members, key=KEY)
    for training, held_out in zip(found.training, found.held_out, strict=True):
        assert len(training) == number
        assert set(training) == set(range(number)) - set(held_out)
        assert number // max(FOLDS, members) <= len(held_out) <= -(-number // max(FOLDS, members))
    together = np.concatenate(found.held_out)
    assert len(set(together)) == len(together)
    assert members < FOLDS or len(together) == number


def test_folds_are_stratified_and_follow_the_key():
    labels = np.repeat([0, 1, 2], [50, 20, 5])[:, None]
    found = CrossFitting.of(labels, 5, key=KEY)
    counts = [np.bincount(labels[rows, 0], minlength=3).tolist() for rows in found.held_out]
    assert counts == [[10, 4, 1]] * 5
    same, other = (CrossFitting.of(labels, 5, key=key) for key in (KEY, jax.random.key(1)))
    np.testing.assert_array_equal(np.stack(found.training), np.stack(same.training))
    assert (np.stack(found.training) != np.stack(other.training)).any()


@pytest.mark.parametrize(
    ("likelihood", "number", "columns", "holds"),
    [
        (bnn.Categorical(), 10, (), True),
        (bnn.Categorical(), 9, (), False),
        (bnn.Bernoulli(), 10, (1,), True),
        (bnn.Bernoulli(), 10, (2,), False),
        (bnn.Gaussian(), 10, (1,), False),
        (bnn.Poisson(), 10, (1,), False),
    ],
    ids=str,
)
def test_ten_rows_of_one_label_each_are_enough(likelihood, number, columns, holds):
    labels = np.resize([0, 1], (number, *columns))
    classes = likelihood.classes(columns[0] if columns else 2)
    labels[:2] = [[0], [1]] if columns else [0, 1]
    assert can_cross_fit(classes, np.zeros((number, 2)), labels, 5) is holds
    assert not can_cross_fit(classes, np.zeros((number, 2)), np.zeros_like(labels), 5)


# --------------------------------------------------------------------------------------- training

NETWORK = bnn.mlp((2, 10, 3))
OPTIONS: dict[str, Any] = {"key": KEY, "method": METHOD, "members": 2, "steps": STEPS}
"""One network, method and number of rows for all, so that programs are compiled once."""


def fit(inputs, labels, **options) -> bnn.Predictive:
    return bnn.fit(NETWORK, "categorical", inputs, labels, progress=False, **(OPTIONS | options))


@pytest.fixture(scope="module")
def easy() -> bnn.Predictive:
    return fit(*blobs(60))


def test_easy_classes_are_sharpened_and_new_ones_gain(easy):
    new_X, labels = blobs(300, seed=1)
    plain = bnn.Predictive(easy.members, easy.network, easy.likelihood)
    before, after = (each.predict(new_X, key=KEY).mean for each in (plain, easy))
    assert easy.sharpness > 1.3
    assert nll(after, labels) < 0.8 * nll(before, labels)
    np.testing.assert_array_equal(before.argmax(1), after.argmax(1))


def test_labels_of_pure_noise_are_not_sharpened():
    """The labels that were trained on would ask for more confidence."""
    inputs, labels = blobs(60)[0], np.random.default_rng(0).integers(0, 3, 60)
    found = fit(inputs, labels)
    plain = bnn.Predictive(found.members, found.network, found.likelihood)
    assert found.sharpness < 0.9
    assert bnn.fit_sharpness(plain.predict(inputs, key=KEY).mean, labels) > 1.1 * found.sharpness


@pytest.mark.slow
def test_labels_of_pure_noise_are_not_sharpened_though_they_are_learned_by_heart():
    """A cold posterior is sure of all labels that it has seen: those alone would ask for more confidence."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(40, 10)), rng.integers(0, 2, 40)
    found = bnn.fit(
        bnn.mlp((10, 20, 2)),
        "categorical",
        inputs,
        labels,
        key=KEY,
        steps=600,
        temperature=0.01,
        progress=False,
    )
    plain = bnn.Predictive(found.members, found.network, found.likelihood)
    assert bnn.fit_sharpness(plain.predict(inputs, key=KEY).mean, labels) > 1
    assert found.sharpness < 0.7


def test_a_sharpness_that_is_passed_is_kept_and_nothing_is_held_out(monkeypatch):
    monkeypatch.setattr(CrossFitting, "of", None)
    inputs, labels = blobs(60)
    found = fit(inputs, labels, sharpness=2.5, steps=4)
    assert found.sharpness == 2.5


@pytest.mark.parametrize(
    ("passed", "words"), [("more", "auto"), (0.0, "sharpness"), (-1.0, "sharpness")]
)
def test_a_bad_sharpness_is_named(passed, words):
    with pytest.raises(InputError, match=words):
        fit(*blobs(20), sharpness=passed)


@pytest.mark.slow
def test_the_classifier_has_the_sharpness_and_keeps_it():
    inputs, labels = blobs(60)
    model = bnn.BayesianMLPClassifier((10,), method=METHOD, steps=STEPS, members=2, random_state=0)
    model.fit(inputs, labels)
    found = model.sharpness_
    assert found > 1.3 and model.predictive_.sharpness == found
    np.testing.assert_allclose(
        np.exp(model.predict_log_proba(inputs)), model.predict_proba(inputs), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        model.log_prob(inputs, labels),
        model.predict_log_proba(inputs)[np.arange(60), labels],
        rtol=1e-4,
    )
    model.steps = 4
    assert model.partial_fit(inputs, labels).sharpness_ == found
    assert model.set_params(sharpness=1.0).fit(inputs, labels).sharpness_ == 1
