"""Built-in networks: multi-layer perceptrons and LeNet-5."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from gpvi.bnn.networks.convolution import Padding, convolve, max_pool
from gpvi.bnn.networks.definitions import OutputsLast
from gpvi.bnn.networks.network import Network
from gpvi.errors import InputError, brief
from gpvi.generators.networks import ACTIVATIONS
from gpvi.specs import is_whole, require_choice


def mlp(sizes: Sequence[int], activation: str = "relu") -> Network:
    """Make a multi-layer perceptron.

    Parameters
    ----------
    sizes
        The widths (inputs, *hidden, outputs).
    activation
        The activation of the hidden layers: "relu", "tanh", "gelu", "silu", …

    Returns
    -------
    Network
        The network. Two with the same arguments are equal.

    Raises
    ------
    gpvi.errors.InputError
        If there are fewer than two widths, or one is not an integer ≥ 1.
    gpvi.errors.UnknownOptionError
        If there is no such activation.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 10, 1), "tanh")
    >>> network.size, network.layers
    (41, ('layers.0', 'layers.1'))
    """
    sizes = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    if len(sizes) < 2 or any(not is_whole(n) or n < 1 for n in sizes):
        raise InputError(
            f"sizes is {brief(sizes)}; pass at least two widths ≥ 1: inputs, hidden ones, outputs."
        )
    require_choice(activation, tuple(ACTIVATIONS), "activation")
    return Network.from_definition(MLPDefinition(tuple(map(int, sizes)), activation))


def lenet5(classes: int = 10, channels: int = 1, side: int = 28) -> Network:
    """Make LeNet-5 (LeCun et al. 1998), with ReLU and max-pooling, for square NHWC images.

    Parameters
    ----------
    classes
        The number of outputs.
    channels
        The number of channels of an image.
    side
        Its height and width in pixels, at least 12.

    Returns
    -------
    Network
        The network.

    Raises
    ------
    gpvi.errors.InputError
        If the images are too small for two convolutions and poolings.

    Examples
    --------
    >>> gpvi.bnn.lenet5().size
    61706
    """
    if side < 12:
        raise InputError(f"side is {side}; two convolutions and poolings need at least 12.")
    return Network.from_definition(LeNet5Definition(classes, channels, side))


@dataclasses.dataclass(frozen=True)
class MLPDefinition(OutputsLast):
    """Dense layers, with an activation after each but the last."""

    sizes: tuple[int, ...]
    activation: str

    def init(self, key: PRNGKeyArray) -> dict[str, list[dict[str, Array]]]:
        """Draw weights and biases uniformly in ±1/√fan_in."""
        keys = jax.random.split(key, len(self.sizes) - 1)
        shapes = zip(self.sizes, self.sizes[1:], strict=False)
        return {"layers": [dense(shape, key=k) for shape, k in zip(shapes, keys, strict=True)]}

    def apply(self, parameters: dict[str, list[dict[str, Array]]], x: Array) -> Array:
        """Return … activation(x @ w + b) …"""
        *hidden, last = parameters["layers"]
        for layer in hidden:
            x = ACTIVATIONS[self.activation](x @ layer["weight"] + layer["bias"])
        return x @ last["weight"] + last["bias"]

    def apply_local(
        self,
        mean: dict[str, list[dict[str, Array]]],
        scale: dict[str, list[dict[str, Array]]],
        x: Array,
        *,
        key: PRNGKeyArray,
    ) -> Array:
        """Return outputs in which each row has its own network, with weights N(mean, scale²) (Kingma et al. 2015).

        A pre-activation is then N(x @ μ + μ_b, x² @ σ² + σ_b²), and is drawn instead of the weights.
        """
        layers = list(zip(mean["layers"], scale["layers"], strict=True))
        for index, (m, s) in enumerate(layers):
            centre = x @ m["weight"] + m["bias"]
            variance = x**2 @ s["weight"] ** 2 + s["bias"] ** 2
            noise = jax.random.normal(jax.random.fold_in(key, index), centre.shape, centre.dtype)
            x = centre + jnp.sqrt(variance) * noise
            if index < len(layers) - 1:
                x = ACTIVATIONS[self.activation](x)
        return x


@dataclasses.dataclass(frozen=True)
class LeNet5Definition(OutputsLast):
    """Two convolutions of 5×5, each pooled by 2, and three dense layers."""

    classes: int
    channels: int
    side: int

    def init(self, key: PRNGKeyArray) -> dict[str, dict[str, Array]]:
        """Draw weights and biases uniformly in ±1/√fan_in."""
        flat = 16 * ((self.side // 2 - 4) // 2) ** 2
        shapes = {
            "conv0": (5, 5, self.channels, 6),
            "conv1": (5, 5, 6, 16),
            "dense0": (flat, 120),
            "dense1": (120, 84),
            "dense2": (84, self.classes),
        }
        keys = jax.random.split(key, len(shapes))
        return {name: dense(s, key=k) for (name, s), k in zip(shapes.items(), keys, strict=True)}

    def apply(self, parameters: dict[str, dict[str, Array]], x: Array) -> Array:
        """Return the logits of a batch of images."""
        paddings: tuple[Padding, ...] = ("SAME", "VALID")
        for name, padding in zip(("conv0", "conv1"), paddings, strict=True):
            layer = parameters[name]
            x = convolve(x, layer["weight"], padding=padding) + layer["bias"]
            x = jax.nn.relu(max_pool(x))
        x = x.reshape(len(x), -1)
        for name in ("dense0", "dense1"):
            x = jax.nn.relu(x @ parameters[name]["weight"] + parameters[name]["bias"])
        return x @ parameters["dense2"]["weight"] + parameters["dense2"]["bias"]


def dense(shape: tuple[int, ...], *, key: PRNGKeyArray) -> dict[str, Array]:
    """Draw weights of this shape, outputs last, and biases, all uniformly in ±1/√fan_in."""
    weight_key, bias_key = jax.random.split(key)
    bound = math.prod(shape[:-1]) ** -0.5
    return {
        "weight": jax.random.uniform(weight_key, shape, minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias_key, shape[-1:], minval=-bound, maxval=bound),
    }
