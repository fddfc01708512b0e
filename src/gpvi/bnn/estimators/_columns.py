"""Columns of a table as numbers: categories become indicators, missing values are filled in and marked.

The parts are scikit-learn's. A missing number becomes the median of its column, with an indicator beside it if training
had missing numbers there: that a value is missing may say something about y. A missing category is one of its own; rare
categories share an indicator, and what training has not seen counts among them.
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from gpvi.errors import InputError

MOST_CATEGORIES = 30
"""The most indicators of a column; rarer categories share the last."""


class Columns(NamedTuple):
    """What makes numbers of a table."""

    transformer: ColumnTransformer | SimpleImputer
    categorical: tuple[Any, ...]
    """The names of the columns of a data frame that hold categories."""

    @classmethod
    def of(cls, X: Any) -> "Columns":
        """Learn medians and categories from the table of training: an array of numbers, or a data frame."""
        categorical = categorical_columns(X)
        fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        if not categorical:
            return cls(fill.fit(X), ())
        indicators = OneHotEncoder(
            max_categories=MOST_CATEGORIES,
            handle_unknown="infrequent_if_exist",
            drop="if_binary",
            sparse_output=False,
        )
        numbers = [name for name in X.columns if name not in categorical]
        parts = [("numbers", fill, numbers), ("categories", indicators, list(categorical))]
        return cls(ColumnTransformer(parts).fit(_plain(X, categorical)), categorical)

    def require_frame(self, X: Any) -> None:
        """Refuse anything but a data frame, if training had one with categories."""
        if self.categorical and not is_frame(X):
            raise InputError(
                f"X is {type(X).__name__}, but the estimator was fitted with a data frame in which "
                f"{', '.join(map(str, self.categorical))} hold categories: pass a data frame with the same columns."
            )

    def transform(self, X: Any) -> np.ndarray:
        """Return the numbers, (n, columns)."""
        plain = _plain(X, self.categorical) if self.categorical else X
        return np.asarray(self.transformer.transform(plain), np.float64)


def is_frame(X: Any) -> bool:
    """Return whether this is a data frame, without importing pandas."""
    return all(hasattr(X, name) for name in ("columns", "dtypes", "iloc"))


def categorical_columns(X: Any) -> tuple[Any, ...]:
    """Return the names of the columns of a data frame that hold no numbers; none of anything else."""
    if not is_frame(X):
        return ()
    return tuple(name for name, kind in zip(X.columns, X.dtypes, strict=True) if not _numeric(kind))


def _numeric(kind: Any) -> bool:
    """Return whether a type of pandas or of NumPy holds numbers; booleans do, categories do not."""
    return getattr(kind, "kind", "O") in "biuf" and not hasattr(kind, "categories")


def _plain(X: Any, categorical: tuple[Any, ...]) -> Any:
    """Return the frame with floats, and with objects for categories; what is missing is NaN in both."""
    kinds = {name: object if name in categorical else np.float64 for name in X.columns}
    missing = X.isna()
    return X.astype(object).where(~missing, np.nan).astype(kinds)
