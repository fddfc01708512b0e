r"""Likelihoods: p(y | outputs of the network).

`Likelihood` is the base class, for those below and for your own. y has m columns, (b, m), for every likelihood but
`Categorical`, whose y are labels, (b,). A likelihood may have parameters of its own (log σ of a Gaussian). They are
appended to the weights, have a prior, and are inferred together with the weights.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jax.scipy.special import gammaincc, xlogy
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from gpvi._inputs import as_array, as_numbers, require_finite
from gpvi.errors import InputError, NotAvailableError
from gpvi.specs import require_positive, resolve, spec

Outputs = Float[Array, "b o"]
Extra = Float[Array, " e"]


class Likelihood(ABC):
    """Base class of likelihoods; inherit from it, or from a likelihood that is close, to write your own.

    A subclass must define `log_prob` and `moments`. `sample` and `cdf` are needed for samples and quantiles of y;
    everything else has a default. Decorate the class with `gpvi.specs.spec`: it becomes a frozen dataclass that can be
    hashed, compared, and saved with the predictions.

    `log_prob`, `moments`, `sample`, `cdf` and `entropy` are traced by JAX. They see one network and b rows at a time:
    `outputs` is (b, o), and `extra`, (e,), holds the likelihood's own parameters, one for each name in `extra(o)`.

    Attributes
    ----------
    discrete
        Whether y takes integer values only; its quantiles are then integers. False by default.
    classifies
        Whether y is a class: predictions then have an entropy, and no quantiles. False by default.

    Examples
    --------
    >>> @gpvi.specs.spec
    ... class Exponential(gpvi.bnn.Likelihood):
    ...     def log_prob(self, outputs, extra, y):
    ...         return (outputs - y * jnp.exp(outputs)).sum(1)
    ...
    ...     def moments(self, outputs, extra):
    ...         return jnp.exp(-outputs), jnp.exp(-2 * outputs)
    >>> network, X = gpvi.bnn.mlp((2, 4, 1)), np.ones((10, 2))
    >>> gpvi.bnn.target(network, Exponential(), "fan-in", X, np.ones(10)).dim
    17
    """

    discrete: ClassVar[bool] = False
    classifies: ClassVar[bool] = False

    @abstractmethod
    def log_prob(self, outputs: Outputs, extra: Extra, y: Array) -> Float[Array, " b"]:
        """Return log p(y | outputs) of each row, (b,): summed over columns, not over rows.

        `y` holds b rows of what `prepare` returns.
        """

    @abstractmethod
    def moments(self, outputs: Outputs, extra: Extra) -> tuple[Array, Array]:
        """Return the mean and variance of y, (b, m) each; for classes those of their indicators, (b, C)."""

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray) -> Array:
        """Draw one y for each row, (b, m), or labels, (b,). Needed by `Predictive.sample`."""
        raise NotAvailableError(
            f"{type(self).__name__} has no sample, so y cannot be drawn. Define sample(outputs, extra, *, key)."
        )

    def cdf(self, outputs: Outputs, extra: Extra, y: Array) -> Array:
        """Return P(Y ≤ y) for each column. Needed by quantiles and intervals.

        `y` is (…, b, m), with further axes in front, and so is the result.
        """
        name = type(self).__name__
        if self.classifies:
            raise NotAvailableError(
                f"{name} is over classes, which have no order, so there are no quantiles or intervals. Use the "
                "probabilities, Predictive.predict(…).mean."
            )
        raise NotAvailableError(
            f"{name} has no cdf, so there are no quantiles or intervals. Define cdf(outputs, extra, y) → P(Y ≤ y), or "
            "take quantiles of Predictive.sample(…)."
        )

    def columns(self, outputs: int) -> int:
        """Return m, the number of columns of y for o outputs of the network; o by default."""
        return outputs

    def classes(self, outputs: int) -> int | None:
        """Return the number of classes if each row of y is one class label; None, the default, otherwise.

        Labels are 0 … C − 1. Only with a number can class probabilities be temperature-scaled.
        """
        return None

    def extra(self, outputs: int) -> tuple[str, ...]:
        """Return the names of the e parameters that are not weights; none by default."""
        return ()

    def start(self, outputs: int) -> Extra:
        """Return where training starts those parameters, (e,); at zero by default."""
        return jnp.zeros(len(self.extra(outputs)))

    def log_prior(self, extra: Extra) -> Scalar:
        """Return the log prior density of those parameters, a scalar; 0 by default."""
        return jnp.zeros((), extra.dtype)

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """Check y as the user passed it, and return the array, with n rows, that `log_prob` takes.

        By default real numbers, (n, m).
        """
        return _as_columns(y, self.columns(outputs), type(self).__name__)

    def entropy(self, mean: Array) -> Float[Array, " b"]:
        """Return the entropy of y in nats, (b,), given the mean that `moments` defines. Needed if `classifies`.

        It is called with the mean of a single network and with the average over networks. By default `mean` holds the
        probabilities of all classes, (b, C).
        """
        if not self.classifies:
            raise NotAvailableError(
                f"the predictive entropy of {type(self).__name__} has no closed form. Use the variance and its parts."
            )
        return -xlogy(mean, mean).sum(1)


class NoisePrior(ABC):
    """Base class of priors of the noise σ of `Gaussian`; inherit from it, and use `gpvi.specs.spec`.

    Examples
    --------
    >>> @gpvi.specs.spec
    ... class ExponentialNoise(gpvi.bnn.NoisePrior):
    ...     def log_prob(self, log_noise):
    ...         return (log_noise - jnp.exp(log_noise)).sum()
    >>> gpvi.bnn.Gaussian(noise=ExponentialNoise()).extra(1)
    ('log_noise[0]',)
    """

    @abstractmethod
    def log_prob(self, log_noise: Extra) -> Scalar:
        """Return the log-density of log σ (which is that of σ, times σ), summed over columns of y."""


@spec
class HalfCauchy(NoisePrior):
    """Prior σ ~ half-Cauchy(scale): weakly informative, with heavy tails (Gelman 2006).

    Parameters
    ----------
    scale
        The median of σ, for standardised y.

    Examples
    --------
    >>> gpvi.bnn.Gaussian(noise=gpvi.bnn.HalfCauchy(0.5))
    Gaussian(noise=HalfCauchy(scale=0.5), start_noise=0.3)
    """

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale of the noise prior", self.scale, "Try 1.0 for standardised data.")

    def log_prob(self, log_noise: Extra) -> Scalar:
        log_ratio = log_noise - jnp.log(self.scale)
        return (jnp.log(2 / jnp.pi) + log_ratio - jnp.logaddexp(0.0, 2 * log_ratio)).sum()


@spec
class LogNormal(NoisePrior):
    """Prior log σ ~ N(log median, spread²).

    Parameters
    ----------
    median
        The median of σ, for standardised y.
    spread
        The standard deviation of log σ.

    Examples
    --------
    >>> gpvi.bnn.Gaussian(noise=gpvi.bnn.LogNormal(0.1, 0.5))
    Gaussian(noise=LogNormal(median=0.1, spread=0.5), start_noise=0.3)
    """

    median: float = 0.3
    spread: float = 1.0

    def __post_init__(self):
        require_positive("median of the noise prior", self.median, "Try 0.3.")
        require_positive("spread of the noise prior", self.spread, "Try 1.0.")

    def log_prob(self, log_noise: Extra) -> Scalar:
        return stats.norm.logpdf(log_noise, jnp.log(self.median), self.spread).sum()


@spec
class Flat(NoisePrior):
    """Prior p(σ) ∝ 1/σ, flat in log σ. The posterior is improper if the network can fit the data without error.

    Examples
    --------
    >>> gpvi.bnn.Gaussian(noise=gpvi.bnn.Flat())
    Gaussian(noise=Flat(), start_noise=0.3)
    """

    def log_prob(self, log_noise: Extra) -> Scalar:
        return jnp.zeros((), log_noise.dtype)


_NOISE_PRIORS = {"learned": HalfCauchy, "sampled": LogNormal}


@spec
class Gaussian(Likelihood):
    """y ~ N(output, σ²), column by column.

    Parameters
    ----------
    noise
        σ, if it is known. Otherwise its prior: log σ of each column is then inferred together with the weights.
        "learned" is `HalfCauchy()`, "sampled" is `LogNormal()`, both for standardised y.
    start_noise
        Where training starts σ, if it is inferred.

    Examples
    --------
    >>> gpvi.bnn.Gaussian(noise=0.1).extra(2)
    ()
    >>> gpvi.bnn.Gaussian().extra(2)
    ('log_noise[0]', 'log_noise[1]')
    """

    noise: float | str | NoisePrior = "learned"
    start_noise: float = 0.3

    def __post_init__(self):
        if isinstance(self.noise, int | float):
            require_positive("noise (σ)", self.noise, "Give a standard deviation, or 'learned'.")
        else:
            self._prior()
        require_positive("start_noise", self.start_noise, "Try 0.3.")

    def _prior(self) -> NoisePrior | None:
        if isinstance(self.noise, int | float):
            return None
        return resolve(self.noise, _NOISE_PRIORS, "noise", NoisePrior | float)

    def _noise(self, extra: Extra) -> Array:
        return jnp.asarray(self.noise) if isinstance(self.noise, int | float) else jnp.exp(extra)

    def extra(self, outputs: int) -> tuple[str, ...]:
        if self._prior() is None:
            return ()
        return tuple(f"log_noise[{column}]" for column in range(outputs))

    def start(self, outputs: int) -> Extra:
        return jnp.full(len(self.extra(outputs)), jnp.log(self.start_noise))

    def log_prior(self, extra: Extra) -> Scalar:
        prior = self._prior()
        return jnp.zeros((), extra.dtype) if prior is None else prior.log_prob(extra)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        return stats.norm.logpdf(y, outputs, self._noise(extra)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        return outputs, jnp.broadcast_to(self._noise(extra) ** 2, outputs.shape)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        return outputs + self._noise(extra) * jax.random.normal(key, outputs.shape, outputs.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        return stats.norm.cdf(y, outputs, self._noise(extra))


@spec
class Heteroscedastic(Likelihood):
    """y ~ N(mean, σ²) with noise that depends on x: the network has two outputs for each column of y.

    The first half of the outputs are the means; σ = floor + softplus(the second half).

    Parameters
    ----------
    floor
        The least σ.

    Examples
    --------
    >>> gpvi.bnn.Heteroscedastic().columns(outputs=4)
    2
    """

    floor: float = 1e-3

    def __post_init__(self):
        require_positive("floor of σ", self.floor, "It keeps σ from vanishing: try 1e-3.")

    def columns(self, outputs: int) -> int:
        if outputs % 2:
            raise InputError(
                f"Heteroscedastic needs a mean and a scale for each column of y, but the network has {outputs} outputs."
            )
        return outputs // 2

    def _mean_and_noise(self, outputs: Outputs) -> tuple[Array, Array]:
        mean, raw = jnp.split(outputs, 2, 1)
        return mean, self.floor + jax.nn.softplus(raw)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        return stats.norm.logpdf(y, *self._mean_and_noise(outputs)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        mean, noise = self._mean_and_noise(outputs)
        return mean, noise**2

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        mean, noise = self._mean_and_noise(outputs)
        return mean + noise * jax.random.normal(key, mean.shape, mean.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        return stats.norm.cdf(y, *self._mean_and_noise(outputs))


@spec
class Categorical(Likelihood):
    """y is one of C classes, labelled 0 … C − 1, with probabilities softmax(outputs).

    Examples
    --------
    >>> mean, variance = gpvi.bnn.Categorical().moments(jnp.zeros((1, 4)), jnp.zeros(0))
    >>> mean[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    discrete: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def columns(self, outputs: int) -> int:
        return 1

    def classes(self, outputs: int) -> int:
        return outputs

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        labels = as_array(y, "y")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise InputError(
                f"y has shape {labels.shape}; Categorical needs labels, (n,). Of one-hot rows, take y.argmax(1)."
            )
        if outputs < 2:
            raise InputError(
                "Categorical needs one output for each class, at least two. For one output use Bernoulli()."
            )
        return _as_integers(labels, "Categorical", most=outputs - 1).astype(np.int32)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Int[Array, " b"]):
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]

    def moments(self, outputs: Outputs, extra: Extra):
        p = jax.nn.softmax(outputs)
        return p, p * (1 - p)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        return jax.random.categorical(key, outputs)


