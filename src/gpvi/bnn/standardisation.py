"""Standardisation of the columns of X and y, for which the priors of weights are made."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Num

ROUNDING = 10 * np.finfo(np.float64).eps


class Standardisation(NamedTuple):
    """The map v ↦ (v − mean)/scale of each column; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Standardisation":
        """Return the map to mean 0 and variance 1; a column that varies by rounding only counts as constant."""
        size = np.abs(values).max(0)
        size = np.where(size > 0, size, 1.0)
        in_size = values / size
        mean, sd = in_size.mean(0), in_size.std(0)
        varies = (np.ptp(values, 0) > 0) & (sd > ROUNDING * np.abs(mean))
        return cls(mean * size, np.where(varies, sd * size, 1.0))

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Return the standardised values."""
        return (values - self.mean) / self.scale

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Return the values in their own units."""
        return values * self.scale + self.mean


NARROW, WIDE, SHIFTED, NAMED = 0.3, 10.0, 3.0, 3
"""A column is not standardised if its range is below NARROW, its standard deviation is above WIDE, or its mean is more
than SHIFTED times max(standard deviation, 1) from 0. A warning names at most NAMED columns."""


def standardisation_advice(values: Num[np.ndarray, "n ..."], name: str) -> str | None:
    """Return a warning that names columns far from mean 0 and standard deviation 1; None if there are none.

    The pixels of images count as one column for each channel. A constant column matters only if its value is large.
    """
    width = 1 if values.ndim == 1 else values.shape[-1]
    columns = values.reshape(-1, width).astype(np.float64)
    mean, sd, spread = columns.mean(0), columns.std(0), np.ptp(columns, axis=0)
    far = ((spread > 0) & (spread < NARROW)) | (sd > WIDE)
    far |= np.abs(mean) > SHIFTED * np.maximum(sd, 1.0)
    if not far.any():
        return None
    first = np.flatnonzero(far)[:NAMED]
    named = "; ".join(f"column {i} has mean {mean[i]:.3g} and deviation {sd[i]:.3g}" for i in first)
    others = f"; and {far.sum() - NAMED} columns more" if far.sum() > NAMED else ""
    return (
        f"{name} is not standardised: {named}{others}. Priors and starting points assume mean 0 and deviation 1: train "
        f"on ({name} − mean) / deviation, column by column, and transform predictions back."
    )
