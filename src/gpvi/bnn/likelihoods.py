r"""Likelihoods: p(y | outputs of the network), one datum at a time.

y has m columns, (b, m), for everything but `Categorical`, whose y are labels, (b,). A likelihood may have coordinates
of its own (log σ of a Gaussian), appended to the weights: they are drawn, with a prior, like any weight.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

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


@runtime_checkable
class Likelihood(Protocol):
    """The contract of every likelihood: all that a class of your own must have.

    The class must be hashable, as a frozen dataclass of numbers is; it is least work to inherit from one that is
    there, `bnn.Gaussian` say, and to replace what differs. Methods that compute take arrays of JAX, are traced, and
    see all columns of b data and one network at a time: `outputs`, (b, o), and `extra`, (e,), the likelihood's own
    coordinates, as many as it has names.
    """

    discrete: ClassVar[bool]
    """Whether y takes whole values only; quantiles are then whole."""
    classifies: ClassVar[bool]
    """Whether y is a class: predictions then have an entropy, by the last two methods, and no quantiles."""

    def columns(self, outputs: int) -> int:
        """m, the columns of y for o outputs of the network."""
        ...

    def extra(self, outputs: int) -> tuple[str, ...]:
        """The names of the e coordinates that are not weights, () where there are none."""
        ...

    def start(self, outputs: int) -> Extra:
        """Where those coordinates start, (e,)."""
        ...

    def log_prior(self, extra: Extra) -> Scalar:
        """Their log-density, a scalar; 0 where there are none."""
        ...

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """y as the user gave it, checked, and as an array with n rows that `log_prob` takes; (n, m) as a rule."""
        ...

    def log_prob(self, outputs: Outputs, extra: Extra, y: Array) -> Float[Array, " b"]:
        """log p(y | outputs) of each datum, (b,): summed over columns, not over data; y is b rows of `prepare`."""
        ...

    def moments(self, outputs: Outputs, extra: Extra) -> tuple[Array, Array]:
        """Mean and variance of y, (b, m) each; of the indicators for classes, (b, C)."""
        ...

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray) -> Array:
        """One y for each datum, (b, m), or labels, (b,)."""
        ...

    def cdf(self, outputs: Outputs, extra: Extra, y: Array) -> Array:
        """P(Y ≤ y), column by column, for quantiles: y, (…, b, m), has further axes in front, and so has the result."""
        ...

    def entropy(self, outputs: Outputs) -> Float[Array, " b"]:
        """The entropy of y given these outputs, (b,); asked where `classifies`."""
        ...

    def mixture_entropy(self, mean: Array) -> Float[Array, " b"]:
        """The entropy of y whose mean, as of `moments`, is averaged over networks, (b,); asked where `classifies`."""
        ...


class _Plain:
    """What holds for most: one output for each column, and no coordinates of its own."""

    discrete: ClassVar[bool] = False
    classifies: ClassVar[bool] = False

    def columns(self, outputs: int) -> int:
        """One for each output."""
        return outputs

    def extra(self, outputs: int) -> tuple[str, ...]:
        """None."""
        return ()

    def start(self, outputs: int) -> Extra:
        """Empty, or log-scales."""
        return jnp.zeros(0)

    def log_prior(self, extra: Extra) -> Scalar:
        """Nothing to say."""
        return jnp.zeros((), extra.dtype)

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """Real numbers, (n, m)."""
        return _columns(y, self.columns(outputs), type(self).__name__)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array) -> Array:
        """P(Y ≤ y)."""
        name = type(self).__name__
        if self.classifies:
            raise NotAvailableError(
                f"{name} is over classes, which have no order, so there are no quantiles or intervals. Use the "
                "probabilities, Predictive.predict(…).mean."
            )
        raise NotAvailableError(
            f"{name} has no cdf, so there are no quantiles or intervals. Give it one, cdf(outputs, extra, y) → "
            "P(Y ≤ y), or take quantiles of Predictive.sample(…)."
        )

    def entropy(self, outputs: Outputs) -> Float[Array, " b"]:
        """Of y given the outputs."""
        raise NotAvailableError(
            f"the predictive entropy of {type(self).__name__} has no closed form. Use the variance and its split."
        )

    def mixture_entropy(self, mean: Array) -> Float[Array, " b"]:
        """Of y averaged over networks."""
        raise NotAvailableError(
            f"the predictive entropy of {type(self).__name__} has no closed form. Use the variance and its split."
        )


@spec
class HalfCauchy:
    """σ ~ half-Cauchy(scale): heavy-tailed, weakly informative (Gelman 2006)."""

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale of the noise prior", self.scale, "Try 1.0 for standardised data.")

    def log_prob(self, log_noise: Extra) -> Scalar:
        """The density of log σ: that of σ times σ."""
        log_ratio = log_noise - jnp.log(self.scale)
        return (jnp.log(2 / jnp.pi) + log_ratio - jnp.logaddexp(0.0, 2 * log_ratio)).sum()


@spec
class LogNormal:
    """log σ ~ N(log median, spread²)."""

    median: float = 0.3
    spread: float = 1.0

    def __post_init__(self):
        require_positive("median of the noise prior", self.median, "Try 0.3.")
        require_positive("spread of the noise prior", self.spread, "Try 1.0.")

    def log_prob(self, log_noise: Extra) -> Scalar:
        """The density of log σ."""
        return stats.norm.logpdf(log_noise, jnp.log(self.median), self.spread).sum()


@spec
class Flat:
    """p(σ) ∝ 1/σ, flat in log σ; improper where a network can fit the data without error."""

    def log_prob(self, log_noise: Extra) -> Scalar:
        """Constant."""
        return jnp.zeros((), log_noise.dtype)


NoisePrior = HalfCauchy | LogNormal | Flat
_NOISE = {"learned": HalfCauchy, "sampled": LogNormal}


@spec
class Gaussian(_Plain):
    """y ~ N(output, σ²).

    Parameters
    ----------
    noise: σ, fixed; or its prior, and then log σ of each column is a coordinate beside the weights. "learned" is
        `HalfCauchy()`, which lets the data decide, and "sampled" is `LogNormal()`, for standardised y.
    start_noise: where σ starts if it is not fixed.
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
        return resolve(self.noise, _NOISE, "noise", NoisePrior | float)

    def _noise(self, extra: Extra) -> Array:
        return jnp.asarray(self.noise) if isinstance(self.noise, int | float) else jnp.exp(extra)

    def extra(self, outputs: int) -> tuple[str, ...]:
        """log σ of each column, unless it is fixed."""
        if self._prior() is None:
            return ()
        return tuple(f"log_noise[{column}]" for column in range(outputs))

    def start(self, outputs: int) -> Extra:
        """log of `start_noise`."""
        return jnp.full(len(self.extra(outputs)), jnp.log(self.start_noise))

    def log_prior(self, extra: Extra) -> Scalar:
        """That of log σ."""
        prior = self._prior()
        return jnp.zeros((), extra.dtype) if prior is None else prior.log_prob(extra)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        """Summed over columns."""
        return stats.norm.logpdf(y, outputs, self._noise(extra)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        """output and σ²."""
        return outputs, jnp.broadcast_to(self._noise(extra) ** 2, outputs.shape)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        """output + σε."""
        return outputs + self._noise(extra) * jax.random.normal(key, outputs.shape, outputs.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        """Φ((y − output)/σ)."""
        return stats.norm.cdf(y, outputs, self._noise(extra))


@spec
class Heteroscedastic(_Plain):
    """y ~ N(mean, σ²), both outputs of the network: the first half is the mean, σ = floor + softplus(the second)."""

    floor: float = 1e-3

    def __post_init__(self):
        require_positive("floor of σ", self.floor, "It keeps σ from vanishing: try 1e-3.")

    def columns(self, outputs: int) -> int:
        """Half the outputs."""
        if outputs % 2:
            raise InputError(
                f"Heteroscedastic needs a mean and a scale for each column of y, but the network has {outputs} outputs."
            )
        return outputs // 2

    def _split(self, outputs: Outputs) -> tuple[Array, Array]:
        mean, raw = jnp.split(outputs, 2, 1)
        return mean, self.floor + jax.nn.softplus(raw)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        """Summed over columns."""
        return stats.norm.logpdf(y, *self._split(outputs)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        """mean and σ²."""
        mean, noise = self._split(outputs)
        return mean, noise**2

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        """mean + σε."""
        mean, noise = self._split(outputs)
        return mean + noise * jax.random.normal(key, mean.shape, mean.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        """Φ((y − mean)/σ)."""
        return stats.norm.cdf(y, *self._split(outputs))


@spec
class Categorical(_Plain):
    """y is one of C classes, 0…C−1, with probabilities softmax(outputs)."""

    discrete: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def columns(self, outputs: int) -> int:
        """One: a label. Its mean and variance are those of the C indicators."""
        return 1

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """Whole numbers 0…C−1, (n,)."""
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
        return _whole(labels, "Categorical", top=outputs - 1).astype(np.int32)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Int[Array, " b"]):
        """log softmax at the label."""
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]

    def moments(self, outputs: Outputs, extra: Extra):
        """Probabilities p and p(1 − p)."""
        p = jax.nn.softmax(outputs)
        return p, p * (1 - p)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        """Labels."""
        return jax.random.categorical(key, outputs)

    def entropy(self, outputs: Outputs):
        """−Σ p log p."""
        return self.mixture_entropy(jax.nn.softmax(outputs))

    def mixture_entropy(self, mean: Float[Array, "b o"]):
        """−Σ p log p."""
        return -xlogy(mean, mean).sum(1)


@spec
class Bernoulli(_Plain):
    """y ∈ {0, 1} with probability sigmoid(output), column by column."""

    discrete: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """Zeros and ones, (n, m)."""
        return _whole(_columns(y, outputs, "Bernoulli"), "Bernoulli", top=1)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        """Summed over columns."""
        return (y * outputs - jax.nn.softplus(outputs)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        """p and p(1 − p)."""
        p = jax.nn.sigmoid(outputs)
        return p, p * (1 - p)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        """Zeros and ones."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(outputs.dtype)

    def entropy(self, outputs: Outputs):
        """Summed over columns, which are independent given the network."""
        return self.mixture_entropy(jax.nn.sigmoid(outputs))

    def mixture_entropy(self, mean: Float[Array, "b m"]):
        """Summed over columns: of their joint only an upper bound where there are several."""
        return -(xlogy(mean, mean) + xlogy(1 - mean, 1 - mean)).sum(1)


@spec
class Poisson(_Plain):
    """y ∈ {0, 1, 2, …} with rate exp(output)."""

    discrete: ClassVar[bool] = True

    def prepare(self, y: Any, outputs: int) -> np.ndarray:
        """Counts, (n, m)."""
        return _whole(_columns(y, outputs, "Poisson"), "Poisson", top=None)

    def log_prob(self, outputs: Outputs, extra: Extra, y: Float[Array, "b m"]):
        """Summed over columns."""
        return (y * outputs - jnp.exp(outputs) - jax.lax.lgamma(y + 1)).sum(1)

    def moments(self, outputs: Outputs, extra: Extra):
        """The rate is both."""
        return jnp.exp(outputs), jnp.exp(outputs)

    def sample(self, outputs: Outputs, extra: Extra, *, key: PRNGKeyArray):
        """Counts."""
        return jax.random.poisson(key, jnp.exp(outputs)).astype(outputs.dtype)

    def cdf(self, outputs: Outputs, extra: Extra, y: Array):
        """Q(⌊y⌋ + 1, rate); 0 below zero."""
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
    """A likelihood from itself or its shorthand, its name in lower case."""
    return resolve(value, _SHORTHANDS, "likelihood", Likelihood)


def _columns(y: Any, columns: int, kind: str) -> np.ndarray:
    """y as finite numbers of shape (n, columns)."""
    values = as_numbers(y, "y").astype(np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != columns:
        raise InputError(
            f"y has shape {np.shape(y)}, but {kind} with this network has {columns} column(s): give (n, {columns})"
            f"{' or (n,)' if columns == 1 else ''}, or a network with other outputs."
        )
    require_finite(values, "y")
    return values


def _whole(values: np.ndarray, kind: str, top: int | None) -> np.ndarray:
    """Refuse what is not a whole number in 0…top."""
    if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
        raise InputError(f"y holds {values.dtype}; {kind} needs whole numbers.")
    bad = ~np.isfinite(values) | (values < 0) | (values != np.floor(values))
    bad |= False if top is None else values > top
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        limits = "≥ 0" if top is None else f"from 0 to {top}"
        raise InputError(
            f"y holds {values[where]} in row {int(where[0])}; {kind} with this network needs whole numbers {limits}."
        )
    return values
