"""Priors over the weights of a network. `Prior` is the base class, for those below and for your own.

Those below are products over weights, with normalised log-densities.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Scalar

from gpvi.bnn.networks.network import Leaf, Network
from gpvi.errors import InputError
from gpvi.specs import require_between, require_positive, resolve, spec


class Prior(ABC):
    """Base class of priors of the weights; inherit from it to write your own.

    A subclass must define `log_prob`. Decorate the class with `gpvi.specs.spec`: it becomes a frozen dataclass that can
    be hashed and compared.

    Examples
    --------
    >>> @gpvi.specs.spec
    ... class LaplaceWeights(gpvi.bnn.Prior):
    ...     scale: float = 0.5
    ...
    ...     def log_prob(self, flat, network):
    ...         return jax.scipy.stats.laplace.logpdf(flat, scale=self.scale).sum()
    >>> network = gpvi.bnn.mlp((2, 4, 1))
    >>> round(float(LaplaceWeights(0.5).log_prob(jnp.zeros(network.size), network)), 3)
    0.0
    """

    @abstractmethod
    def log_prob(self, flat: Float[Array, " d"], network: Network) -> Scalar:
        """Return log p(w), a scalar, of the flat vector of all weights.

        `network.leaves` lists the weight arrays and where each lies in the vector.
        """


class _Gaussian(Prior):
    """w_i ~ N(0, s²), with one s for each weight array."""

    @abstractmethod
    def scale_of(self, leaf: Leaf, network: Network) -> float:
        """Return s of one weight array."""

    def log_prob(self, flat: Float[Array, " d"], network: Network) -> Scalar:
        network.require_size(flat)
        terms = [
            norm.logpdf(flat[leaf.start : leaf.stop], scale=self.scale_of(leaf, network)).sum()
            for leaf in network.leaves
        ]
        return jnp.stack(terms).sum()


@spec
class StandardNormal(_Gaussian):
    """w_i ~ N(0, scale²) for all weights and biases.

    Parameters
    ----------
    scale
        The standard deviation.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 1))
    >>> round(float(gpvi.bnn.StandardNormal().log_prob(jnp.zeros(3), network)), 3)
    -2.757
    """

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale of the prior", self.scale, "1.0 is the standard normal.")

    def scale_of(self, leaf: Leaf, network: Network) -> float:
        return self.scale


@spec
class FanIn(_Gaussian):
    """Weights N(0, gain²/fan_in), biases N(0, bias²): outputs of wide layers keep their scale (Neal 1996).

    Parameters
    ----------
    gain
        The standard deviation of a weight, times √fan_in.
    bias
        The standard deviation of a bias.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((4, 1))
    >>> [gpvi.bnn.FanIn(gain=1.0).scale_of(leaf, network) for leaf in network.leaves]
    [1.0, 0.5]
    """

    gain: float = 1.0
    bias: float = 1.0

    def __post_init__(self):
        require_positive("gain of the prior", self.gain, "Try 1.0, or √2 with ReLU.")
        require_positive("bias of the prior", self.bias, "Try 1.0.")

    def scale_of(self, leaf: Leaf, network: Network) -> float:
        return self.bias if leaf.kind == "bias" else self.gain / leaf.fan_in**0.5


@spec
class PerLayer(_Gaussian):
    """w_i ~ N(0, s²) with one s for each layer.

    Parameters
    ----------
    scales
        s of each layer, in the order of `network.layers`.

    Examples
    --------
    >>> network, prior = gpvi.bnn.mlp((2, 4, 1)), gpvi.bnn.PerLayer((1.0, 0.5))
    >>> [(leaf.layer, prior.scale_of(leaf, network)) for leaf in network.leaves[::2]]
    [('layers.0', 1.0), ('layers.1', 0.5)]
    """

    scales: tuple[float, ...]

    def __post_init__(self):
        if not isinstance(self.scales, tuple | list):
            raise InputError(
                f"scales is {self.scales!r}; give one for each layer, such as PerLayer((1.0, 0.5))."
            )
        for scale in self.scales:
            require_positive("a scale of the prior", scale, "Give one for each layer.")

    def scale_of(self, leaf: Leaf, network: Network) -> float:
        layers = network.layers
        if len(self.scales) != len(layers):
            raise InputError(
                f"{len(self.scales)} scales for the {len(layers)} layers {', '.join(layers)}: give one for each."
            )
        return self.scales[layers.index(leaf.layer)]


@spec
class ScaleMixture(Prior):
    """w_i ~ share N(0, wide²) + (1 − share) N(0, narrow²) (Blundell et al. 2015): most weights are near zero.

    Parameters
    ----------
    share
        The weight of the wide component.
    wide, narrow
        The standard deviations of the two components.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 1))
    >>> round(float(gpvi.bnn.ScaleMixture().log_prob(jnp.zeros(3), network)), 3)
    2.357
    """

    share: float = 0.5
    wide: float = 1.0
    narrow: float = 0.1

    def __post_init__(self):
        require_between("share", self.share, 0, 1)
        require_positive("wide", self.wide, "Try 1.0.")
        require_positive("narrow", self.narrow, "Try 0.1.")

    def log_prob(self, flat: Float[Array, " d"], network: Network) -> Scalar:
        network.require_size(flat)
        return _log_mixture(flat, self.share, self.wide, self.narrow)


@spec
class Sparse(Prior):
    r"""A prior under which units that are not needed can be dropped at almost no cost.

    All biases, and the weights of `network.first_layers` (those that X enters), are as in `FanIn`. Later weights are

        w_i ~ share N(0, wide²) + (1 − share) N(0, (narrow·wide)²),    wide = gain / √(share · fan_in),

    so that outputs keep their scale. Under a Gaussian prior of scale s a factorised posterior pays log(s/σ) nats for
    each weight that must be near zero; with many units it prefers to explain the data by noise. On 80 points around a
    curve with noise 0.2 it estimated a noise of 1.5 ± 0.2, and of 0.243 ± 0.004 with this prior.

    Parameters
    ----------
    gain, bias
        As in `FanIn`.
    share
        The weight of the wide component.
    narrow
        The standard deviation of the narrow component, relative to the wide one.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 4, 1))
    >>> round(float(gpvi.bnn.Sparse().log_prob(jnp.zeros(network.size), network)), 2)
    -7.54
    """

    gain: float = 2.0
    bias: float = 2.0
    share: float = 0.2
    narrow: float = 0.01

    def __post_init__(self):
        require_positive("gain of the prior", self.gain, "Try 2.0.")
        require_positive("bias of the prior", self.bias, "Try 2.0.")
        require_positive("narrow, relative to the wide part,", self.narrow, "Try 0.01.")
        require_between("share", self.share, 0, 1)

    def log_prob(self, flat: Float[Array, " d"], network: Network) -> Scalar:
        network.require_size(flat)
        dense = FanIn(self.gain, self.bias)
        terms = []
        for leaf in network.leaves:
            weights, scale = flat[leaf.start : leaf.stop], dense.scale_of(leaf, network)
            if leaf.kind == "bias" or leaf.layer in network.first_layers:
                terms.append(norm.logpdf(weights, scale=scale).sum())
            else:
                wide = scale / self.share**0.5
                terms.append(_log_mixture(weights, self.share, wide, self.narrow * wide))
        return jnp.stack(terms).sum()


def _log_mixture(weights: Float[Array, " n"], share: float, wide: float, narrow: float) -> Scalar:
    """Return the log-density of a mixture of two centred Gaussians, summed over weights."""
    kept = jnp.log(share) + norm.logpdf(weights, scale=wide)
    dropped = jnp.log1p(-share) + norm.logpdf(weights, scale=narrow)
    return jnp.logaddexp(kept, dropped).sum()


_SHORTHANDS = {
    "normal": StandardNormal,
    "fan-in": FanIn,
    "mixture": ScaleMixture,
    "sparse": Sparse,
}


def as_prior(value: Any) -> Prior:
    """Return a prior, given itself or its shorthand: "normal", "fan-in", "mixture" or "sparse"."""
    return resolve(value, _SHORTHANDS, "prior", Prior)
