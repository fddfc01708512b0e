"""Fingerprints by which a network and a likelihood are recognised when predictions are loaded: files hold no code.

The fingerprint of a network is the names and shapes of its arrays and its outputs for fixed weights and inputs, which
change with its activation, its constants, or the order of its inputs. That of a likelihood is the mean and variance of
y for those outputs. Of the data only the shape and type of a row are used.
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
"""Relative to the largest number compared; devices differ by less, activations by more."""
GOLDEN = (5**0.5 - 1) / 2


class InputForm(NamedTuple):
    """The shape and type of one input of a network."""

    shape: tuple[int, ...]
    integers: bool
    """Whether it holds integers, such as token ids, instead of floats."""

    @classmethod
    def of(cls, X: np.ndarray) -> "InputForm":
        """Return the form of the rows of a table that `checked_inputs` returned."""
        return cls(X.shape[1:], X.dtype.kind == "i")

    def require_fits(self, network: Network) -> None:
        """Refuse a network that does not take such inputs; nothing is computed."""
        dtype = np.int32 if self.integers else np.float32
        network.outputs(np.broadcast_to(np.zeros((), dtype), (ROWS, *self.shape)))

    def inputs(self, dtype: DTypeLike) -> np.ndarray:
        """Return fixed inputs of this form: floats of about unit size, or zeros and ones."""
        values = _spread(ROWS * math.prod(self.shape)).reshape(ROWS, *self.shape)
        return (values > 0).astype(np.int32) if self.integers else (2 * values).astype(dtype)


class Fingerprint(NamedTuple):
    """The fingerprint of a network and a likelihood."""

    leaves: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: Float[np.ndarray, "b o"]
    mean: Float[np.ndarray, "b m"]
    variance: Float[np.ndarray, "b m"]

    @classmethod
    def of(
        cls, network: Network, likelihood: Likelihood, form: InputForm, dtype: DTypeLike
    ) -> "Fingerprint":
        """Compute the fingerprint in this precision."""
        outputs = _outputs(network, form, dtype)
        return cls(_leaves(network), outputs, *_moments(likelihood, outputs, dtype))

    def require_network(self, network: Network, form: InputForm, dtype: DTypeLike) -> None:
        """Refuse another network."""
        leaves, size = _leaves(network), sum(math.prod(shape) for _, shape in self.leaves)
        if network.size != size:
            raise InputError(
                f"the network has {network.size} weights, and the one that was trained had {size}: give that one."
            )
        if leaves != self.leaves:
            pairs = [*zip(leaves, self.leaves, strict=False), (leaves[-1], self.leaves[-1])]
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"the network has an array {here[0]!r} of shape {here[1]} where the one that was trained had "
                f"{there[0][:200]!r} of shape {str(there[1])[:200]}: give that one."
            )
        outputs = _outputs(network, form, dtype)
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


def _outputs(network: Network, form: InputForm, dtype: DTypeLike) -> np.ndarray:
    """Return the outputs for fixed inputs and fixed weights, which are scaled by their fan-in."""
    weights = _spread(network.size)
    for leaf in network.leaves:
        weights[leaf.start : leaf.stop] *= math.sqrt(3 / max(1, leaf.fan_in))
    with precision(dtype), jax.default_matmul_precision("highest"):
        form.require_fits(network)
        inputs = jnp.asarray(form.inputs(dtype))
        return np.asarray(jax.jit(network.apply)(jnp.asarray(weights, dtype), inputs))


def _moments(
    likelihood: Likelihood, outputs: np.ndarray, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of y for these outputs."""
    with precision(dtype):
        extra = jnp.asarray(_spread(len(likelihood.extra(outputs.shape[1]))), dtype)
        mean, variance = likelihood.moments(jnp.asarray(outputs, dtype), extra)
        return np.asarray(mean), np.asarray(variance)


def _spread(number: int) -> np.ndarray:
    """Return numbers in −1…1 without a pattern, the same on every machine (Weyl 1916)."""
    return 2 * np.modf(np.arange(1, number + 1, dtype=np.float64) ** 2 * GOLDEN)[0] - 1


def _agree(values: np.ndarray, saved: np.ndarray) -> bool:
    size = np.max(np.abs(saved), initial=0.0, where=np.isfinite(saved))
    return values.shape == saved.shape and np.allclose(
        values, saved, rtol=0, atol=TOLERANCE * size, equal_nan=True
    )


def _few(values: np.ndarray) -> str:
    return np.array2string(values.ravel()[:3], precision=4)
