r"""Temperature scaling of mean predictions (Guo et al., ICML 2017), with the inverse temperature called sharpness.

An average over networks is less confident than each of them, and often less confident than it should be (Rahaman and
Thiery, "Uncertainty quantification and deep ensembles", NeurIPS 2021, who average first and calibrate afterwards). Its
probabilities to the power of the sharpness s,

    p_s(c) = p(c)^s / Σ_c′ p(c′)^s,

are those of temperature 1/s with logits log p. The order of the classes, and so the predicted class, stays the same.
s is called sharpness since `temperature` is that of the posterior.

s maximises the likelihood of held-out labels. If all of them are predicted correctly, the likelihood has no maximum: a
log-normal prior around s = 1, which weighs as much as a few labels, keeps s finite.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpvi._inputs import as_labels, as_numbers, class_probabilities
from gpvi.errors import InputError
from gpvi.specs import require_positive

PRIOR_SPREAD = 0.5
"""The prior's standard deviation of log s: s lies between 0.37 and 2.7 with probability 0.95."""
LOG_SHARPNESS = np.linspace(-2.0, 2.0, 401)
"""The values of log s that are tried, in steps of 0.01: finer than thousands of labels can distinguish."""


def temperature_scaled(p: Any, sharpness: float) -> Float[Array, "b c"]:
    """Return probabilities to the power of the sharpness, normalised: temperature scaling (Guo et al. 2017).

    Parameters
    ----------
    p
        Probabilities of the classes, (b, C). One column is P(y = 1), and so is the result.
    sharpness
        The inverse temperature, > 0; above 1 makes predictions more confident.

    Returns
    -------
    Array
        The scaled probabilities, in the shape of `p`.

    Raises
    ------
    gpvi.errors.InputError
        If the sharpness is not a number > 0.

    Examples
    --------
    >>> print(np.round(np.asarray(gpvi.bnn.temperature_scaled([[0.75, 0.25]], 2.0)), 3))
    [[0.9 0.1]]
    """
    require_positive("sharpness", sharpness, "Take the one that fit_sharpness(p, labels) finds.")
    scaled = jax.nn.softmax(sharpness * _logarithms(p), axis=-1)
    return scaled[..., 1:] if np.shape(p)[-1] == 1 else scaled


def fit_sharpness(p: Any, labels: Any) -> float:
    """Find the sharpness (inverse temperature) with which probabilities suit held-out labels best.

    Parameters
    ----------
    p
        Probabilities of the classes, (b, C), such as `Prediction.mean`, for inputs that training did not use. One
        column is P(y = 1).
    labels
        The correct classes, (b,), integers from 0.

    Returns
    -------
    float
        The sharpness; above 1 if predictions are correct more often than they claim.

    Raises
    ------
    gpvi.errors.InputError
        If shapes do not match, a probability is negative or not finite, or a label is not a class.

    Examples
    --------
    >>> p = np.tile([[0.7, 0.3]], (100, 1))
    >>> s = gpvi.bnn.fit_sharpness(p, np.arange(100) % 10 == 0)
    >>> print(np.round(np.asarray(gpvi.bnn.temperature_scaled(p, s))[0], 1))
    [0.9 0.1]
    """
    probabilities, classes = as_numbers(p, "p"), np.asarray(labels)
    if (
        probabilities.ndim != 2
        or not len(probabilities)
        or classes.shape != probabilities.shape[:1]
    ):
        raise InputError(
            f"p has shape {probabilities.shape} and the labels {classes.shape}; give p as (b, classes), labels as "
            "(b,), b ≥ 1."
        )
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all()):
        raise InputError("p has entries that are negative or not finite; give probabilities.")
    logs = _logarithms(probabilities)
    at_labels = jnp.take_along_axis(logs, as_labels(labels, logs.shape[1])[:, None], axis=1)[:, 0]
    grid = jnp.asarray(LOG_SHARPNESS, logs.dtype)
    return float(jnp.exp(grid[_log_posterior(grid, logs, at_labels).argmax()]))


@jax.jit
def _log_posterior(
    log_sharpness: Float[Array, " g"], logs: Float[Array, "b c"], at_labels: Float[Array, " b"]
) -> Float[Array, " g"]:
    """Return log p(labels | s) + log p(log s), up to a constant, at each value of log s."""

    def at(log_s: Array) -> Array:
        s = jnp.exp(log_s)
        log_likelihood = (s * at_labels - jax.nn.logsumexp(s * logs, axis=1)).sum()
        return log_likelihood - 0.5 * (log_s / PRIOR_SPREAD) ** 2

    return jax.lax.map(at, log_sharpness)


def _logarithms(p: Any) -> Float[Array, "b c"]:
    """Return log p of all classes, two or more; of the least float for a probability of 0."""
    probabilities = class_probabilities(jnp.asarray(p, float))
    return jnp.log(jnp.maximum(probabilities, jnp.finfo(probabilities.dtype).tiny))
