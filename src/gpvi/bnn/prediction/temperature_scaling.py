r"""How sure a mean prediction should be: one exponent, by labels that training did not see.

An average over networks is less sure than each of them, and as a rule less sure than it is right once the networks
share more than their data, mirror images say (Rahaman and Thiery, "Uncertainty quantification and deep ensembles",
NeurIPS 2021, who average first and calibrate then). Its probabilities to the power of s,

    p_s(c) = p(c)^s / Σ_c′ p(c′)^s,

keep their order, so that s moves no prediction, only how sure it is; it is the temperature scaling of Guo et al. (ICML
2017), s = 1/T, of the logits log p. s maximises the likelihood of the held-out labels. Where all of them are predicted
right, that has no maximum; a log-normal prior around s = 1 keeps it in reach, and weighs as much as a few labels.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpvi._inputs import as_labels, as_numbers, class_probabilities
from gpvi.errors import InputError
from gpvi.specs import require_positive

SPREAD = 0.5
"""Of log s under its prior: s lies between 0.37 and 2.7 with a probability of 0.95."""
GRID = np.linspace(-2.0, 2.0, 401)
"""log s, in steps of a hundredth: closer than thousands of labels can tell."""


def sharpened(p: Any, s: float) -> Float[Array, "b c"]:
    """p, (b, C), to the power of s > 0, row by row, with a sum of one; of one column, P(y = 1), again one."""
    require_positive("s (the exponent)", s, "Take the one that sharpness(p, labels) finds.")
    found = jax.nn.softmax(s * _logarithms(p), axis=-1)
    return found[..., 1:] if np.shape(p)[-1] == 1 else found


def sharpness(p: Any, labels: Any) -> float:
    """The exponent that suits these labels; above 1 where predictions are right more often than they say.

    Parameters
    ----------
    p: probabilities of the classes, (b, C), as in `Prediction.mean`, of inputs that training did not see; one column
        is P(y = 1).
    labels: the right classes, (b,), whole numbers from 0.
    """
    probabilities, right = as_numbers(p, "p"), np.asarray(labels)
    if probabilities.ndim != 2 or not len(probabilities) or right.shape != probabilities.shape[:1]:
        raise InputError(
            f"p has shape {probabilities.shape} and the labels {right.shape}; give p as (b, classes), labels as (b,), "
            "b ≥ 1."
        )
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all()):
        raise InputError("p has entries that are negative or not finite; give probabilities.")
    logs = _logarithms(probabilities)
    own = jnp.take_along_axis(logs, as_labels(labels, logs.shape[1])[:, None], axis=1)[:, 0]
    grid = jnp.asarray(GRID, logs.dtype)
    return float(jnp.exp(grid[_log_posterior(grid, logs, own).argmax()]))


@jax.jit
def _log_posterior(
    log_s: Float[Array, " g"], logs: Float[Array, "b c"], own: Float[Array, " b"]
) -> Float[Array, " g"]:
    """log p(labels | s) + log p(log s), up to a constant, at each of the log s; own is log p of the right classes."""

    def at(one: Array) -> Array:
        s = jnp.exp(one)
        fit = (s * own - jax.nn.logsumexp(s * logs, axis=1)).sum()
        return fit - 0.5 * (one / SPREAD) ** 2

    return jax.lax.map(at, log_s)


def _logarithms(p: Any) -> Float[Array, "b c"]:
    """Of the classes, at least two."""
    own = class_probabilities(jnp.asarray(p, float))
    return jnp.log(jnp.maximum(own, jnp.finfo(own.dtype).tiny))
