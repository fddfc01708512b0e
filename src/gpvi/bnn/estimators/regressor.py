"""Regression with a Bayesian multi-layer perceptron."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from gpvi.bnn._selection import chosen, held_out_curve
from gpvi.bnn.estimators._base import BayesianMLP, Plan, Table, as_count, is_auto
from gpvi.bnn.estimators._budget import (
    CHAIN_ACTIVATION,
    CHAIN_HIDDEN,
    affordable_chains,
    as_budget,
)
from gpvi.bnn.likelihoods import Gaussian, Heteroscedastic, Likelihood
from gpvi.bnn.networks.architectures import mlp
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.priors import Prior
from gpvi.bnn.standardisation import Standardisation
from gpvi.bnn.training import BATCH, default_prior
from gpvi.errors import InputError
from gpvi.methods import Method
from gpvi.specs import is_number, require_positive


class BayesianMLPRegressor(MultiOutputMixin, RegressorMixin, BayesianMLP):
    """Regression with a posterior over the weights of a multi-layer perceptron.

    X may be a data frame with columns of categories, and may have missing values. Sample weights are not supported:
    `fit` takes none. Training data are kept for `partial_fit`.

    Parameters
    ----------
    hidden_layer_sizes
        The number of units of each hidden layer; () is Bayesian linear regression. "auto" is (16, 16, 16, 16) for
        chains and (50,) otherwise.
    budget
        How much may be spent: "fast" does about a sixth of the work of "default" (compiling aside), and "thorough"
        about eight times as much. It sets the number of networks or generators, and the lengths of training and chains.
    activation
        "relu", "tanh", "silu", … "auto" is "silu" for chains and "relu" otherwise.
    method
        "auto" runs microcanonical chains (`gpvi.bnn.MCLMC`) from networks that were fitted first, if there are 500 rows
        or more and the budget pays for 200 steps of each; otherwise it is "gpvi". Or "gpvi" itself, or any method of
        this library: a name such as "svgd", "mfvi", "ensemble" or "nuts", or an object with options, such as
        `gpvi.SVGD(particles=50)`.
    prior
        The prior of the weights, for standardised data: "sparse", "fan-in", "normal", "mixture" or an object of
        `gpvi.bnn`. "auto" is `Sparse()` for methods that draw as many networks as they like, `FanIn(2.0, 2.0)` (weights
        N(0, 4/fan_in), biases N(0, 4)) for Markov chains, N(0, 1) for `MCLMC`, and `FanIn()` for methods with a few
        particles.
    noise
        The standard deviation of y around the network: "learned" together with the weights, a number in the units of y,
        "heteroscedastic" (a second output of the network), or a prior of `gpvi.bnn` for standardised y. "auto" is
        "learned" or "heteroscedastic": for chains, whichever predicts a held-out fifth of the rows better; for other
        methods, "learned".
    temperature
        1 is the posterior, less than 1 a cold posterior.
    steps
        The steps of training; the method's own number by default. For `MCLMC`, the most steps in which the networks are
        fitted that chains start from; they are fewer if that predicts a held-out fifth of the rows better.
    batch_size
        The rows of a step. "auto" is 128, or all for methods that need all; None is all.
    draws
        The number of networks that predictions average over. Methods with a fixed set of particles use all of them.
    members
        The number of posteriors, which are trained side by side from different starting points and predict as a
        mixture. A generator covers one mode of many, and so does a chain; several cover several. "auto" is 5 for "gpvi"
        (with fewer draws in each step: one costs about two thirds as much) and for chains, 3 with `budget="fast"`, 10
        with "thorough"; it is 1 for any other method, from 20,000 weights on, and without hidden layers.
    random_state
        A number, for reproducible results.
    verbose
        Whether to show a progress bar.

    Attributes
    ----------
    posterior_
        The `gpvi.Posterior` over the weights and log-noise, for standardised data.
    posteriors_
        The posteriors of all members; `posterior_` is the first.
    predictive_
        The `gpvi.bnn.Predictive`, for standardised data; separates the parts of the variance.
    network_, likelihood_
        The parts of the model.
    columns_
        What makes numbers of X: indicators of categories, medians of missing values.
    x_scaler_, y_scaler_
        The standardisation.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
    >>> mean, sd = model.fit(X, X[:, 0]).predict(X, return_std=True)
    >>> mean.shape, sd.shape
    ((20,), (20,))
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | Literal["auto"] = "auto",
        *,
        budget: Literal["fast", "default", "thorough"] = "default",
        activation: str = "auto",
        method: str | Method = "auto",
        prior: str | Prior = "auto",
        noise: Any = "auto",
        temperature: float = 1.0,
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
        self.noise = noise
        self.temperature = temperature
        self.steps = steps
        self.batch_size = batch_size
        self.draws = draws
        self.members = members
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Table, y: Table) -> "BayesianMLPRegressor":
        """Train the posterior of the networks. If this fails, the estimator stays as it was.

        Parameters
        ----------
        X
            Inputs, (n, features).
        y
            Outcomes, (n,) or (n, outputs).

        Returns
        -------
        BayesianMLPRegressor
            The estimator.

        Raises
        ------
        ValueError
            If the data or an option cannot be used (`gpvi.errors.InputError` is a ValueError).

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0]).n_features_in_
        1
        """
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self._one_column = y.ndim == 1
            self.y_scaler_ = Standardisation.of(_columns(y))
            self._fit_first(X, y)
        return self

    def partial_fit(self, X: Table, y: Table) -> "BayesianMLPRegressor":
        """Train the posterior given the data of this and all earlier calls, continuing from the current one.

        Every call takes `steps` steps. The standardisation stays that of the first call.

        Parameters
        ----------
        X, y
            Further data, as for `fit`.

        Returns
        -------
        BayesianMLPRegressor
            The estimator.

        Raises
        ------
        ValueError
            If the data or an option cannot be used.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.partial_fit(X[::2], X[::2, 0]).partial_fit(
        ...     X[1::2], X[1::2, 0]
        ... ).posterior_.target.size
        20
        """
        if not hasattr(self, "posteriors_"):
            return self.fit(X, y)
        self._fit_further(*self._validated(X, y, reset=False))
        return self

    @overload
    def predict(self, X: Table, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Table, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(
        self, X: Table, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean of y, and its standard deviation.

        Parameters
        ----------
        X
            Inputs, (n, features).
        return_std
            Whether to return the standard deviation of y, observation noise included, as well.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The mean, or mean and standard deviation, in the shape of the y of training.

        Raises
        ------
        ValueError
            If X cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0]).predict(X).shape
        (20,)
        """

        def moments(predictive: Predictive, rows: np.ndarray, **options: Any) -> tuple[Any, Any]:
            found = predictive.predict(rows, **options)
            return found.mean, found.variance

        mean, variance = self._predicted(moments, self._rows(X))
        mean = self._as_given(self.y_scaler_.inverse(mean))
        if not return_std:
            return mean
        return mean, self._as_given(np.sqrt(variance) * self.y_scaler_.scale)

    def predict_quantiles(
        self, X: Table, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """Predict quantiles of y, observation noise included.

        Parameters
        ----------
        X
            Inputs, (n, features).
        quantiles
            The levels, between 0 and 1.

        Returns
        -------
        numpy.ndarray
            (n, quantiles), or (n, outputs, quantiles) if y has columns. (`predictive_.quantiles` has the levels first.)

        Raises
        ------
        ValueError
            If X or a level cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0]).predict_quantiles(X, (0.1, 0.9)).shape
        (20, 2)
        """

        def rows_first(predictive: Predictive, rows: np.ndarray, **options: Any) -> Any:
            return predictive.quantiles(rows, quantiles, **options).swapaxes(0, 1)

        found = self._predicted(rows_first, self._rows(X))
        return self._as_given(self.y_scaler_.inverse(found).swapaxes(1, 2))

    def sample_y(self, X: Table, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y from networks of the posterior, noise included. Each sample is of one network.

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
            (n, n_samples), or (n, outputs, n_samples) if y has columns.

        Raises
        ------
        ValueError
            If X or `n_samples` cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0]).sample_y(X, 3).shape
        (20, 3)
        """
        found = self._sampled(X, n_samples, random_state)
        return self._as_given(np.moveaxis(self.y_scaler_.inverse(found), 0, 2))

    def log_prob(self, X: Table, y: Table) -> np.ndarray:
        """Return log p(y | x, data) of each row, in the units of y; its negative mean is the test NLL.

        Parameters
        ----------
        X, y
            Data, as for `fit`.

        Returns
        -------
        numpy.ndarray
            The log-densities, (n,).

        Raises
        ------
        ValueError
            If the data cannot be used, or the estimator is not fitted.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> model = gpvi.bnn.BayesianMLPRegressor(4, method="svgd", steps=50, random_state=0)
        >>> model.fit(X, X[:, 0]).log_prob(X, X[:, 0]).shape
        (20,)
        """
        check_is_fitted(self)
        X, y = self._validated(X, y, reset=False)
        return self._log_prob(X, y) - np.log(self.y_scaler_.scale).sum()

    def _validated(self, X: Table, y: Table, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._numbers(X, y, reset=reset, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        outputs = _columns(y).shape[1]
        if not reset and outputs != len(self.y_scaler_.mean):
            raise ValueError(
                f"y has {outputs} outputs, but {type(self).__name__} was fitted with {len(self.y_scaler_.mean)}."
            )
        return X, y

    def _encoded(self, y: np.ndarray) -> np.ndarray:
        return self.y_scaler_.transform(_columns(y))

    def _planned(self, X: np.ndarray, y: np.ndarray, key: PRNGKeyArray) -> Plan:
        """Choose chains for tables and networks of medium size, with the noise that suits held-out rows best."""
        sizes, columns = self._hidden_sizes(CHAIN_HIDDEN), y.shape[1]
        if not is_auto(self.method) or not sizes:
            return super()._planned(X, y, key)
        candidates: list[Likelihood] = [Gaussian(), Heteroscedastic()]
        if not is_auto(self.noise):
            candidates = [self._likelihood(y)[0]]
        activation = self._activation(CHAIN_ACTIVATION)
        networks = [
            mlp((X.shape[1], *sizes, columns * (2 if _varies(each) else 1)), activation)
            for each in candidates
        ]
        budget = as_budget(self.budget)
        chains = affordable_chains(budget, len(X), networks[-1].size, self._number_of_members())
        if chains is None:
            return super()._planned(X, y, key)
        steps = budget.fitted_steps if self.steps is None else self.steps
        steps = as_count("steps", steps, "None is the number of the budget.")
        curves = [
            held_out_curve(
                network,
                likelihood,
                default_prior(chains.method) if is_auto(self.prior) else self.prior,
                X,
                y,
                members=chains.members,
                steps=steps,
                batch_size=BATCH,
                key=jax.random.fold_in(key, 4),
            )
            for network, likelihood in zip(networks, candidates, strict=True)
        ]
        index, steps = chosen(curves)
        return Plan(networks[index], candidates[index], chains.method, chains.members, steps)

    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        columns = y.shape[1]
        if isinstance(self.noise, str) and self.noise == "heteroscedastic":
            return Heteroscedastic(), 2 * columns
        if is_auto(self.noise):
            return Gaussian(), columns
        if not is_number(self.noise):
            return Gaussian(noise=self.noise), columns
        require_positive("noise", self.noise, "Give a standard deviation of y, or 'learned'.")
        if columns > 1:
            raise InputError(
                f"noise is {self.noise!r} for {columns} outputs, and each has a scale of its own. Use noise='learned', "
                "or one estimator for each output."
            )
        return Gaussian(noise=float(self.noise / self.y_scaler_.scale[0])), columns

    def _as_given(self, values: np.ndarray) -> np.ndarray:
        """Return the values without the axis of outputs, if the y of training had none."""
        return values[:, 0] if self._one_column else values


def _varies(likelihood: Likelihood) -> bool:
    """Return whether the noise depends on x, so that the network has two outputs for each column of y."""
    return isinstance(likelihood, Heteroscedastic)


def _columns(y: np.ndarray) -> np.ndarray:
    return y[:, None] if y.ndim == 1 else y
