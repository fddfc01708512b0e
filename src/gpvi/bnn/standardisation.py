"""Columns in standard units, so that one prior over weights suits all data."""

from typing import NamedTuple

import numpy as np

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
