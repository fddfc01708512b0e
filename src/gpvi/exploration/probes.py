r"""A look around before particles are sent: where log p has other summits.

On rays from the origin log p of one basin falls; where it rises again the ray has entered another. From there, from the
user's starting point and from draws of the model's prior, points climb by resilient propagation (Riedmiller & Braun
1993), whose steps adapt to any scale. A summit whose basin no ray and no point meets remains unseen.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpvi.exploration.modes import DEPTH, dips, log_densities
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import Density
from gpvi.targets.models.model import DrawsItsPrior

RADII = 2.0 ** np.arange(0, 14.25, 0.25)
"""Distances at which log p is looked at along a ray."""
AXES, DIRECTIONS = 64, 256
"""Rays: both ways along this many axes, at most, and along as many random directions."""
RISE = 1.0
"""Nats by which log p must rise along a ray for another summit."""
CLIMBERS, CLIMBS = 128, 150
"""Points that climb, and the steps of each."""
GROWN, SHRUNK = 1.2, 0.5
"""Factors of a step where the slope keeps its sign, and where it changes."""
MOST = 16
"""Summits that are kept: the highest."""


def summits_in_sight(
    density: Density, *, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, " m"], int]:
    """Return the highest summits, log p there, and the gradients spent; log p alone counts as half of one."""
    ray_key, prior_key, choice_key = jax.random.split(key, 3)
    humps, looks = _humps(density, ray_key)
    starts = np.concatenate([np.zeros((1, density.dim)), _hinted(density, prior_key)])
    chosen = np.asarray(jax.random.permutation(choice_key, len(humps)))[: CLIMBERS - len(starts)]
    starts = np.resize(np.concatenate([starts, humps[chosen]]), (CLIMBERS, density.dim))
    climbed = _climbed(density, jnp.asarray(starts, density.dtype))
    ends, heights = (np.asarray(each, np.float64) for each in climbed)
    tops = _distinct(density, ends, heights)
    return ends[tops], heights[tops], looks // 2 + CLIMBERS * (1 + CLIMBS)


def _distinct(
    density: Density, ends: Float[np.ndarray, "n d"], heights: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " m"]:
    """The highest ends of which none is joined to a higher one by a segment without a dip."""
    left = np.flatnonzero(np.isfinite(heights))
    left = left[np.argsort(-heights[left], kind="stable")]
    tops: list[int] = []
    while len(left) and len(tops) < MOST:
        top, left = left[0], left[1:]
        tops.append(int(top))
        if len(left):
            left = left[dips(density, ends, np.full(len(left), top), left) > DEPTH]
    return np.array(tops, int)


def _humps(density: Density, key: PRNGKeyArray) -> tuple[Float[np.ndarray, "m d"], int]:
    """Points on rays at which log p is larger than around them, and has risen on the way there."""
    axis_key, key = jax.random.split(key)
    axes = np.asarray(jax.random.permutation(axis_key, density.dim))[:AXES]
    along = np.eye(density.dim)[axes]
    random = np.array(jax.random.normal(key, (DIRECTIONS, density.dim)), np.float64)
    random *= np.sqrt(density.dim) / np.linalg.norm(random, axis=1, keepdims=True)
    rays = np.concatenate([along, -along, random, -random])
    points = rays[:, None] * RADII[:, None]
    values = log_densities(density, points.reshape(-1, density.dim)).reshape(len(rays), -1)
    values = np.where(np.isfinite(values), values, -np.inf)
    risen = values > np.minimum.accumulate(values, 1) + RISE
    top = np.zeros_like(risen)
    top[:, 1:-1] = (values[:, 1:-1] >= values[:, :-2]) & (values[:, 1:-1] > values[:, 2:])
    return points[risen & top], values.size


def _hinted(density: Density, key: PRNGKeyArray) -> Float[np.ndarray, "m d"]:
    """The user's starting point, and draws of the model's prior, in the coordinates of training."""
    if not isinstance(density, Whitened) or density.target.draws_its_start:
        return np.zeros((0, density.dim))
    target = density.target
    points = jnp.asarray(target.initial)[None]
    if isinstance(target.model, DrawsItsPrior):
        points = jnp.concatenate([points, target.model.prior_draws(CLIMBERS // 4, key=key)])
    u = np.asarray(jax.vmap(density.affine.inverse)(points.astype(density.dtype)), np.float64)
    return u[np.isfinite(u).all(1)]


@eqx.filter_jit
def _climbed(
    density: Density, x: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """The highest points that are met on the way up, and log p there."""
    value_and_score = jax.vmap(jax.value_and_grad(density.log_density))

    def evaluated(x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        value, score = value_and_score(x)
        good = jnp.isfinite(value) & jnp.isfinite(score).all(1)
        return jnp.where(good, value, -jnp.inf), jnp.where(good[:, None], score, 0.0)

    def step(carry, _):
        x, slope, size, best, height = carry
        x = x + size * jnp.sign(slope)
        value, score = evaluated(x)
        better = value > height
        best, height = jnp.where(better[:, None], x, best), jnp.where(better, value, height)
        lost = jnp.isneginf(value)[:, None]
        x, score = jnp.where(lost, best, x), jnp.where(lost, -slope, score)
        turned = slope * score
        size = size * jnp.where(turned < 0, SHRUNK, jnp.where(turned > 0, GROWN, 1.0))
        return (x, jnp.where(lost, slope, score), size, best, height), None

    height, slope = evaluated(x)
    size = 0.01 * (1 + jnp.abs(x))
    (_, _, _, best, height), _ = jax.lax.scan(step, (x, slope, size, x, height), None, CLIMBS)
    return best, height
