"""What the two estimators share: standardised inputs, a posterior over networks, predictions block by block.

X and y are standardised, so that one prior of the weights and one prior of the noise suit all units. The network sees
z = (x − m_x)/s_x and v = (y − m_y)/s_y. Predictions of v are transformed back: means and quantiles by m_y + s_y v,
standard deviations by s_y, log-densities by −Σ log s_y.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

from gpvi.bnn.estimators._budget import ACTIVATION, HIDDEN, as_budget
from gpvi.bnn.estimators._columns import Columns, categorical_columns
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.networks.architectures import mlp
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive, row_blocks
from gpvi.bnn.priors import Prior
from gpvi.bnn.standardisation import Standardisation
from gpvi.bnn.training import is_multimodal, train_members
from gpvi.methods import Method, method_name
from gpvi.posterior.posterior import Posterior
from gpvi.specs import require_choice, require_count

Table = Any
"""Whatever scikit-learn accepts as an array: NumPy arrays, data frames, lists."""
ROWS, MANY_ROWS = 256, 4_096
"""Predictions are made in blocks of ROWS rows; of MANY_ROWS, if there are more than that. The last block is filled up.
So two programs serve any number of rows, and the prediction of a row does not depend on the other rows."""


class Plan(NamedTuple):
    """What is trained, and how."""

    network: Network
    likelihood: Likelihood
    method: str | Method
    members: int | str
    steps: int | None


class BayesianMLP(BaseEstimator):
    """The base of both estimators."""

    hidden_layer_sizes: int | Sequence[int] | str
    activation: str
    method: str | Method
    prior: str | Prior
    temperature: float
    steps: int | None
    batch_size: int | str | None
    draws: int
    members: int | str
    random_state: Any
    verbose: bool | int
    budget: str
    posteriors_: tuple[Posterior, ...]
    columns_: Columns

    @abstractmethod
    def _encoded(self, y: np.ndarray) -> np.ndarray:
        """Return y as the network sees it."""

    @abstractmethod
    def _likelihood(self, y: np.ndarray) -> tuple[Likelihood, int]:
        """Return the likelihood of the encoded y, and the number of outputs that the network needs for it."""

    @property
    def posterior_(self) -> Posterior:
        """The posterior; the first of `posteriors_` if there are several members."""
        return self.posteriors_[0]

    @property
    def predictive_(self) -> Predictive:
        """The predictive distribution of the encoded y given `x_scaler_.transform(X)`."""
        check_is_fitted(self)
        return Predictive(
            self.posteriors_, self.network_, self.likelihood_, sharpness=self.sharpness_
        )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if fitting fails or is interrupted: no new scales beside old networks."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit_first(self, X: np.ndarray, y: np.ndarray) -> None:
        self.x_scaler_ = Standardisation.of(X)
        self._seed = seed_of(self.random_state)
        self._updates = 0
        self._train(self.x_scaler_.transform(X), self._encoded(y), ())

    def _fit_further(self, X: np.ndarray, y: np.ndarray) -> None:
        new = self.x_scaler_.transform(X), self._encoded(y)
        X, y = (np.concatenate(pair) for pair in zip(self._data, new, strict=True))
        self._train(X, y, self.posteriors_)

    def _train(self, X: np.ndarray, y: np.ndarray, start: Sequence[Posterior]) -> None:
        """Train the posteriors of all members, continuing from those in `start` if there are any."""
        as_count("draws", self.draws, "Try 500.")
        key = jax.random.fold_in(jax.random.key(self._seed), self._updates)
        if not start:
            self._plan = self._planned(X, y, key)
        plan = self._plan
        self.posteriors_, self.sharpness_ = train_members(
            plan.network,
            plan.likelihood,
            X,
            y,
            key=key,
            prior=self.prior,
            method=plan.method,
            members=plan.members,
            steps=self.steps if start and self.steps is not None else plan.steps,
            batch_size=self.batch_size,
            temperature=self.temperature,
            sharpness=self.sharpness_ if start else getattr(self, "sharpness", 1.0),
            dtype=start[0].dtype if start else None,
            progress=bool(self.verbose),
            start=start,
        )
        self.network_, self.likelihood_ = plan.network, plan.likelihood
        self._data = X, y
        self._updates += 1

    def _planned(self, X: np.ndarray, y: np.ndarray, key: PRNGKeyArray) -> Plan:
        """Choose everything that is "auto"; here by the method alone, with generators by default."""
        budget = as_budget(self.budget)
        likelihood, outputs = self._likelihood(y)
        sizes = self._hidden_sizes(HIDDEN)
        network = mlp((X.shape[1], *sizes, outputs), self._activation(ACTIVATION))
        method = "gpvi" if is_auto(self.method) else self.method
        members, steps = self.members, self.steps
        if isinstance(method, str) and method_name(method) == "gpvi":
            several = is_multimodal(network, network.size + len(likelihood.extra(outputs)))
            members = budget.members if several and is_auto(members) else members
            steps = budget.steps if steps is None else steps
        return Plan(network, likelihood, method, members, steps)

    def _hidden_sizes(self, by_default: tuple[int, ...]) -> tuple[int, ...]:
        sizes: Any = self.hidden_layer_sizes
        if is_auto(sizes):
            return by_default
        several = isinstance(sizes, Iterable) and not isinstance(sizes, str)
        return tuple(
            as_count("hidden layer size", size, "Try (50,).")
            for size in (sizes if several else (sizes,))
        )

    def _number_of_members(self) -> int | None:
        """Return the number that was asked for, if any."""
        if isinstance(self.members, str):
            require_choice(self.members, ("auto",), "members")
            return None
        return as_count(
            "members", self.members, "1 is a single posterior, 'auto' the usual number."
        )

    def _activation(self, by_default: str) -> str:
        return by_default if is_auto(self.activation) else self.activation

    def _rows(self, X: Table) -> np.ndarray:
        """Return X, checked and standardised."""
        check_is_fitted(self)
        return self.x_scaler_.transform(self._numbers(X, reset=False)[0])

    def _numbers(self, X: Table, *y: Table, reset: bool, **options: Any) -> list[np.ndarray]:
        """Return X, checked, as complete numbers, one column for each input of the network; and y if it is given."""
        options |= {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        has_categories = categorical_columns(X) if reset else self.columns_.categorical
        if has_categories:
            if not reset:
                self.columns_.require_frame(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            self.columns_ = Columns.of(X) if reset else self.columns_
            check: Any = check_X_y if y else check_array
            checked = check(self.columns_.transform(X), *y, estimator=self, **options)
            return list(checked) if y else [checked]
        checked: Any = validate_data(self, X, *y, reset=reset, **options)
        numbers, *rest = checked if y else [checked]
        self.columns_ = Columns.of(numbers) if reset else self.columns_
        return [self.columns_.transform(numbers), *rest]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _predicted(self, compute: Callable[..., Any], *tables: np.ndarray) -> Any:
        """Return `compute(predictive, *rows, key=…, draws=…)` of all rows, in double precision.

        It is computed block by block, with the same networks at every call.
        """
        predictive, number = self.predictive_, len(tables[0])
        key = jax.random.fold_in(jax.random.key(self._seed), 2**31 - 1)
        draws = self.draws if predictive.available_draws is None else None
        blocks = [
            compute(predictive, *block, key=key, draws=draws)
            for block in row_blocks(tables, ROWS if number <= MANY_ROWS else MANY_ROWS)
        ]
        return jax.tree.map(lambda *of: np.concatenate(of)[:number].astype(np.float64), *blocks)

    def _sampled(self, X: Table, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw the encoded y of n networks, (n, rows, …); particles are used again if there are fewer."""
        rows, n_samples = self._rows(X), as_count("n_samples", n_samples, "Try 1.")
        predictive, key = self.predictive_, jax.random.key(seed_of(random_state))
        at_once = predictive.available_draws or n_samples
        keys = jax.random.split(key, -(-n_samples // at_once))
        parts = [predictive.sample(rows, at_once, key=each) for each in keys]
        return np.concatenate([np.asarray(part) for part in parts])[:n_samples]

    def _log_prob(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return log p(y | x, data) of each row, for the encoded y."""
        tables = self.x_scaler_.transform(X), self._encoded(y)
        return self._predicted(Predictive.log_prob, *tables)


def is_auto(option: Any) -> bool:
    """Return whether the estimator is to choose."""
    return isinstance(option, str) and option == "auto"


def as_count(name: str, value: Any, remedy: str) -> int:
    """Return an integer ≥ 1, also from NumPy, as Python's."""
    count = value.item() if isinstance(value, np.integer) else value
    require_count(name, count, remedy)
    return count


def seed_of(random_state: Any) -> int:
    """Return the seed that scikit-learn's `random_state` stands for."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
