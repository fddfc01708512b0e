"""Columns in standard units, so that one prior over weights suits all data."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Num

ROUNDING = 10 * np.finfo(np.float64).eps


class Standardisation(NamedTuple):
    """v ↦ (v − mean)/scale for each column; a column that is constant is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Standardisation":
        """To mean zero and unit variance; columns that differ by rounding alone are constant."""
        size = np.abs(values).max(0)
        size = np.where(size > 0, size, 1.0)
        in_size = values / size
        mean, sd = in_size.mean(0), in_size.std(0)
        varies = (np.ptp(values, 0) > 0) & (sd > ROUNDING * np.abs(mean))
        return cls(mean * size, np.where(varies, sd * size, 1.0))

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Into standard units."""
        return (values - self.mean) / self.scale

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Back from them."""
        return values * self.scale + self.mean


NARROW, WIDE, SHIFTED, NAMED = 0.3, 10.0, 3.0, 3
"""A column is not in standard units if its values span less than NARROW, if its standard deviation is above WIDE, or if
its mean is more than SHIFTED times that (or times 1) from 0. At most NAMED columns are named."""


def other_units(values: Num[np.ndarray, "n ..."], name: str) -> str | None:
    """What to say of columns far from mean 0 and standard deviation 1, for which priors and starts are made.

    The pixels of images count as one column for each channel. A column of one value matters only where that is large.
    """
    width = 1 if values.ndim == 1 else values.shape[-1]
    columns = values.reshape(-1, width).astype(np.float64)
    mean, sd, spread = columns.mean(0), columns.std(0), np.ptp(columns, axis=0)
    units = ((spread > 0) & (spread < NARROW)) | (sd > WIDE)
    units |= np.abs(mean) > SHIFTED * np.maximum(sd, 1.0)
    if not units.any():
        return None
    first = np.flatnonzero(units)[:NAMED]
    named = "; ".join(f"column {i} has mean {mean[i]:.3g} and deviation {sd[i]:.3g}" for i in first)
    others = f"; and {units.sum() - NAMED} columns more" if units.sum() > NAMED else ""
    return (
        f"{name} is not standardised: {named}{others}. Priors and starts are made for mean 0 and deviation 1: train on "
        f"({name} − mean) / deviation, column by column, and transform predictions back."
    )
