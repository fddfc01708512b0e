"""Labelled images as a benchmark has them: a training set and a test set, in the order of their files."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

CLASSES = 10


class Images(NamedTuple):
    """Grey or coloured images, height first, with labels 0…9."""

    train: UInt8[np.ndarray, "n h w c"]
    train_labels: Int[np.ndarray, " n"]
    test: UInt8[np.ndarray, "m h w c"]
    test_labels: Int[np.ndarray, " m"]

    def testing_on(self, kept: Bool[np.ndarray, " m"]) -> "Images":
        """The same with these test images alone."""
        return self._replace(test=self.test[kept], test_labels=self.test_labels[kept])


def require_classes(labels: Int[np.ndarray, " n"]) -> None:
    """Refuse labels beyond 9 by a `ValueError`."""
    if labels.max() >= CLASSES:
        raise ValueError(f"it has the label {labels.max()}; they go from 0 to {CLASSES - 1}")
