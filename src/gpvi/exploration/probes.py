r"""A look around before particles are sent: where log p has other summits.

On rays from the origin log p of one basin falls; where it rises again the ray has entered another. From there, from
places far out on the rays, from the user's starting point and from draws of the model's prior, points climb by
resilient propagation (Riedmiller & Braun 1993), whose steps adapt to any scale, and the highest of them go on to the
top by Newton's method. In many dimensions a ray may enter the basin of another summit without a rise: only climbing
shows it.

A summit whose basin no point meets remains unseen. While many summits were reached by one point alone, others are
probably left: more points climb, from far out and from the region that the summits span. Where log p falls from a known
summit to a point like a quadratic, that point would climb to it: it is counted there, for the price of log p half-way,
and those climb that no known summit explains.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpvi._compute.brief import brief
from gpvi._compute.noise import divided, normal
from gpvi.exploration.curvature import MOST, to_the_top
from gpvi.exploration.modes import DEPTH, LOWEST, dips, log_densities
from gpvi.targets.coordinates import Whitened, preimages
from gpvi.targets.density import Density
from gpvi.targets.models.model import DrawsItsPrior

RADII = 2.0 ** np.arange(0, 14.25, 0.25)
"""Distances at which log p is looked at along a ray."""
AXES, DIRECTIONS = 64, 256
"""Rays: both ways along this many axes of the target, at most, and along so many random directions."""
RISE = 1.0
"""Nats by which log p must rise along a ray for another summit."""
CLIMBERS, CLIMBS = 256, 150
"""Points that climb, and the steps of each."""
AFAR = 4.0
"""Standard deviations from which on a place on a ray is far out."""
GROWN, SHRUNK = 1.2, 0.5
"""Factors of a step where the slope keeps its sign, and where it changes."""
FEWEST_CLIMBS, MOST_CLIMBS = 4, 8
"""How often points climb where they reach several summits. No more than `MOST` of these, the highest, are kept."""
NEW_SUMMITS = 0.02
"""The share of the summits that one point alone reached, above which more points climb; so they do after a new one."""
CANDIDATES = 1_024
"""Points far out, and as many in the region that the summits span, that are looked at before points climb again."""
EXPLAINED = 1e-4
"""Half-way down from its summit a quadratic has lost a quarter of its height, to within this share of all of it."""


class SummitsInSight(NamedTuple):
    """The highest summits that points climbed to, in the coordinates of training.

    Parameters
    ----------
    centres
        Where they are, the highest first.
    heights
        log p there.
    points
        How many points reached each.
    gradients
        What it took; log p alone counts as half a gradient.
    """

    centres: Float[np.ndarray, "m d"]
    heights: Float[np.ndarray, " m"]
    points: Int[np.ndarray, " m"]
    gradients: int


def summits_in_sight(density: Density, *, key: PRNGKeyArray) -> SummitsInSight:
    """Climb to the summits of log p from all around."""
    ray_key, prior_key, choice_key = divided(key, 3)
    points, values = _along_rays(density, ray_key)
    far = np.isfinite(values) & (RADII >= AFAR)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(choice_key)))
    humps, order = points[_humps(values)], rng.permutation(int(far.sum()))
    afar, afar_values = points[far][order], values[far][order]
    first = np.concatenate([np.zeros((1, density.dim)), _hinted(density, prior_key)])
    first = np.concatenate([first, rng.permutation(humps)[: CLIMBERS // 2]])[:CLIMBERS]
    found = Reached.nowhere(density.dim)
    spent = values.size // 2
    for number in range(1, 1 + MOST_CLIMBS):
        starts = np.concatenate([first, rng.permutation(afar)[: CLIMBERS - len(first)]])
        starts = jnp.asarray(np.resize(starts, (CLIMBERS, density.dim)), density.dtype)
        ends, heights = (np.asarray(each, np.float64) for each in _climbed(density, starts))
        before = len(found.points)
        found, gradients = _reached(density, found, ends, heights)
        spent += CLIMBERS * (1 + CLIMBS) + gradients
        once, count = int((found.points == 1).sum()), len(found.points)
        few = once <= NEW_SUMMITS * count and count <= before
        enough = number >= FEWEST_CLIMBS and few
        if count <= 1 or count == MOST or enough:
            break
        among = _among(density, found.centres, CANDIDATES, rng)
        places = np.roll(np.arange(len(afar)), -number * CANDIDATES)[:CANDIDATES]
        candidates = np.concatenate([among, afar[places]])
        heights = np.concatenate([log_densities(density, among), afar_values[places]])
        by = _explained(density, found, candidates, heights)
        found.points[:] += np.bincount(by[by >= 0], minlength=count)
        first = np.concatenate([candidates[by < 0], among])[: CLIMBERS // 2]
        spent += (CANDIDATES + count * len(candidates)) // 2
    return SummitsInSight(*found, spent)


def _explained(
    density: Density,
    found: "Reached",
    x: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, " n"],
) -> Int[np.ndarray, " n"]:
    """Return the summit from which log p falls to each point like a quadratic, and −1 where there is none."""
    by = np.full(len(x), -1)
    finite = np.isfinite(values)
    x, values = x[finite], values[finite]
    halfway = 0.5 * (found.centres[:, None] + x)
    met = log_densities(density, halfway.reshape(-1, density.dim)).reshape(halfway.shape[:2])
    fall = found.heights[:, None] - values
    expected = found.heights[:, None] - 0.25 * fall
    surprise = np.abs(expected - np.where(np.isfinite(met), met, LOWEST)) / np.maximum(fall, 1.0)
    by[finite] = np.where(surprise.min(0) < EXPLAINED, surprise.argmin(0), -1)
    return by


def _among(
    density: Density, centres: Float[np.ndarray, "m d"], count: int, rng: np.random.Generator
) -> Float[np.ndarray, "n d"]:
    """Draw points from the region that summits span.

    Half of their variance is that of the summits, half is even, in one frame or another.
    """
    middle, dim = centres.mean(0), centres.shape[1]
    away = (centres - middle) / np.sqrt(len(centres))
    noise = rng.standard_normal((count, len(centres))), rng.standard_normal((count, dim))
    even = np.empty_like(noise[1])
    frames = _frames(density)
    for number, frame in enumerate(frames):
        size = np.sqrt((np.linalg.solve(frame, away.T) ** 2).sum() / dim)
        even[number :: len(frames)] = size * noise[1][number :: len(frames)] @ frame.T
    return middle + (noise[0] @ away + even) * np.sqrt(0.5)


def _frames(density: Density) -> list[Float[np.ndarray, "d d"]]:
    """Axes of equal lengths in the coordinates of training, and in the target's, up to the spread of each of these.

    Coordinates that are right for a part of the posterior may be a hundred times too long or too short for the rest.
    """
    own = np.eye(density.dim)
    if not isinstance(density, Whitened):
        return [own]
    matrix = np.asarray(density.affine.matrix, np.float64)
    spreads = np.diag(np.asarray(density.affine.deviations, np.float64))
    return [own, np.linalg.solve(matrix, spreads)]


class Reached(NamedTuple):
    """The summits that points have reached, the highest first, log p there, and how many points reached each."""

    centres: Float[np.ndarray, "m d"]
    heights: Float[np.ndarray, " m"]
    points: Int[np.ndarray, " m"]

    @classmethod
    def nowhere(cls, dim: int) -> "Reached":
        """No summit."""
        return cls(np.zeros((0, dim)), np.zeros(0), np.zeros(0, int))


def _reached(
    density: Density,
    before: Reached,
    ends: Float[np.ndarray, "n d"],
    heights: Float[np.ndarray, " n"],
) -> tuple[Reached, int]:
    """Add the summits above the ends of climbs to those that were reached before; return the gradients, too."""
    counts = np.concatenate([before.points, np.ones(len(ends), int)])
    ends = np.concatenate([before.centres, ends])
    heights = np.concatenate([before.heights, heights])
    tops, counts = _distinct(density, ends, heights, counts)
    fresh = tops >= len(before.points)
    ends, heights = ends[tops], heights[tops]
    above = to_the_top(density, ends[fresh], heights[fresh])
    ends[fresh], heights[fresh] = above.ends, above.heights
    tops, counts = _distinct(density, ends, heights, counts)
    return Reached(ends[tops], heights[tops], counts), above.gradients


def _distinct(
    density: Density,
    ends: Float[np.ndarray, "n d"],
    heights: Float[np.ndarray, " n"],
    points: Int[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """The highest ends of which none is joined to a higher one by a segment without a dip, and how many points are.

    `points` says for how many each end stands by itself.
    """
    left = np.flatnonzero(np.isfinite(heights))
    left = left[np.argsort(-heights[left], kind="stable")]
    tops: list[int] = []
    counts: list[int] = []
    while len(left) and len(tops) < MOST:
        apart = dips(density, ends, np.full(len(left), left[0]), left) > DEPTH
        tops.append(int(left[0]))
        counts.append(int(points[left[~apart]].sum()))
        left = left[apart]
    return np.array(tops, int), np.array(counts, int)


def _along_rays(
    density: Density, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, "r s d"], Float[np.ndarray, "r s"]]:
    """Places on rays in both ways, and log p there, −∞ where it has no value."""
    axis_key, key = divided(key, 2)
    random = np.array(normal(key, (DIRECTIONS, density.dim), density.dtype), np.float64)
    frames = _frames(density)
    for number, frame in enumerate(frames):
        random[number :: len(frames)] @= frame.T
    random *= np.sqrt(density.dim) / np.linalg.norm(random, axis=1, keepdims=True)
    one_way = np.concatenate([_own_directions(density, axis_key), random])
    points = np.concatenate([one_way, -one_way])[:, None] * RADII[:, None]
    values = log_densities(density, points.reshape(-1, density.dim)).reshape(points.shape[:2])
    return points, np.where(np.isfinite(values), values, -np.inf)


def _own_directions(density: Density, key: PRNGKeyArray) -> Float[np.ndarray, "m d"]:
    """Directions in which the target's own coordinates move: one at a time, and all by as much.

    Where coordinates are exchangeable, what is peculiar often lies where they agree.
    """
    dim = density.dim
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    axes = rng.permutation(dim)[:AXES]
    moved = np.concatenate([np.eye(dim)[axes], np.ones((1, dim))])
    if isinstance(density, Whitened):
        moved = np.linalg.solve(np.asarray(density.affine.matrix, np.float64), moved.T).T
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def _humps(values: Float[np.ndarray, "r s"]) -> Bool[np.ndarray, "r s"]:
    """Where log p on a ray is larger than around, and has risen on the way there."""
    risen = values > np.minimum.accumulate(values, 1) + RISE
    top = np.zeros_like(risen)
    top[:, 1:-1] = (values[:, 1:-1] >= values[:, :-2]) & (values[:, 1:-1] > values[:, 2:])
    return risen & top


def _hinted(density: Density, key: PRNGKeyArray) -> Float[np.ndarray, "m d"]:
    """The user's starting point, and draws of the model's prior, in the coordinates of training."""
    if not isinstance(density, Whitened) or density.target.draws_its_start:
        return np.zeros((0, density.dim))
    target = density.target
    points = jnp.asarray(target.initial)[None]
    if isinstance(target.model, DrawsItsPrior):
        points = jnp.concatenate([points, target.model.prior_draws(CLIMBERS // 4, key=key)])
    u = np.asarray(preimages(density.affine, points.astype(density.dtype)), np.float64)
    return u[np.isfinite(u).all(1)]


@brief
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
