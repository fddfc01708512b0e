"""The arrays of the search: float64, in host memory. d is the dimension, n the number of points."""

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " d"]
Matrix = Float[np.ndarray, "d d"]
Points = Float[np.ndarray, "n d"]
Values = Float[np.ndarray, " n"]
