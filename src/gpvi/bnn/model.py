r"""The posterior of a network's weights as a target.

    log p(w | X, y) = ( Σ_i log p(y_i | f_w(x_i)) + log p(w) ) / T + const,

where w are the weights and the likelihood's own parameters. The sum may run over a mini-batch, which `gpvi.Target`
scales by N/B.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Scalar

from gpvi._inputs import as_numbers, cast_in_range, require_finite
from gpvi.bnn.generators import LARGE, default_gpvi
from gpvi.bnn.likelihoods import Likelihood, as_likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.priors import Prior, as_prior
from gpvi.errors import InputError
from gpvi.methods.base import Suggestion
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target

ROWS = 4_096
"""The most rows that go through the network at once, to bound the memory of its widest layer."""


def target(
    network: Network,
    likelihood: Likelihood | str,
    prior: Prior | str,
    X: Any,
    y: Any,
    *,
    temperature: float = 1.0,
    dtype: DTypeLike | None = None,
) -> Target:
    """Make the posterior of a network's weights given data, as a target for `gpvi.fit`.

    Training starts each particle, or the generator, at a draw of the network's own initialisation. `gpvi.bnn.fit` does
    more for good predictions.

    Parameters
    ----------
    network
        The network.
    likelihood
        The likelihood of y given the outputs: "gaussian", "heteroscedastic", "categorical", "bernoulli", "poisson", or
        an object such as `Gaussian(noise=0.1)`.
    prior
        The prior of the weights: "normal", "fan-in", "sparse", "mixture", or an object such as `FanIn(2.0, 2.0)`.
    X, y
        The data, N rows each. X, or both, may be a `gpvi.Stream` of rows that stay on disk. X reaches the network as
        floats; as int32 if it holds integers and the network fails on floats (token ids).
    temperature
        T; 1 is the posterior, less than 1 a cold posterior.
    dtype
        float32 or float64; follows JAX's x64 setting by default.

    Returns
    -------
    gpvi.Target
        The target, over the weights and the likelihood's own parameters.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used; raised before anything is compiled.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 4, 1))
    >>> target = gpvi.bnn.target(network, "gaussian", "fan-in", np.ones((10, 2)), np.ones(10))
    >>> target.dim, target.names[-1]
    (18, 'log_noise[0]')
    """
    require_network(network)
    likelihood, prior = as_likelihood(likelihood), as_prior(prior)
    kind = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    inputs = checked_inputs(X.rows(np.zeros(1, int)) if isinstance(X, Stream) else X, network)
    outputs = network.outputs(inputs)

    def cast(*pair: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            cast_in_range(a, kind, name) if np.issubdtype(a.dtype, np.floating) else a
            for name, a in zip(("X", "y"), pair, strict=True)
        )

    if isinstance(X, Stream):
        data = X.paired_with(
            y if isinstance(y, Stream) else likelihood.prepare(y, outputs),
            lambda pair: cast(
                checked_inputs(pair[0], network), likelihood.prepare(pair[1], outputs)
            ),
        )
    else:
        values = likelihood.prepare(y, outputs)
        require_same_rows(inputs, values)
        data = cast(inputs, values)
    extra = likelihood.extra(outputs)
    _, example_y = data.rows(np.zeros(1, int)) if isinstance(data, Stream) else data
    _require_one_term_per_row(likelihood, outputs, len(extra), example_y)
    return Target(
        log_likelihood=LogLikelihood(network, likelihood),
        log_prior=LogPrior(network.for_inputs(inputs), likelihood, prior),
        data=data,
        dim=network.size + len(extra),
        temperature=temperature,
        initial=Initial(network, likelihood, outputs),
        dtype=dtype,
        names=Naming(network, tuple(extra)),
    )


@dataclasses.dataclass(frozen=True)
class Naming:
    """The names of all coordinates (weights, then the likelihood's own parameters), made on request."""

    network: Network
    extra: tuple[str, ...]

    def __call__(self) -> tuple[str, ...]:
        return (*self.network.names, *self.extra)


def require_network(network: Any) -> None:
    """Refuse anything but a `Network`, such as an Equinox module that is not wrapped."""
    if not isinstance(network, Network):
        raise InputError(
            f"network is {type(network).__name__}; make it with gpvi.bnn.mlp, Network.from_equinox, from_flax or "
            "from_functions."
        )


def require_same_rows(X: np.ndarray, y: np.ndarray) -> None:
    """Refuse X and y of different lengths."""
    if len(X) != len(y):
        raise InputError(f"X has {len(X)} rows and y {len(y)}; they must agree.")


def checked_inputs(X: Any, network: Network) -> np.ndarray:
    """Return X as finite floats with at least two axes, or as int32 if the network fails on floats."""
    inputs = as_numbers(X, "X")
    if inputs.ndim < 2 or inputs.size == 0:
        raise InputError(
            f"X has shape {inputs.shape}; pass (n, features), or (n, …) for images. Of a single feature, X[:, None]."
        )
    if network.input_dtype(inputs).kind == "i":
        return cast_in_range(inputs, np.dtype(np.int32), "X")
    inputs = inputs if inputs.dtype.kind not in "biu" else inputs.astype(np.float64)
    require_finite(inputs, "X")
    return inputs


def inputs_of(posterior: Target) -> np.ndarray | None:
    """Return one row of X, if `gpvi.bnn.target` made this target; None otherwise."""
    if not isinstance(posterior.naming, Naming):
        return None
    return np.asarray(posterior.batch(np.zeros(1, int))[0])


def _require_one_term_per_row(
    likelihood: Likelihood, outputs: int, extra: int, y: np.ndarray
) -> None:
    """Refuse a likelihood whose `log_prob` returns anything but one number for each row."""
    rows, kind = 3, jnp.result_type(float)
    of_y = kind if np.issubdtype(y.dtype, np.floating) else y.dtype
    shapes = ((rows, outputs), kind), ((extra,), kind), ((rows, *y.shape[1:]), of_y)
    result = jax.eval_shape(
        likelihood.log_prob, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
    )
    if result.shape != (rows,):
        raise InputError(
            f"{type(likelihood).__name__}.log_prob gives shape {result.shape} for {rows} rows; it must give ({rows},), "
            "one number for each row: sum over columns, .sum(1), and not over rows."
        )


class LogLikelihood(eqx.Module):
    """The log-likelihood: (x, batch) ↦ log p(y_i | x) of each row, for coordinates x of the target."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"], batch: tuple[Array, Array]) -> Array:
        flat, extra = x[: self.network.size], x[self.network.size :]

        def terms(piece: tuple[Array, Array]) -> Float[Array, " b"]:
            inputs, y = piece
            return self.likelihood.log_prob(self.network.apply(flat, inputs), extra, y)

        full, rest = divmod(len(batch[0]), ROWS)
        if full == 0 or (full, rest) == (1, 0):
            return terms(batch)
        pieces = jax.tree.map(lambda a: a[: full * ROWS].reshape(full, ROWS, *a.shape[1:]), batch)
        of_pieces = jax.lax.map(jax.checkpoint(terms), pieces).ravel()
        if rest == 0:
            return of_pieces
        last = terms(jax.tree.map(lambda a: a[full * ROWS :], batch))
        return jnp.concatenate([of_pieces, last])

    def suggestion(self, dim: int) -> Suggestion:
        """Suggest GPVI for networks; if it pays to start from fitted networks, point to `gpvi.bnn.fit`."""
        if dim >= LARGE or len(self.network.layers) == 1:
            return Suggestion(default_gpvi(dim))
        return Suggestion(
            default_gpvi(dim),
            "a single generator that starts at a random network may attribute the signal to noise: gpvi.bnn.fit starts "
            "several at networks that fit the data already",
        )

    def local(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: tuple[Array, Array],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, " b"]:
        """Return log p(y_i | x_i) with a separate x_i ~ N(mean, scale²) for each row (local reparameterisation).

        The likelihood's own parameters are drawn once.
        """
        size, (inputs, y) = self.network.size, batch
        network_key, extra_key = jax.random.split(key)
        noise = jax.random.normal(extra_key, mean[size:].shape, mean.dtype)
        outputs = self.network.apply_local(mean[:size], scale[:size], inputs, key=network_key)
        return self.likelihood.log_prob(outputs, mean[size:] + scale[size:] * noise, y)


class LogPrior(eqx.Module):
    """The log prior: x ↦ log p(w) + log p(the likelihood's own parameters)."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    prior: Prior = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Scalar:
        flat, extra = x[: self.network.size], x[self.network.size :]
        return self.prior.log_prob(flat, self.network) + self.likelihood.log_prior(extra)


class Initial(eqx.Module):
    """Starting points: key ↦ the network's own initialisation, and the start of the likelihood's parameters."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return jnp.concatenate(
            [_initialised(self.network, key), self.likelihood.start(self.outputs)]
        )


@eqx.filter_jit
def _initialised(network: Network, key: PRNGKeyArray) -> Float[Array, " w"]:
    """Draw weights, by one program for all targets of a network, whatever their likelihoods."""
    return network.init(key)
