"""Bayesian multi-layer perceptrons as scikit-learn estimators.

X and y are standardised inside, so that one prior over weights and one prior over the noise suit all units. The network
sees z = (x − m_x)/s_x and v = (y − m_y)/s_y, and what it says of v is turned back: means and quantiles by m_y + s_y v,
standard deviations by s_y, log-densities by −Σ log s_y.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from gpvi.bnn.likelihoods import Categorical, Gaussian, Heteroscedastic, Likelihood
from gpvi.bnn.networks.architectures import mlp
from gpvi.bnn.prediction.predictive import Predictive, row_blocks
from gpvi.bnn.priors import Prior
from gpvi.bnn.standardisation import Standardisation
from gpvi.bnn.training import trained
from gpvi.errors import InputError
from gpvi.methods import Method
from gpvi.methods.carriers import Particles
from gpvi.posterior.posterior import Posterior
from gpvi.specs import is_number, require_count, require_positive

Table = Any
"""What scikit-learn takes for an array (NumPy's, a data frame, lists): it is checked when it arrives."""
ROWS, MANY_ROWS = 256, 4_096
"""Predictions are made in blocks of this many rows, of many where there are more than that, and the last one is filled
up: two programs serve any number of rows, and a row's prediction does not depend on its neighbours."""


class _BayesianMLP(BaseEstimator):
    """What the two estimators share: standardised inputs, a posterior over networks, predictions block by block."""

    def __init__(
        self,
        hidden_layer_sizes: Any,
        *,
        activation: Any,
        method: Any,
        prior: Any,
        temperature: Any,
        steps: Any,
        batch_size: Any,
        draws: Any,
        members: Any,
        random_state: Any,
        verbose: Any,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.method = method
        self.prior = prior
        self.temperature = temperature
        self.steps = steps
        self.batch_size = batch_size
        self.draws = draws
        self.members = members
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def _encoded(self, y: np.ndarray) -> np.ndarray:
        """y as the network sees it."""

    @abstractmethod
    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        """The likelihood of the encoded y, and how many outputs the network needs for it."""

    @property
    def posterior_(self) -> Posterior:
        """The posterior; the first of `posteriors_` where there are several members."""
        return self.posteriors_[0]

    @property
    def predictive_(self) -> Predictive:
        """The predictive distribution of the encoded y given `x_scaler_.transform(X)`."""
        check_is_fitted(self)
        parts = self.posteriors_, self.network_, self.likelihood_
        return Predictive(*parts, sharpness=self.sharpness_)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Where learning fails or is interrupted, the estimator is as it was: no new scales beside old networks."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _start(self, X: np.ndarray, y: np.ndarray) -> None:
        self.x_scaler_ = Standardisation.of(X)
        self._seed = _seed(self.random_state)
        self._updates = 0
        self._learn(self.x_scaler_.transform(X), self._encoded(y), ())

    def _continue(self, X: np.ndarray, y: np.ndarray) -> None:
        new = self.x_scaler_.transform(X), self._encoded(y)
        X, y = (np.concatenate(both) for both in zip(self._seen, new, strict=True))
        self._learn(X, y, self.posteriors_)

    def _learn(self, X: np.ndarray, y: np.ndarray, start: Sequence[Posterior]) -> None:
        """The posteriors of all members, each going on from where it starts."""
        _count("draws", self.draws, "Try 500.")
        likelihood, outputs = self._likelihood(y)
        network = mlp((X.shape[1], *self._hidden_sizes(), outputs), self.activation)
        found = trained(
            network,
            likelihood,
            X,
            y,
            key=jax.random.fold_in(jax.random.key(self._seed), self._updates),
            prior=self.prior,
            method=self.method,
            members=self.members,
            steps=self.steps,
            batch_size=self.batch_size,
            temperature=self.temperature,
            sharpness=self.sharpness_ if start else getattr(self, "sharpness", 1.0),
            dtype=start[0].dtype if start else None,
            progress=bool(self.verbose),
            start=start,
        )
        self.posteriors_, self.sharpness_ = found
        self.network_, self.likelihood_ = network, likelihood
        self._seen = X, y
        self._updates += 1

    def _hidden_sizes(self) -> tuple[int, ...]:
        given = self.hidden_layer_sizes
        sizes = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        return tuple(_count("hidden layer size", size, "Try (50,).") for size in sizes)

    def _rows(self, X: Table) -> np.ndarray:
        check_is_fitted(self)
        rows = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        return self.x_scaler_.transform(rows)

    def _networks(self) -> dict[str, Any]:
        """The same networks at every call; of a set of particles, all."""
        fixed = isinstance(self.posterior_.model, Particles)
        key = jax.random.fold_in(jax.random.key(self._seed), 2**31 - 1)
        return {"key": key, "draws": None if fixed else self.draws}

    def _sampled(self, X: Table, n_samples: int, random_state: Any) -> np.ndarray:
        """The encoded y of n networks, (n, rows, …); particles are used again where there are too few of them."""
        X, n_samples = self._rows(X), _count("n_samples", n_samples, "Try 1.")
        tables = [p.model.drawn for p in self.posteriors_ if isinstance(p.model, Particles)]
        key = jax.random.key(_seed(random_state))
        at_once = sum(map(len, tables)) if tables else n_samples
        keys = jax.random.split(key, -(-n_samples // at_once))
        parts = [self.predictive_.sample(X, at_once, key=each) for each in keys]
        return np.concatenate([np.asarray(part) for part in parts])[:n_samples]

    def _log_prob(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log p(y | x, data) of each row, for y as the networks see it."""
        predictive = self.predictive_

        def of_rows(rows: np.ndarray, y: np.ndarray) -> tuple[Any]:
            return (predictive.log_prob(rows, y, **self._networks()),)

        return _in_blocks(of_rows, self.x_scaler_.transform(X), y)[0]


class BayesianMLPRegressor(MultiOutputMixin, RegressorMixin, _BayesianMLP):
    """Regression with a posterior over the weights of a multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes: units of each hidden layer; () is Bayesian linear regression.
    activation: "relu", "tanh", "silu", …
    method: "gpvi", or any method of this library: a name such as "svgd", "mfvi", "ensemble" or "nuts", or an object
        with its options, such as `gpvi.SVGD(particles=50)`.
    prior: of the weights, on standardised data: "sparse", "fan-in", "normal", "mixture" or an object of `gpvi.bnn`.
        "auto" is `Sparse()` for methods that draw as many networks as they like, `FanIn(2, 2)` (weights N(0, 4/fan_in),
        biases N(0, 4)) for Markov chains, and `FanIn()` for methods of a few particles.
    noise: the standard deviation of y around the network: "learned" together with the weights, a number in the units of
        y, "heteroscedastic" (a second output of the network), or a prior of `gpvi.bnn` for standardised y.
    temperature: 1 is the posterior, less a colder one.
    steps: of training; the method's own number by default.
    batch_size: data in each step; "auto" is 128, or all for methods that need all. None is all.
    draws: networks that predictions average over; a method with a fixed set of particles uses all of them.
    members: posteriors trained side by side from different starts, which predict as their mixture. A generator holds
        one mode of many; several hold several. "auto" is 5 for "gpvi" (with fewer draws in each step: one costs about
        two thirds as much), and 1 for any other method, from 20,000 weights on, and without hidden layers.
    random_state: a number for results that can be repeated.
    verbose: show a progress bar.

    Attributes
    ----------
    posterior_: the `gpvi.Posterior` over the weights and log-noise, for standardised data.
    posteriors_: those of all members; `posterior_` is the first.
    predictive_: the `gpvi.bnn.Predictive`, for standardised data; splits the variance.
    network_, likelihood_: the parts of the model.
    x_scaler_, y_scaler_: the standardisation.
    n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Sample weights are not supported: `fit` takes none. Training data are kept for `partial_fit`.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        activation: str = "relu",
        method: str | Method = "gpvi",
        prior: str | Prior = "auto",
        noise: Any = "learned",
        temperature: float = 1.0,
        steps: int | None = None,
        batch_size: int | Literal["auto"] | None = "auto",
        draws: int = 500,
        members: int | Literal["auto"] = "auto",
        random_state: Any = None,
        verbose: bool | int = False,
    ):
        super().__init__(
            hidden_layer_sizes,
            activation=activation,
            method=method,
            prior=prior,
            temperature=temperature,
            steps=steps,
            batch_size=batch_size,
            draws=draws,
            members=members,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise

    def fit(self, X: Table, y: Table) -> "BayesianMLPRegressor":
        """Learn the posterior of the networks given X, (n, features), and y, (n,) or (n, outputs)."""
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self._one_column = y.ndim == 1
            self.y_scaler_ = Standardisation.of(_column(y))
            self._start(X, y)
        return self

    def partial_fit(self, X: Table, y: Table) -> "BayesianMLPRegressor":
        """Learn the posterior given all data of this and earlier calls, going on from the one there is.

        Every call takes `steps` steps. The standardisation stays that of the first call.
        """
        if not hasattr(self, "posteriors_"):
            return self.fit(X, y)
        self._continue(*self._validated(X, y, reset=False))
        return self

    @overload
    def predict(self, X: Table, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Table, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(
        self, X: Table, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of y, and with `return_std` its standard deviation, observation noise included."""
        rows, predictive = self._rows(X), self.predictive_

        def moments(rows: np.ndarray) -> tuple[Any, Any]:
            found = predictive.predict(rows, **self._networks())
            return found.mean, found.variance

        mean, variance = _in_blocks(moments, rows)
        mean = self._as_given(self.y_scaler_.inverse(mean))
        if not return_std:
            return mean
        return mean, self._as_given(np.sqrt(variance) * self.y_scaler_.scale)

    def predict_quantiles(
        self, X: Table, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """Quantiles of y, observation noise included: (n, quantiles), or (n, outputs, quantiles) where y has columns.

        The quantiles are the last axis; those of `predictive_.quantiles` are the first.
        """
        rows, predictive = self._rows(X), self.predictive_

        def of_rows(rows: np.ndarray) -> tuple[Any]:
            found = predictive.quantiles(rows, quantiles, **self._networks())
            return (found.swapaxes(0, 1),)

        (found,) = _in_blocks(of_rows, rows)
        return self._as_given(self.y_scaler_.inverse(found).swapaxes(1, 2))

    def sample_y(self, X: Table, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """y by n networks, noise included: (n, n_samples), or (n, outputs, n_samples). A column is one network."""
        found = self._sampled(X, n_samples, random_state)
        return self._as_given(np.moveaxis(self.y_scaler_.inverse(found), 0, 2))

    def log_prob(self, X: Table, y: Table) -> np.ndarray:
        """log p(y | x, data) of each row, in the units of y; its negative mean is the test NLL."""
        check_is_fitted(self)
        X, y = self._validated(X, y, reset=False)
        return self._log_prob(X, self._encoded(y)) - np.log(self.y_scaler_.scale).sum()

    def _validated(self, X: Table, y: Table, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        options = {"dtype": np.float64, "multi_output": True, "y_numeric": True}
        X, y = validate_data(self, X, y, reset=reset, **options)
        y = np.asarray(y, np.float64)
        outputs = _column(y).shape[1]
        if not reset and outputs != len(self.y_scaler_.mean):
            raise ValueError(
                f"y has {outputs} outputs, but {type(self).__name__} was fitted with {len(self.y_scaler_.mean)}."
            )
        return X, y

    def _encoded(self, y: np.ndarray) -> np.ndarray:
        return self.y_scaler_.transform(_column(y))

    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        columns = y.shape[1]
        if _is(self.noise, "heteroscedastic"):
            return Heteroscedastic(), 2 * columns
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
        """Without the axis of outputs where y had none."""
        return values[:, 0] if self._one_column else values


class BayesianMLPClassifier(ClassifierMixin, _BayesianMLP):
    """Classification with a posterior over the weights of a multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes, activation, method, prior, temperature, steps, batch_size, draws, members, random_state,
        verbose: see `BayesianMLPRegressor`.
    sharpness: the exponent of the probabilities, see `gpvi.bnn.sharpened`; 1 leaves them as the networks' average has
        them. "auto" lets labels decide that the members of "gpvi" do not see in the first half of their steps.

    Attributes
    ----------
    sharpness_: the exponent that was found, or given. `partial_fit` keeps that of the first call.
    classes_: the labels, in the order of the columns of `predict_proba`.
    posterior_: the `gpvi.Posterior` over the weights, for standardised inputs.
    posteriors_: those of all members; `posterior_` is the first.
    predictive_: the `gpvi.bnn.Predictive`, for standardised inputs; gives entropy and mutual information.
    network_, likelihood_, x_scaler_, n_features_in_, feature_names_in_: see `BayesianMLPRegressor`.

    Sample weights are not supported: `fit` takes none. Training data are kept for `partial_fit`.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        activation: str = "relu",
        method: str | Method = "gpvi",
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
        super().__init__(
            hidden_layer_sizes,
            activation=activation,
            method=method,
            prior=prior,
            temperature=temperature,
            steps=steps,
            batch_size=batch_size,
            draws=draws,
            members=members,
            random_state=random_state,
            verbose=verbose,
        )
        self.sharpness = sharpness

    def fit(self, X: Table, y: Table) -> "BayesianMLPClassifier":
        """Learn the posterior of the networks given X, (n, features), and labels y, (n,)."""
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self.classes_ = _at_least_two(np.unique(y))
            self._start(X, y)
        return self

    def partial_fit(self, X: Table, y: Table, classes: Table = None) -> "BayesianMLPClassifier":
        """Learn the posterior given all data of this and earlier calls, going on from the one there is.

        The first call names all `classes` that will ever come. Every call takes `steps` steps. The standardisation
        stays that of the first call.
        """
        if hasattr(self, "posteriors_"):
            if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(
                    f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {self.classes_!r}"
                )
            self._continue(*self._validated(X, y, reset=False))
            return self
        if classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self.classes_ = _at_least_two(np.unique(classes))
            self._start(X, y)
        return self

    def predict(self, X: Table) -> np.ndarray:
        """The most probable label of each row."""
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Table) -> np.ndarray:
        """The probability of each class, averaged over the networks, to the power of `sharpness_`: (n, classes)."""
        rows, predictive = self._rows(X), self.predictive_

        def of_rows(rows: np.ndarray) -> tuple[Any]:
            return (predictive.predict(rows, **self._networks()).mean,)

        (found,) = _in_blocks(of_rows, rows)
        return found / found.sum(1, keepdims=True)

    def predict_log_proba(self, X: Table) -> np.ndarray:
        """The logarithm of `predict_proba`, also where that is 0 in floats."""
        rows, predictive = self._rows(X), self.predictive_

        def of_rows(rows: np.ndarray) -> tuple[Any]:
            return (predictive.log_probabilities(rows, **self._networks()),)

        (found,) = _in_blocks(of_rows, rows)
        return found

    def sample_y(self, X: Table, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Labels by n networks: (n, n_samples). A column is one network, to which `sharpness_` does not apply."""
        drawn = self._sampled(X, n_samples, random_state)
        return self.classes_[drawn.T]

    def log_prob(self, X: Table, y: Table) -> np.ndarray:
        """log p(y | x, data) of each row's label; its negative mean is the test NLL."""
        check_is_fitted(self)
        X, y = self._validated(X, y, reset=False)
        return self._log_prob(X, self._encoded(y))

    def _validated(self, X: Table, y: Table, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        _require_labels(y)
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _encoded(self, y: np.ndarray) -> np.ndarray:
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y contains labels {unknown!r} that are not among the classes.")
        return np.searchsorted(self.classes_, y).astype(np.int32)

    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        return Categorical(), len(self.classes_)


def _in_blocks(
    of_rows: Callable[..., tuple[Any, ...]], *tables: np.ndarray
) -> tuple[np.ndarray, ...]:
    """What `of_rows` makes of all rows, always asked for as many of them at once; in double precision."""
    number = len(tables[0])
    at_once = ROWS if number <= MANY_ROWS else MANY_ROWS
    found = [
        [np.asarray(part, np.float64) for part in of_rows(*block)]
        for block in row_blocks(tables, at_once)
    ]
    return tuple(np.concatenate(parts)[:number] for parts in zip(*found, strict=True))


def _is(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name


def _require_labels(y: Table) -> None:
    """Refuse labels of which one is missing, as None among strings, NaN, or the NA of pandas."""
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


def _count(name: str, value: Any, remedy: str) -> int:
    """A whole number ≥ 1, NumPy's among them."""
    whole = value.item() if isinstance(value, np.integer) else value
    require_count(name, whole, remedy)
    return whole


def _column(y: np.ndarray) -> np.ndarray:
    return y[:, None] if y.ndim == 1 else y


def _seed(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