@spec
class Bernoulli(Likelihood):
    """y is 0 or 1, and 1 with probability sigmoid(output), column by column.

    The predictive entropy is summed over columns. For several columns it is an upper bound of their joint entropy.

    Examples
    --------
    >>> mean, variance = gpvi.bnn.Bernoulli().moments(jnp.zeros((1, 1)), jnp.zeros(0))
    >>> mean.item(), variance.item()
    (0.5, 0.25)
    """

    discrete: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def classes(self, outputs: int) -> int | None:
        return 2 if outputs == 1 else None

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        return _as_integers(_as_columns(y, outputs, "Bernoulli"), "Bernoulli", most=1)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        return (y * outputs - jax.nn.softplus(outputs)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        p = jax.nn.sigmoid(outputs)
        return p, p * (1 - p)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(outputs.dtype)

    def entropy(self, mean: Float[Array, "b m"]):
        return -(xlogy(mean, mean) + xlogy(1 - mean, 1 - mean)).sum(1)


@spec
class Poisson(Likelihood):
    """y is a count, 0, 1, 2, …, with rate exp(output), column by column.

    Examples
    --------
    >>> mean, variance = gpvi.bnn.Poisson().moments(jnp.zeros((1, 1)), jnp.zeros(0))
    >>> mean.item(), variance.item()
    (1.0, 1.0)
    """

    discrete: ClassVar[bool] = True

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        return _as_integers(_as_columns(y, outputs, "Poisson"), "Poisson", most=None)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        return (y * outputs - jnp.exp(outputs) - jax.lax.lgamma(y + 1)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        return jnp.exp(outputs), jnp.exp(outputs)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        return jax.random.poisson(key, jnp.exp(outputs)).astype(outputs.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        """Return Q(⌊y⌋ + 1, rate), the regularised upper incomplete gamma function; 0 below zero."""
        count = jnp.maximum(jnp.floor(y), 0.0)
        return jnp.where(y < 0, 0.0, gammaincc(count + 1, jnp.exp(outputs)))


_SHORTHANDS = {
    "gaussian": Gaussian,
    "heteroscedastic": Heteroscedastic,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
}


def as_likelihood(value: Any) -> Likelihood:
    """Return a likelihood, given itself or its class name in lower case."""
    return resolve(value, _SHORTHANDS, "likelihood", Likelihood)


def _as_columns(y: Any, columns: int, kind: str) -> np.ndarray:
    """Return y as finite numbers of shape (n, columns)."""
    values = as_numbers(y, "y").astype(np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != columns:
        raise InputError(
            f"y has shape {np.shape(y)}, but {kind} with this network has {columns} column(s): give (n, {columns})"
            f"{' or (n,)' if columns == 1 else ''}, or a network with other outputs."
        )
    require_finite(values, "y")
    return values


def _as_integers(values: np.ndarray, kind: str, most: int | None) -> np.ndarray:
    """Return the values, unless one is not an integer from 0 to `most`."""
    if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
        raise InputError(f"y holds {values.dtype}; {kind} needs whole numbers.")
    bad = ~np.isfinite(values) | (values < 0) | (values != np.floor(values))
    bad |= False if most is None else values > most
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        limits = "≥ 0" if most is None else f"from 0 to {most}"
        raise InputError(
            f"y holds {values[where]} in row {int(where[0])}; {kind} with this network needs whole numbers {limits}."
        )
    return values
