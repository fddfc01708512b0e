"""How sure classes are: by labels that members have not seen, more where it is easy, not where there is nothing."""

import jax
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.bnn._cross_fitting import PARTS, Crossing, can_cross
from gpvi.errors import InputError
from gpvi.generators import Linear
from selection import some_slow

KEY = jax.random.key(0)
METHOD = gpvi.GPVI(generator=Linear(), particles=4)


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
def test_no_member_sees_its_part_and_parts_do_not_overlap(number, members):
    labels = np.arange(number) % 2
    found = Crossing.of(labels, members, key=KEY)
    for seen, unseen in zip(found.seen, found.unseen, strict=True):
        assert len(seen) == number
        assert set(seen) == set(range(number)) - set(unseen)
        assert number // max(PARTS, members) <= len(unseen) <= -(-number // max(PARTS, members))
    together = np.concatenate(found.unseen)
    assert len(set(together)) == len(together)
    assert members < PARTS or len(together) == number


def test_parts_have_as_many_rows_of_each_class_and_follow_the_key():
    labels = np.repeat([0, 1, 2], [50, 20, 5])[:, None]
    found = Crossing.of(labels, 5, key=KEY)
    counts = [np.bincount(labels[rows, 0], minlength=3).tolist() for rows in found.unseen]
    assert counts == [[10, 4, 1]] * 5
    same, other = (Crossing.of(labels, 5, key=key) for key in (KEY, jax.random.key(1)))
    np.testing.assert_array_equal(np.stack(found.seen), np.stack(same.seen))
    assert (np.stack(found.seen) != np.stack(other.seen)).any()


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
def test_what_is_one_label_of_ten_rows_or_more_is_crossed(likelihood, number, columns, holds):
    labels = np.resize([0, 1], (number, *columns))
    labels[:2] = [[0], [1]] if columns else [0, 1]
    assert can_cross(likelihood, np.zeros((number, 2)), labels, 5) is holds
    assert not can_cross(likelihood, np.zeros((number, 2)), np.zeros_like(labels), 5)


# --------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module")
def easy() -> bnn.Predictive:
    return bnn.fit(
        bnn.mlp((2, 10, 3)), "categorical", *blobs(60), key=KEY, steps=1_000, progress=False
    )


@pytest.mark.slow
def test_easy_classes_are_sharpened_and_new_ones_gain(easy):
    new_X, labels = blobs(600, seed=1)
    plain = bnn.Predictive(easy.members, easy.network, easy.likelihood)
    before, after = (each.predict(new_X, key=KEY).mean for each in (plain, easy))
    assert easy.sharpness > 1.3
    assert nll(after, labels) < 0.7 * nll(before, labels)
    np.testing.assert_array_equal(before.argmax(1), after.argmax(1))


@pytest.mark.slow
def test_labels_of_nothing_are_not_sharpened_though_they_are_learned_by_heart():
    """A cold posterior is sure of all labels it has seen: those alone would call for more of it."""
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
    assert bnn.sharpness(plain.predict(inputs, key=KEY).mean, labels) > 1
    assert found.sharpness < 0.7


@pytest.mark.parametrize("given", some_slow((1.0, 2.5), fast=(2.5,)))
def test_a_sharpness_that_is_given_is_kept_and_nothing_is_left_out(given, monkeypatch):
    monkeypatch.setattr(Crossing, "of", None)
    inputs, labels = blobs(20)
    options = {"key": KEY, "steps": 4, "members": 2, "method": METHOD, "progress": False}
    found = bnn.fit(bnn.mlp((2, 3, 3)), "categorical", inputs, labels, sharpness=given, **options)
    assert found.sharpness == given
    other = bnn.fit(bnn.mlp((2, 3, 1)), "gaussian", inputs, labels - 1.0, **options)
    assert other.sharpness == 1


@pytest.mark.parametrize(
    ("given", "words"), [("more", "auto"), (0.0, "sharpness"), (-1.0, "sharpness")]
)
def test_a_bad_sharpness_is_named(given, words):
    with pytest.raises(InputError, match=words):
        bnn.fit(bnn.mlp((2, 3, 3)), "categorical", *blobs(20), key=KEY, sharpness=given)


# -------------------------------------------------------------------------------------- estimators


def test_the_classifier_says_what_was_found_and_keeps_it():
    inputs, labels = blobs(40)
    model = bnn.BayesianMLPClassifier((5,), method=METHOD, steps=20, members=2, random_state=0)
    model.partial_fit(inputs[:30], labels[:30], classes=[0, 1, 2])
    found = model.sharpness_
    assert found != 1 and model.predictive_.sharpness == found
    np.testing.assert_allclose(
        np.exp(model.predict_log_proba(inputs)), model.predict_proba(inputs), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        model.log_prob(inputs, labels),
        model.predict_log_proba(inputs)[np.arange(40), labels],
        rtol=1e-4,
    )
    assert model.partial_fit(inputs[30:], labels[30:]).sharpness_ == found
    assert model.set_params(sharpness=1.0).fit(inputs, labels).sharpness_ == 1
