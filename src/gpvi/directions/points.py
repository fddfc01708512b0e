"""Points where a direction is asked for, with the scores there."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Points(NamedTuple):
    """Rows y and the scores s(y)."""

    x: Float[Array, "m d"]
    score: Float[Array, "m d"]
