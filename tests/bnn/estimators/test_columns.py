"""Tables as users have them: categories, missing values, and their combinations."""

import numpy as np
import pytest

from gpvi import bnn
from gpvi.bnn.estimators._columns import Columns, categorical_columns
from gpvi.errors import InputError
from gpvi.methods import SVGD
from selection import slow

pd = pytest.importorskip("pandas")


def frame(n=60, seed=0):
    """y depends on a category, on a number, and on whether another number is missing."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["ash", "elm", "fir"], n)
    size, age = rng.normal(size=n), rng.normal(5.0, 1.0, n)
    missing = rng.random(n) < 0.3
    y = 10.0 * (kind == "elm") + size + 5.0 * missing
    table = pd.DataFrame({"kind": kind, "size": size, "age": np.where(missing, np.nan, age)})
    return table, y


def test_numbers_pass_unchanged():
    X = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(Columns.of(X).transform(X), X)


def test_missing_numbers_are_filled_and_marked():
    X = np.array([[1.0, np.nan], [2.0, 4.0], [9.0, 6.0]])
    found = Columns.of(X).transform(np.array([[np.nan, np.nan]]))
    np.testing.assert_array_equal(found, [[2.0, 5.0, 1.0]])


@pytest.mark.parametrize("kind", [object, "category", "string"])
def test_categories_become_indicators(kind):
    X = pd.DataFrame({"a": pd.Series(["x", "y", None, "z"], dtype=kind), "b": [1, 2, 3, 4]})
    columns = Columns.of(X)
    assert columns.categorical == ("a",)
    found = columns.transform(X)
    assert found.shape == (4, 5)
    np.testing.assert_array_equal(found[:, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(found[:, 1:], np.eye(4)[[0, 1, 3, 2]])


def test_nullable_numbers_and_booleans_are_numbers():
    X = pd.DataFrame(
        {
            "a": pd.array([1, None, 3], dtype="Int64"),
            "b": [True, False, True],
            "c": ["u", "v", "u"],
        }
    )
    assert categorical_columns(X) == ("c",)
    np.testing.assert_array_equal(
        Columns.of(X).transform(X), [[1, 1, 0, 0], [2, 0, 1, 1], [3, 1, 0, 0]]
    )


def test_unseen_categories_count_as_rare():
    X = pd.DataFrame({"a": [f"c{i}" for i in range(40)] + ["c0", "c1"]})
    columns = Columns.of(X)
    with pytest.warns(UserWarning, match="unknown categories"):
        new, frequent = columns.transform(pd.DataFrame({"a": ["new", "c0"]}))
    known = columns.transform(X)
    assert known.shape == (42, 30) and (known.sum(1) == 1).all()
    assert (known == new).all(1).sum() == 11, "29 categories have indicators of their own"
    assert (known == frequent).all(1).sum() == 2


@pytest.mark.parametrize("kind", [slow(bnn.BayesianMLPRegressor), bnn.BayesianMLPClassifier])
def test_estimators_take_frames_with_categories_and_missing_values(kind):
    X, y = frame()
    y = y if kind is bnn.BayesianMLPRegressor else np.where(y > 4, "much", "little")
    model = kind(8, method=SVGD(particles=4), steps=200, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    assert vars(model)["n_features_in_"] == 3
    assert list(vars(model)["feature_names_in_"]) == ["kind", "size", "age"]
    new = X.assign(kind="oak")
    with pytest.warns(UserWarning, match="unknown categories"):
        assert len(model.predict(new)) == len(X)
    with pytest.raises(InputError, match="kind hold categories"):
        model.predict(X[["size", "age", "age"]].to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"age": "years"}))


def test_a_missing_value_at_prediction_only_is_the_median():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    model = bnn.BayesianMLPRegressor(4, method=SVGD(particles=4), steps=50, random_state=0)
    model.fit(X, X[:, 0])
    np.testing.assert_allclose(
        model.predict([[0.5, np.nan]]), model.predict([[0.5, np.median(X[:, 1])]])
    )
    with pytest.raises(ValueError, match="infinity"):
        model.predict([[np.inf, 0.0]])
