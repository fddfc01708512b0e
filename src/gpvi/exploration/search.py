r"""How far out to begin, how many particles to use, and what the islands found together.

Half of the islands begin at a scale s, and half four times as far out. First small islands go down, until s is several
times as wide as all they find (from there the modes look alike, so none is lost on the way) and the wider half finds no
more than the other. Then, where the islands disagree or have found several modes, they are made larger, within a stated
number of gradients. Neither shows what none of the islands has met, such as a spike.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.noise import divided, folded, normal
from gpvi.exploration.modes import labelled
from gpvi.exploration.summits import Surroundings, look_around
from gpvi.exploration.tempering import DEGREES, Islands, all_arrived, temper
from gpvi.targets.coordinates import Whitened, images, log_volume
from gpvi.targets.density import Density, expensive

ISLANDS = 8
"""Independent islands; their spread is the standard error of everything that is estimated from them."""
LEVELS = ((128, 0.6), (256, 0.9), (1_024, 0.95))
"""Particles of an island, and the effective share that a temperature keeps: at first, and where islands disagree."""
MOST_GRADIENTS, MOST_OPERATIONS = 6_000_000, 4e11
"""No larger set of particles is begun if it would need more gradients, or more operations of log p, than this."""
MOST_DIMENSIONS = 200
"""Beyond it the temperatures are too many."""
NARROWEST = 8.0
"""The least scale of a wide end, in the coordinates of training."""
WIDER = 4.0
"""How much farther out the wider half of the islands begins."""
GROWTHS = 5
"""How often the scale may grow by that factor."""
FELL_SHORT = 3.0
"""Farther out is too far if log Z falls by more than this many nats, and by more than this many standard errors."""
FLAT = 1.0
"""Nats: the wide end is flat over what was found if its logarithm has no larger standard deviation there.

