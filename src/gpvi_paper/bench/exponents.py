"""How a cost grows with a size: the exponent p of t ∝ size^p."""

from collections.abc import Sequence

import numpy as np


def exponent(sizes: Sequence[float | int], costs: Sequence[float | int]) -> float:
    """Return p by least squares on the logarithms. A constant part of the cost makes it smaller, never larger."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float))
    x = x - x.mean()
    return float(x @ y / (x @ x))


def last_exponent(sizes: Sequence[float | int], costs: Sequence[float | int]) -> float:
    """Return p between the two largest sizes, where a constant part of the cost matters least."""
    return exponent(sizes[-2:], costs[-2:])
