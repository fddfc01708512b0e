"""What tells a network and a likelihood from others, as a file can hold it: a file holds no code.

Of a network these are the names and shapes of its arrays and its outputs for made-up weights and inputs, which another
activation, another order of the inputs or other constants change; of a likelihood, the mean and variance of y for
those outputs. The data have no part in them but the shape and type of a row.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike, Float

from gpvi._inputs import precision
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.networks.network import Network
from gpvi.errors import InputError

ROWS = 3
TOLERANCE = 1e-3
"""Of the largest number among those that are compared; devices differ by less, activations by more."""
GOLDEN = (5**0.5 - 1) / 2


class Row(NamedTuple):
    """One input of a network."""

    shape: tuple[int, ...]
    whole: bool
    """Whether it holds whole numbers, as token ids are, and not floats."""

    @classmethod
    def of(cls, X: np.ndarray) -> "Row":
        """Of a table of inputs, as `checked_inputs` gives it."""
        return cls(X.shape[1:], X.dtype.kind == "i")

    def require_fits(self, network: Network) -> None:
        """Refuse a network that takes no such inputs; nothing is computed."""
        kind = np.int32 if self.whole else np.float32
        network.outputs(np.broadcast_to(np.zeros((), kind), (ROWS, *self.shape)))

    def inputs(self, dtype: DTypeLike) -> np.ndarray:
        """Made-up inputs of this form: near a standard normal's size, or zeros and ones."""
        values = _spread(ROWS * math.prod(self.shape)).reshape(ROWS, *self.shape)
        return (values > 0).astype(np.int32) if self.whole else (2 * values).astype(dtype)


class Fingerprint(NamedTuple):
    """That of a network and a likelihood."""

    leaves: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: Float[np.ndarray, "b o"]
    mean: Float[np.ndarray, "b m"]
    variance: Float[np.ndarray, "b m"]

    @classmethod
    def of(
        cls, network: Network, likelihood: Likelihood, row: Row, dtype: DTypeLike
    ) -> "Fingerprint":
        """As it is computed in this precision."""
        outputs = _outputs(network, row, dtype)
        return cls(_leaves(network), outputs, *_moments(likelihood, outputs, dtype))

    def require_network(self, network: Network, row: Row, dtype: DTypeLike) -> None:
        """Refuse another network."""
        found, size = _leaves(network), sum(math.prod(shape) for _, shape in self.leaves)
        if network.size != size:
            raise InputError(
                f"the network has {network.size} weights, and the one that was trained had {size}: give that one."
            )
        if found != self.leaves:
            pairs = [*zip(found, self.leaves, strict=False), (found[-1], self.leaves[-1])]
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"the network has an array {here[0]!r} of shape {here[1]} where the one that was trained had "
                f"{there[0]!r} of shape {there[1]}: give that one."
            )
        outputs = _outputs(network, row, dtype)
        if not _agree(outputs, self.outputs):
            raise InputError(
                f"the network has the weights of the one that was trained, but other outputs for the same weights and "
                f"inputs, {_few(outputs)} where that one had {_few(self.outputs)}. Its activation, the order of its "
                "inputs or its constants may have changed: give the one that was trained."
            )

    def require_likelihood(self, likelihood: Likelihood, dtype: DTypeLike) -> None:
        """Refuse another likelihood, or one with other options."""
        mean, variance = _moments(likelihood, self.outputs, dtype)
        if not (_agree(mean, self.mean) and _agree(variance, self.variance)):
            raise InputError(
                f"likelihood is {likelihood!r}, which has another mean or variance of y for the same outputs than the "
                "one that was trained with: give that one, with the same options."
            )


def _leaves(network: Network) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((leaf.name, leaf.shape) for leaf in network.leaves)


def _outputs(network: Network, row: Row, dtype: DTypeLike) -> np.ndarray:
    """Of the network with made-up weights, each array of them in keeping with its fan-in."""
    weights = _spread(network.size)
    for leaf in network.leaves:
        weights[leaf.start : leaf.stop] *= math.sqrt(3 / max(1, leaf.fan_in))
    with precision(dtype), jax.default_matmul_precision("highest"):
        row.require_fits(network)
        inputs = jnp.asarray(row.inputs(dtype))
        return np.asarray(jax.jit(network.apply)(jnp.asarray(weights, dtype), inputs))


def _moments(
    likelihood: Likelihood, outputs: np.ndarray, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of y for these outputs."""
    with precision(dtype):
        extra = jnp.asarray(_spread(len(likelihood.extra(outputs.shape[1]))), dtype)
        mean, variance = likelihood.moments(jnp.asarray(outputs, dtype), extra)
        return np.asarray(mean), np.asarray(variance)


def _spread(number: int) -> np.ndarray:
    """So many numbers in −1…1, without a pattern, the same on every machine (Weyl 1916)."""
    return 2 * np.modf(np.arange(1, number + 1, dtype=np.float64) ** 2 * GOLDEN)[0] - 1


def _agree(found: np.ndarray, kept: np.ndarray) -> bool:
    size = np.max(np.abs(kept), initial=0.0, where=np.isfinite(kept))
    return found.shape == kept.shape and np.allclose(
        found, kept, rtol=0, atol=TOLERANCE * size, equal_nan=True
    )


def _few(values: np.ndarray) -> str:
    return np.array2string(values.ravel()[:3], precision=4)