On the way down the particles of a mode are as many as the wide end puts there: of modes that differ by ten nats, one
is lost.
"""
FARTHEST = 2.0
"""The scale is at least the largest coordinate of the summits in sight, divided by this."""
SCALES = 2.0 ** np.arange(0, 15)
"""The scales at which log p is looked at."""
LOOKED_AT = 256
"""Points at each of them."""
FINITE_SHARE = 0.25
"""At the wide end log p must be finite for this share of the particles."""
SETTLED_ERROR = 0.2
"""A standard error of log Z that needs no more particles, where one mode was found."""
LEAST_SHARE = 0.02
"""Chains do not start in smaller modes."""
LARGER = 6
"""A level costs at most about this many times as much as the one before."""
KEPT = 512
"""Particles of an island that are kept, at most."""


@dataclasses.dataclass(frozen=True)
class Exploration:
    """What independent islands found of a posterior.

    Parameters
    ----------
    points
        Particles of each island, in the target's coordinates.
    log_density
        log p there, in the same coordinates.
    labels
        The mode that each particle belongs to: 0, 1, …
    island_log_evidence
        log Z as each island estimates it.
    scale
        The width of the wide end that was needed, in the coordinates of training.
    gradients
        The evaluations of log p and its gradient that it took.
    arrived
        Whether every island reached the posterior.
    around
        The summits that were in sight beforehand, in the target's coordinates, with weighted draws around them.
    informed
        Whether particles began around these summits as well.
    """

    points: Float[np.ndarray, "k n d"]
    log_density: Float[np.ndarray, "k n"]
    labels: Int[np.ndarray, "k n"]
    island_log_evidence: Float[np.ndarray, " k"]
    scale: float
    gradients: int
    arrived: bool
    around: Surroundings | None = None
    informed: bool = False

    @cached_property
    def island_weights(self) -> Float[np.ndarray, " k"]:
        """The share of each island in averages: proportional to its estimate of Z."""
        weights = np.exp(self.island_log_evidence - self.island_log_evidence.max())
        return weights / weights.sum()

    @property
    def log_evidence(self) -> float:
        """The logarithm of the mean of the islands' estimates of Z."""
        return log_mean(self.island_log_evidence)[0]

    @property
    def log_evidence_se(self) -> float:
        """Its standard error, from the spread of the islands."""
        return log_mean(self.island_log_evidence)[1]

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of values at the particles, (k, n, …), over the posterior, and its standard error."""
        of_islands, weights = values.mean(1), self.island_weights
        mean = np.tensordot(weights, of_islands, 1)
        excess = weights.reshape(-1, *(1,) * (of_islands.ndim - 1)) * (of_islands - mean)
        count = len(weights)
        error = np.sqrt((excess**2).sum(0) * count / (count - 1))
        return np.asarray(mean), np.asarray(error)

    @cached_property
    def overlooks(self) -> bool:
        """Whether the islands have too few particles around some summit that was in sight."""
        return self.around is not None and self.around.overlooked(self.points, self.log_evidence)

    @cached_property
    def met_once(self) -> float:
        """The share of the posterior in modes that one island alone has met: by Good and Turing, as much is unseen.

        Islands that began around summits all meet these; then it is the share around those that one point reached.
        """
        if self.informed and self.around is not None:
            return self.around.share_met_once(self.log_evidence)
        shares, _ = self.shares
        islands = (self.labels[..., None] == np.arange(len(shares))).any(1).sum(0)
        return float(shares[islands == 1].sum())

    @property
    def several(self) -> bool:
        """Whether particles are in several modes."""
        return bool(self.labels.any())

    @property
    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """The share of each mode, and its standard error."""
        modes = np.arange(self.labels.max() + 1)
        return self.average((self.labels[..., None] == modes).astype(float))

    def starts(self, count: int) -> Float[np.ndarray, "count d"]:
        """Points to start chains from: each in another mode, as long as there are modes, and from another island."""
        shares, _ = self.shares
        modes = np.flatnonzero(shares >= min(LEAST_SHARE, shares.max()))
        of_island = np.arange(self.labels.size) % self.labels.shape[1]
        chosen = []
        for chain in range(count):
            inside = np.flatnonzero(self.labels.ravel() == modes[chain % len(modes)])
            inside = inside[np.argsort(of_island[inside], kind="stable")]
            chosen.append(inside[chain // len(modes) % len(inside)])
        return self.points.reshape(-1, self.points.shape[-1])[chosen]


def log_mean(logarithms: Float[np.ndarray, " k"]) -> tuple[float, float]:
    """The logarithm of the mean of independent estimates, and its standard error, from their logarithms."""
    largest = logarithms.max()
    values = np.exp(logarithms - largest)
    error = values.std(ddof=1) / values.mean() / math.sqrt(len(values))
    return float(largest + np.log(values.mean())), float(error)


def explorable(density: Density) -> bool:
    """Whether it can be explored: log p of all data is at hand and not expensive, in up to 200 dimensions."""
    return not (
        density.dim > MOST_DIMENSIONS
        or density.stream is not None
        or density.draws_its_start
        or expensive(density)
    )


def once_explored(density: Whitened, *, key: PRNGKeyArray) -> Callable[[], Exploration | None]:
    """A function that explores the posterior when it is first called; it returns None if that cannot be done."""
    return functools.cache(lambda: explore(density, key=key) if explorable(density) else None)


def explore(density: Whitened, *, key: PRNGKeyArray) -> Exploration | None:
    """Explore a posterior with independent islands; None if no particle could be brought to it."""
    pilot_key, key = divided(key, 2)
    islands, scale, spent, around = pilot(density, key=pilot_key)
    found = _found(density, islands, scale, spent, around)
    most = min(MOST_GRADIENTS, MOST_OPERATIONS / density.operations())
    for number, (particles, kept_share) in enumerate(LEVELS[1:]):
        own = _gradients(islands)
        if found is None or _settled(found) or spent + LARGER * own > most:
            break
        own_key = folded(key, number)
        scales, summits = islands.scale, islands.shared_summits
        islands = temper(density, scales, particles, kept_share, summits, key=own_key)
        spent += _gradients(islands)
        found = _found(density, islands, scale, spent, around)
    return found


class Pilot(NamedTuple):
    """Small islands, the scale of their nearer half, the gradients spent, and the summits in sight."""

    islands: Islands
    scale: float
    gradients: int
    around: Surroundings | None


def pilot(density: Density, *, key: PRNGKeyArray) -> Pilot:
    """Find how far out to begin, and whether to begin around the summits in sight as well.

    The scale is at least half as large as the farthest summit in sight, and grows while that seems to pay: until log Z
    falls, as it does if particles begin too far out to follow. If the islands then overlook a summit, others begin
    around the summits and in what was found, too; they are kept if their log Z is larger.
    """
    scale_key, look_key, near_key, key = divided(key, 4)
    narrow, widest = (float(each) for each in wide_scale(density, key=scale_key))
    around = look_around(density, key=look_key)
    farthest = 0.0 if around is None else float(np.abs(around.centres).max())
    narrow = max(narrow, min(farthest / FARTHEST, widest))
    islands = temper(density, halves(ISLANDS, narrow, widest), *LEVELS[0], key=folded(key, 0))
    spent, scale = _gradients(islands), narrow
    for number in range(1, 1 + GROWTHS):
        grows = not _flat(islands, scale) or _wider_find_more(islands)
        if not grows or WIDER * scale > widest:
            break
        own_key = folded(key, number)
        wider = temper(density, halves(ISLANDS, WIDER * scale, widest), *LEVELS[0], key=own_key)
        spent += _gradients(wider)
        if _falls_short(wider, of=islands):
            break
        islands, scale = wider, WIDER * scale
    log_z = _log_evidence(islands)
    points = np.asarray(islands.points, np.float64)
    if around is not None and around.overlooked(points, log_z):
        points = points.reshape(-1, density.dim)
        summits = around.starts(points, labelled(density, points), density.dtype)
        around_summits = temper(density, islands.scale, *LEVELS[0], summits, key=near_key)
        spent += _gradients(around_summits)
        islands = max(islands, around_summits, key=_log_evidence)
    return Pilot(islands, scale, spent + (0 if around is None else around.gradients), around)


def _log_evidence(islands: Islands) -> float:
    return log_mean(np.asarray(islands.log_evidence, np.float64))[0]


def halves(
    islands: int, narrow: float | Scalar, widest: float = math.inf
) -> Float[Array | np.ndarray, " k"]:
    """The scale of each island: half of them begin farther out."""
    factors = np.where(np.arange(islands) >= (islands + 1) // 2, WIDER, 1.0)
    scales = narrow * factors
    if not math.isfinite(widest):
        return scales
    return np.where(factors > 1, np.minimum(scales, widest), scales)


def _gradients(islands: Islands) -> int:
    return int(np.asarray(islands.gradients).sum())


def _flat(islands: Islands, scale: float) -> bool:
    """Whether the wide end of this scale is flat over what was found."""
    points = np.asarray(islands.points, np.float64)
    return bool(np.log1p((points / scale) ** 2 / DEGREES).sum(2).std() <= 2 * FLAT / (DEGREES + 1))


def _falls_short(islands: Islands, *, of: Islands) -> bool:
    """Whether the log Z of these islands is smaller by more than chance."""
    own, other = (np.asarray(each.log_evidence, np.float64) for each in (islands, of))
    error = math.hypot(own.std(ddof=1), other.std(ddof=1)) / math.sqrt(len(own))
    return bool(other.mean() - own.mean() > FELL_SHORT * max(1.0, error))


def _wider_find_more(islands: Islands) -> bool:
    """Whether the islands that began farther out have a significantly larger log Z."""
    narrow, wide = np.split(np.asarray(islands.log_evidence, np.float64), 2)
    error = math.hypot(narrow.std(ddof=1), wide.std(ddof=1)) / math.sqrt(len(wide))
    return bool(wide.mean() - narrow.mean() > 0.1 + 3 * error)


def _settled(found: Exploration) -> bool:
    """Whether more particles have little to give: one mode, islands that agree, and no summit that they overlook."""
    settled = bool(found.labels.max() == 0) and found.log_evidence_se <= SETTLED_ERROR
    return settled and not found.overlooks


def _found(
    density: Whitened, islands: Islands, scale: float, spent: int, around: Surroundings | None
) -> Exploration | None:
    """Keep some particles of every island, in the target's coordinates, and sort them into modes."""
    log_evidence = np.asarray(islands.log_evidence, np.float64)
    if not np.isfinite(log_evidence).all():
        return None
    most = islands.points.shape[1]
    kept = np.linspace(0, most - 1, min(KEPT, most)).round().astype(int)
    u = np.asarray(islands.points)[:, kept]
    x = images(density.affine, jnp.asarray(u.reshape(-1, density.dim)))
    log_density = np.asarray(islands.log_density)[:, kept] - np.asarray(log_volume(density.affine))
    labels = labelled(density, u.reshape(-1, density.dim))
    return Exploration(
        np.asarray(x, np.float64).reshape(u.shape),
        log_density.astype(np.float64),
        labels.reshape(log_density.shape),
        log_evidence,
        scale,
        spent,
        all_arrived(islands),
        None if around is None else around.placed(density.affine),
        informed=islands.summits.centres.shape[1] > 0,
    )


