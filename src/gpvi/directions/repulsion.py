r"""What stands in for the score at draws where log p has no value, so that such regions repel.

Without a score there, the entropy would push draws over the edge and nothing would bring them back. Instead log p is
continued beyond the edge: it falls by `SLOPE` nats for each standard deviation of distance from the nearest draw that
has a value. Training then descends KL(q‖p̃) with the continued p̃. The share of p̃ that lies beyond a wall is about
(density of the posterior at the wall) / `SLOPE`, in standard deviations: 0.6 % for each side of a uniform distribution,
nothing that is noticed where the posterior has hardly any mass at the edge.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpvi.targets.density import Evaluation

SLOPE = 50.0
"""Nats per standard deviation. A steeper fall leaves fewer draws outside, and makes the gradient noisier."""
CANDIDATES = 256
"""Among so many draws the nearest one with a value is looked for."""


def repelling(
    at: Evaluation, x: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Return the score of each draw, or a pull back to the other draws where it has none, and the weights of the draws.

    Every draw counts alike: it has a score or a pull. If all scores are finite, nothing is computed.
    """

    def pulled() -> tuple[Array, Array]:
        score = jnp.where(at.finite[:, None], at.score, _pull(x, at.finite))
        return score, jnp.full_like(at.weight, 1 / len(x))

    return jax.lax.cond(at.finite.all(), lambda: (at.score, at.weight), pulled)


def _pull(x: Float[Array, "n d"], finite: Bool[Array, " n"]) -> Float[Array, "n d"]:
    """Return the gradient of −`SLOPE` times the distance from the nearest finite draw, in units of their spread."""
    count = jnp.maximum(finite.sum(), 1)
    known = jnp.where(finite[:, None], x, 0.0)
    mean = known.sum(0) / count
    sd = jnp.sqrt(jnp.where(finite[:, None], (x - mean) ** 2, 0.0).sum(0) / count)
    sd = jnp.where(sd > 0, sd, 1.0)
    u = (x - mean) / sd
    some = u[:CANDIDATES]
    square_distance = (some**2).sum(1) - 2 * u @ some.T  # up to ‖u‖², which all candidates share
    nearest = jnp.where(finite[:CANDIDATES], square_distance, jnp.inf).argmin(1)
    towards = some[nearest] - u
    length = jnp.linalg.norm(towards, axis=1, keepdims=True)
    pull = SLOPE * towards / jnp.where(length > 0, length, 1.0) / sd
    return jnp.where(jnp.isfinite(pull), pull, 0.0)
