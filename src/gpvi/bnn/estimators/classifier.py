"""Classification with a Bayesian multi-layer perceptron."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from gpvi.bnn.estimators._base import BayesianMLP, Table
from gpvi.bnn.likelihoods import Categorical, Likelihood
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.priors import Prior
from gpvi.errors import InputError
from gpvi.methods import Method


class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):
    """Classification with a posterior over the weights of a multi-layer perceptron.

    X may be a data frame with columns of categories, and may have missing values. Sample weights are not supported:
    `fit` takes none. Training data are kept for `partial_fit`.

    Parameters
    ----------
    hidden_layer_sizes, budget, activation, method, prior, temperature, steps, batch_size, draws, members, random_state
        As for `BayesianMLPRegressor`; the method is "gpvi" by default, whatever the number of rows.
    verbose
        Whether to show a progress bar.
    sharpness
        Temperature scaling of the probabilities (Guo et al. 2017): the inverse temperature, see
        `gpvi.bnn.temperature_scaled`. 1 leaves the average over networks as it is. "auto" finds it by cross-fitting:
        each member of "gpvi" skips one fold of the data during the first half of training, and predicts its labels.

    Attributes
    ----------
    sharpness_
        The sharpness that was found, or given. `partial_fit` keeps that of the first call.
    classes_
        The labels, in the order of the columns of `predict_proba`.
    posterior_
        The `gpvi.Posterior` over the weights, for standardised inputs.
    posteriors_
        The posteriors of all members; `posterior_` is the first.
    predictive_
        The `gpvi.bnn.Predictive`, for standardised inputs; gives entropy and mutual information.
    network_, likelihood_, columns_, x_scaler_, n_features_in_, feature_names_in_
        As for `BayesianMLPRegressor`.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
    >>> model.fit(X, np.where(X[:, 0] > 0, "right", "left")).classes_.tolist()
    ['left', 'right']
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | Literal["auto"] = "auto",
        *,
        budget: Literal["fast", "default", "thorough"] = "default",
        activation: str = "auto",
        method: str | Method = "auto",
        prior: str | Prior = "auto",
        temperature: float = 1.0,
        sharpness: float | Literal["auto"] = "auto",
        steps: int | None = None,
        batch_size: int | Literal["auto"] | None = "auto",
        draws: int = 500,
        members: int | Literal["auto"] = "auto",
        random_state: Any = None,
        verbose: bool | int = False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.budget = budget
        self.activation = activation
        self.method = method
        self.prior = prior
        self.temperature = temperature
        self.sharpness = sharpness
        self.steps = steps
        self.batch_size = batch_size
        self.draws = draws
        self.members = members
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Table, y: Table) -> "BayesianMLPClassifier":
        """Train the posterior of the networks. If this fails, the estimator stays as it was.

        Parameters
        ----------
        X
            Inputs, (n, features).
        y
            Labels, (n,), of at least two classes.

        Returns
        -------
        BayesianMLPClassifier
            The estimator.

        Raises
        ------
        ValueError
            If the data or an option cannot be used (`gpvi.errors.InputError` is a ValueError).

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).n_features_in_
        1
        """
        return self._fit_classes(X, y, None)

    def partial_fit(self, X: Table, y: Table, classes: Table = None) -> "BayesianMLPClassifier":
        """Train the posterior given the data of this and all earlier calls, continuing from the current one.

        Every call takes `steps` steps. The standardisation stays that of the first call.

        Parameters
        ----------
        X, y
            Further data, as for `fit`.
        classes
            All labels that will ever occur; required in the first call.

        Returns
        -------
        BayesianMLPClassifier
            The estimator.

        Raises
        ------
        ValueError
            If the data or an option cannot be used, or the classes are missing or differ from those of the first call.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.partial_fit(X, X[:, 0] > 0, classes=[False, True]).classes_.tolist()
        [False, True]
        """
        if not hasattr(self, "posteriors_"):
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            return self._fit_classes(X, y, classes)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {self.classes_!r}"
            )
        self._fit_further(*self._validated(X, y, reset=False))
        return self

    def predict(self, X: Table) -> np.ndarray:
        """Predict the most probable label of each row.

        Parameters
        ----------
        X
            Inputs, (n, features).

        Returns
        -------
        numpy.ndarray
            The labels, (n,).

        Raises
        ------
        ValueError
            If X cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).predict(X).shape
        (20,)
        """
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Table) -> np.ndarray:
        """Predict the probability of each class: the average over networks, temperature-scaled by `sharpness_`.

        Parameters
        ----------
        X
            Inputs, (n, features).

        Returns
        -------
        numpy.ndarray
            The probabilities, (n, classes).

        Raises
        ------
        ValueError
            If X cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).predict_proba(X).shape
        (20, 2)
        """
        mean = self._predicted(Predictive.predict, self._rows(X)).mean
        return mean / mean.sum(1, keepdims=True)

    def predict_log_proba(self, X: Table) -> np.ndarray:
        """Predict the logarithm of `predict_proba`, also where a probability underflows to 0.

        Parameters
        ----------
        X
            Inputs, (n, features).

        Returns
        -------
        numpy.ndarray
            The log-probabilities, (n, classes).

        Raises
        ------
        ValueError
            If X cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).predict_log_proba(X).shape
        (20, 2)
        """
        return self._predicted(Predictive.log_probabilities, self._rows(X))

    def sample_y(self, X: Table, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw labels from networks of the posterior, without temperature scaling. Each sample is of one network.

        Parameters
        ----------
        X
            Inputs, (n, features).
        n_samples
            The number of networks.
        random_state
            A number, for reproducible results.

        Returns
        -------
        numpy.ndarray
            The labels, (n, n_samples).

        Raises
        ------
        ValueError
            If X or `n_samples` cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).sample_y(X, 3).shape
        (20, 3)
        """
        drawn = self._sampled(X, n_samples, random_state)
        return self.classes_[drawn.T]

    def log_prob(self, X: Table, y: Table) -> np.ndarray:
        """Return log p(y | x, data) of the label of each row; its negative mean is the test NLL.

        Parameters
        ----------
        X, y
            Data, as for `fit`.

        Returns
        -------
        numpy.ndarray
            The log-probabilities, (n,).

        Raises
        ------
        ValueError
            If the data cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPClassifier(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0] > 0).log_prob(X, X[:, 0] > 0).shape
        (20,)
        """
        check_is_fitted(self)
        return self._log_prob(*self._validated(X, y, reset=False))

    def _fit_classes(self, X: Table, y: Table, classes: Table) -> "BayesianMLPClassifier":
        """Fit for the first time, with these classes, or with those of y if they are None."""
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self.classes_ = _at_least_two(np.unique(y if classes is None else classes))
            self._fit_first(X, y)
        return self

    def _validated(self, X: Table, y: Table, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        _require_labels(y)
        X, y = self._numbers(X, y, reset=reset)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _encoded(self, y: np.ndarray) -> np.ndarray:
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y contains labels {unknown!r} that are not among the classes.")
        return np.searchsorted(self.classes_, y).astype(np.int32)

    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        return Categorical(), len(self.classes_)


def _require_labels(y: Table) -> None:
    """Refuse missing labels: None among strings, NaN, or the NA of pandas."""
    labels = np.asarray(y)
    if y is None or labels.dtype != object:
        return
    missing = np.reshape([_is_missing(label) for label in labels.ravel()], labels.shape)
    if missing.any():
        where = tuple(map(int, np.argwhere(missing)[0]))
        raise InputError(
            f"y holds {labels[where]!r} at index {where}, which is no label: remove the row, or give what has no label "
            "a class of its own."
        )


def _is_missing(label: Any) -> bool:
    is_nan = isinstance(label, float) and bool(np.isnan(label))
    return label is None or is_nan or type(label).__name__ in ("NAType", "NaTType")


def _at_least_two(classes: np.ndarray) -> np.ndarray:
    if len(classes) < 2:
        raise ValueError(
            "This classifier needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{classes[0]!r}"
        )
    return classes