@brief
def wide_scale(density: Density, *, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
    """Return how far out to begin, and the largest scale at which log p is finite often enough.

    At s, the mass in a shell of random directions is about s^d times a typical p. The first scale is the last one up
    to which this grows, at least `NARROWEST`: beyond it p falls faster than the volume grows.
    """
    scales = jnp.asarray(SCALES, density.dtype)
    keys = jax.random.split(key, len(SCALES))

    def look(each: tuple[Array, Array]) -> tuple[Scalar, Scalar]:
        scale, key = each
        values = density.log_densities(scale * normal(key, (LOOKED_AT, density.dim), density.dtype))
        finite = jnp.isfinite(values)
        typical = jnp.quantile(jnp.where(finite, values, -jnp.finfo(values.dtype).max), 0.9)
        return typical, finite.mean()

    typical, finite = jax.lax.map(look, (scales, keys))
    usable = finite >= FINITE_SHARE
    shell = typical + density.dim * jnp.log(scales)
    grows = (shell[1:] > shell[:-1]) & usable[1:]
    last = jnp.where(grows, scales[1:], 0.0).max()
    widest = jnp.where(usable, scales, 0.0).max()
    widest = jnp.where(widest > 0, widest, 1.0)
    return jnp.minimum(jnp.maximum(last, NARROWEST), widest), widest
