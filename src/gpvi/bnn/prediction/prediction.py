"""The moments of a predictive distribution, and what temperature scaling makes of them."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.prediction.temperature_scaling import temperature_scaled


class Prediction(eqx.Module):
    """Moments of the predictive distribution of y, row by row.

    Parameters
    ----------
    mean
        The mean of y, (b, m); for `Categorical` the probabilities of the classes, (b, C).
    aleatoric
        The variance due to noise, which more data would not remove. For classes, of their indicators.
    epistemic
        The variance due to disagreement between networks, which more data would remove.
    entropy
        For classes, the entropy of y in nats, (b,); None otherwise.
    mutual_information
        For classes, the part of the entropy due to disagreement between networks, (b,); None otherwise.

    Examples
    --------
    >>> found = gpvi.bnn.Prediction(jnp.zeros((1, 1)), jnp.full((1, 1), 3.0), jnp.ones((1, 1)))
    >>> found.variance.item(), found.std.item()
    (4.0, 2.0)
    """

    mean: Float[Array, "b m"]
    aleatoric: Float[Array, "b m"]
    epistemic: Float[Array, "b m"]
    entropy: Float[Array, " b"] | None = None
    mutual_information: Float[Array, " b"] | None = None

    @property
    def variance(self) -> Float[Array, "b m"]:
        """The variance of y, (b, m): aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Float[Array, "b m"]:
        """The standard deviation of y, (b, m)."""
        return jnp.sqrt(self.variance)


def with_sharpness(plain: Prediction, likelihood: Likelihood, sharpness: float) -> Prediction:
    """Return the temperature-scaled prediction of classes.

    Variance and entropy are those of the scaled probabilities, divided into parts in the same proportion as before.
    """
    mean = temperature_scaled(plain.mean, sharpness)
    ratio = _ratio(mean * (1 - mean), plain.aleatoric + plain.epistemic)
    entropy = likelihood.entropy(mean)
    information = None
    if plain.mutual_information is not None and plain.entropy is not None:
        information = plain.mutual_information * _ratio(entropy, plain.entropy)
    return Prediction(mean, plain.aleatoric * ratio, plain.epistemic * ratio, entropy, information)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the ratio, and 0 where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)
