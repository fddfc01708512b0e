r"""From a network, a likelihood, a prior and data to a target.

    log p(w | X, y) = ( Σ_i log p(y_i | f_w(x_i)) + log p(w) ) / T + const,

over the weights w and the likelihood's own coordinates, in mini-batch form: `gpvi.Target` scales a batch by N/B.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Scalar

from gpvi._inputs import as_numbers, cast_in_range, require_finite
from gpvi.bnn.generators import LARGE, small
from gpvi.bnn.likelihoods import Likelihood, as_likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.priors import Prior, as_prior
from gpvi.errors import InputError
from gpvi.methods.base import Suggestion
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target

ROWS = 4_096
"""More data than this go through the network in pieces, so that the whole data never meet its widest layer at once."""


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
    """The posterior of a network's weights given data.

    Parameters
    ----------
    network: see `Network`.
    likelihood: of y given the outputs: "gaussian", "categorical", … or an object such as `Gaussian(noise=0.1)`.
    prior: of the weights: "normal", "fan-in", "sparse", "mixture" or an object.
    X, y: the data; their first axes have one length N. X, or both, may be a `gpvi.Stream` of rows that stay on disk.
        X reaches the network as floats; as int32 where it is whole and the network takes nothing else (token ids).
    temperature: T; 1 is the posterior, less a cold one.
    dtype: float32 or float64; follows JAX's x64 setting by default.

    Training starts at a draw of the network's own initialisation, and each particle at another. `gpvi.bnn.fit` does
    more for good predictions.
    """
    require_network(network)
    likelihood, prior = as_likelihood(likelihood), as_prior(prior)
    kind = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    inputs = checked_inputs(X.rows(np.zeros(1, int)) if isinstance(X, Stream) else X, network)
    outputs = network.outputs(inputs)

    def cast(*both: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            cast_in_range(a, kind, name) if np.issubdtype(a.dtype, np.floating) else a
            for name, a in zip(("X", "y"), both, strict=True)
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
        if len(inputs) != len(values):
            raise InputError(f"X has {len(inputs)} rows and y {len(values)}; they must agree.")
        data = cast(inputs, values)
    extra = likelihood.extra(outputs)
    _, some_y = data.rows(np.zeros(1, int)) if isinstance(data, Stream) else data
    _require_terms(likelihood, outputs, len(extra), some_y)
    return Target(
        log_likelihood=LogLikelihood(network, likelihood),
        log_prior=LogPrior(network.seeing(inputs), likelihood, prior),
        data=data,
        dim=network.size + len(extra),
        temperature=temperature,
        initial=Initial(network, likelihood, outputs),
        dtype=dtype,
        names=Naming(network, tuple(extra)),
    )


@dataclasses.dataclass(frozen=True)
class Naming:
    """The names of the weights and of the likelihood's own coordinates, made when they are asked for."""

    network: Network
    extra: tuple[str, ...]

    def __call__(self) -> tuple[str, ...]:
        return (*self.network.names, *self.extra)


def require_network(network: Any) -> None:
    """Refuse what is no `Network`, such as a module that is still to be wrapped."""
    if not isinstance(network, Network):
        raise InputError(
            f"network is {type(network).__name__}; make it with gpvi.bnn.mlp, Network.from_equinox, from_flax or "
            "from_functions."
        )


def checked_inputs(X: Any, network: Network) -> np.ndarray:
    """X as finite floats with at least two axes, or as integers where the network takes nothing else."""
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
    """One row of X, where `target` made this posterior."""
    if not isinstance(posterior.naming, Naming):
        return None
    return np.asarray(posterior.batch(np.zeros(1, int))[0])


def _require_terms(likelihood: Likelihood, outputs: int, extra: int, y: np.ndarray) -> None:
    """Refuse a likelihood whose `log_prob` gives anything but one number for each datum."""
    rows, kind = 3, jnp.result_type(float)
    of_y = kind if np.issubdtype(y.dtype, np.floating) else y.dtype
    shapes = ((rows, outputs), kind), ((extra,), kind), ((rows, *y.shape[1:]), of_y)
    found = jax.eval_shape(
        likelihood.log_prob, *(jax.ShapeDtypeStruct(shape, of) for shape, of in shapes)
    )
    if found.shape != (rows,):
        raise InputError(
            f"{type(likelihood).__name__}.log_prob gives shape {found.shape} for {rows} data; it must give ({rows},), "
            "one number for each datum: sum over columns, .sum(1), and not over data."
        )


class LogLikelihood(eqx.Module):
    """(x, batch) ↦ log p(y_i | x) of each datum."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"], batch: tuple[Array, Array]) -> Array:
        flat, extra = x[: self.network.size], x[self.network.size :]

        def terms(piece: tuple[Array, Array]) -> Float[Array, " b"]:
            inputs, y = piece
            return self.likelihood.log_prob(self.network.apply(flat, inputs), extra, y)

        whole, rest = divmod(len(batch[0]), ROWS)
        if whole == 0 or (whole, rest) == (1, 0):
            return terms(batch)
        pieces = jax.tree.map(lambda a: a[: whole * ROWS].reshape(whole, ROWS, *a.shape[1:]), batch)
        found = jax.lax.map(jax.checkpoint(terms), pieces).ravel()
        if rest == 0:
            return found
        return jnp.concatenate([found, terms(jax.tree.map(lambda a: a[whole * ROWS :], batch))])

    def suggestion(self, dim: int) -> Suggestion:
        """GPVI for networks, and where fitted networks to start from pay, who trains with them."""
        if dim >= LARGE or len(self.network.layers) == 1:
            return Suggestion(small(dim))
        return Suggestion(
            small(dim),
            "one generator from a random network may settle where noise explains what the network should: gpvi.bnn.fit "
            "starts several at networks that fit the data already",
        )

    def local(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: tuple[Array, Array],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, " b"]:
        """log p(y_i | x_i), an x_i ~ N(mean, scale²) for each datum; the likelihood's coordinates are drawn once."""
        size, (inputs, y) = self.network.size, batch
        network_key, extra_key = jax.random.split(key)
        noise = jax.random.normal(extra_key, mean[size:].shape, mean.dtype)
        outputs = self.network.apply_local(mean[:size], scale[:size], inputs, key=network_key)
        return self.likelihood.log_prob(outputs, mean[size:] + scale[size:] * noise, y)


class LogPrior(eqx.Module):
    """x ↦ log p(w) + log p(extra coordinates)."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    prior: Prior = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Scalar:
        flat, extra = x[: self.network.size], x[self.network.size :]
        return self.prior.log_prob(flat, self.network) + self.likelihood.log_prior(extra)


class Initial(eqx.Module):
    """key ↦ the network's own initialisation, and where the likelihood's coordinates start."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return jnp.concatenate(
            [_initialised(self.network, key), self.likelihood.start(self.outputs)]
        )


@eqx.filter_jit
def _initialised(network: Network, key: PRNGKeyArray) -> Float[Array, " w"]:
    """One program for all targets of a network, whatever their likelihoods."""
    return network.init(key)
