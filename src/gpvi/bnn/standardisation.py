"""Columns in standard units, so that one prior over weights suits all data."""

from typing import NamedTuple

import numpy as np


class Standardisation(NamedTuple):
    """v ↦ (v − mean)/scale for each column; a column that is constant is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Standardisation":
        """To mean zero and unit variance."""
        mean, sd = values.mean(0), values.std(0)
        return cls(mean, np.where(sd > 1e-10 * np.abs(mean), sd, 1.0))

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Into standard units."""
        return (values - self.mean) / self.scale

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Back from them."""
        return values * self.scale + self.mean
