"""Classes as they come in: probabilities of two classes that are one column, and labels that count columns."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from gpvi.entries import as_numbers
from gpvi.errors import InputError


def both_classes(probabilities: Float[Array, "*n c"]) -> Float[Array, "*n k"]:
    """One column is P(y = 1), as the mean of a `Bernoulli` prediction, and becomes (1 − p, p); more are classes."""
    if probabilities.shape[-1] != 1:
        return probabilities
    return jnp.concatenate([1 - probabilities, probabilities], -1)


def as_labels(labels: Any, classes: int) -> Int[Array, "*n"]:
    """Labels as whole numbers; those outside 0…classes − 1 are refused where their values are known."""
    if isinstance(labels, Tracer):
        return labels if jnp.issubdtype(labels.dtype, jnp.integer) else labels.astype(int)
    values = as_numbers(labels, "labels")
    bad = ~((values >= 0) & (values < classes) & (values == np.floor(values)))
    if bad.any():
        row = int(np.argwhere(bad)[0, 0])
        raise InputError(
            f"labels hold {values[bad][0]} in row {row}; give whole numbers from 0 to {classes - 1}, the columns of "
            f"the {classes} classes. If they count from 1, pass labels - 1."
        )
    return jnp.asarray(values.astype(np.int32))
