r"""Which particles belong to one mode: those that are joined by segments along which log p has no dip.

Each particle is joined to its nearest neighbours wherever log p stays above the lower of the two ends by no more than
`DEPTH` nats below it; connected particles form a mode. Groups with a small share join the group at the shallowest dip.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gpvi._html import table
from gpvi.targets.density import Density, at_once

NEIGHBOURS = 6
"""Neighbours that a particle may be joined to."""
ALONG = np.linspace(0, 1, 9)[1:-1]
"""Where on a segment log p is looked at."""
DEPTH = 1.0
"""Nats: a deeper dip separates."""
SMALLEST = 0.005
"""Groups with a smaller share of the particles are not modes of their own."""
LOWEST = -1e300
"""Log p where it has no value."""
SHOWN = 5
"""Modes whose shares a prompt shows."""


class Mode(NamedTuple):
    """One mode of a posterior.

    Parameters
    ----------
    share, share_se
        Its share of the posterior, and the standard error over independent islands.
    mean, sd
        Of the particles in it, in the target's coordinates.
    log_density
        log p at its highest particle.
    islands
        How many of the islands found it.
    image
        How it is related to an earlier mode, such as "mode 0 with other signs"; "" if it is not.
    """

    share: float
    share_se: float
    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    log_density: float
    islands: int
    image: str = ""


class Modes(tuple[Mode, ...]):
    """The modes that were found, the largest share first; printed, and in a notebook, a table."""

    def __str__(self) -> str:
        lines = ["mode  share           islands  log p at the peak"]
        for number, share, islands, peak, image in self._rows():
            lines.append(f"{number:<4}  {share:<14}  {islands:<7}  {peak}   {image}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        shares = [f"{mode.share:.3f}" for mode in self[:SHOWN]]
        more = [f"{len(self) - SHOWN} more"] * (len(self) > SHOWN)
        return f"<Modes with shares {', '.join(shares + more)}>"

    def _repr_html_(self) -> str:
        return table(self._rows(), ("mode", "share", "islands", "log p at the peak", ""), {0, 4})

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(number),
                f"{mode.share:.3f} ± {mode.share_se:.3f}",
                str(mode.islands),
                f"{mode.log_density:.6g}",
                mode.image,
            )
            for number, mode in enumerate(self)
        ]


def labelled(density: Density, points: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
    """Number the modes that the particles belong to, the largest group first."""
    n = len(points)
    near = _nearest(points)
    first, second = np.repeat(np.arange(n), near.shape[1]), near.ravel()
    depths = dips(density, points, first, second)
    labels = _connected(n, first, second, depths <= DEPTH)
    between = _closest_pairs(points, labels)
    first, second = np.concatenate([first, between[0]]), np.concatenate([second, between[1]])
    depths = (
        np.concatenate([depths, dips(density, points, *between)]) if len(between[0]) else depths
    )
    labels = _connected(n, first, second, depths <= DEPTH)
    labels = _joined(points, labels, first, second, depths)
    order = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(order)[labels]


def _connected(
    n: int,
    first: Int[np.ndarray, " m"],
    second: Int[np.ndarray, " m"],
    joins: Bool[np.ndarray, " m"],
) -> Int[np.ndarray, " n"]:
    """Number the groups of points that are connected by some of the segments."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(joins.sum()), (first[joins], second[joins])), shape=(n, n))
    return connected_components(graph, directed=False)[1]


def _closest_pairs(
    points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """The closest particles of every two groups that are not small.

    In one dimension the nearest neighbours of a particle may all lie on one side.
    """
    from scipy.spatial import KDTree

    large = np.flatnonzero(np.bincount(labels) >= max(2, SMALLEST * len(points)))
    first, second = [], []
    for group in large if len(large) > 1 else ():
        inside = np.flatnonzero(labels == group)
        outside = np.flatnonzero(np.isin(labels, large) & (labels != group))
        distance, nearest = KDTree(points[inside]).query(points[outside])
        for other in np.unique(labels[outside]):
            of_other = np.flatnonzero(labels[outside] == other)
            best = of_other[np.asarray(distance)[of_other].argmin()]
            first.append(inside[np.asarray(nearest)[best]])
            second.append(outside[best])
    return np.array(first, int), np.array(second, int)


def _joined(
    points: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    first: Int[np.ndarray, " m"],
    second: Int[np.ndarray, " m"],
    depths: Float[np.ndarray, " m"],
) -> Int[np.ndarray, " n"]:
    """Join each small group to its neighbour behind the shallowest dip; one without neighbours, to the nearest."""
    counts = np.bincount(labels)
    large = np.flatnonzero(counts >= max(2, SMALLEST * len(points)))
    if not len(large):
        return labels
    target = np.arange(len(counts))
    one, other = (
        np.concatenate([labels[first], labels[second]]),
        np.concatenate([labels[second], labels[first]]),
    )
    leaves = np.flatnonzero(~np.isin(one, large) & np.isin(other, large))
    deepest_first = leaves[np.argsort(-np.tile(depths, 2)[leaves], kind="stable")]
    target[one[deepest_first]] = other[deepest_first]
    labels = target[labels]
    lone = ~np.isin(labels, large)
    if lone.any():
        centres = np.stack([points[labels == group].mean(0) for group in large])
        distance = ((points[lone, None] - centres) ** 2).sum(2)
        labels[lone] = large[distance.argmin(1)]
    return np.unique(labels, return_inverse=True)[1]


def _nearest(points: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n m"]:
    """The nearest other particles of each particle."""
    from scipy.spatial import KDTree

    count = min(NEIGHBOURS, len(points) - 1)
    return np.asarray(KDTree(points).query(points, count + 1)[1])[:, 1:]


def dips(
    density: Density,
    points: Float[np.ndarray, "n d"],
    first: Int[np.ndarray, " m"],
    second: Int[np.ndarray, " m"],
) -> Float[np.ndarray, " m"]:
    """How far log p falls below the lower end on each segment; by nothing where an end has no density."""
    at = np.concatenate([[0.0], ALONG, [1.0]])[:, None]
    start, end = points[first, None], points[second, None]
    values = log_densities(density, (start + at * (end - start)).reshape(-1, points.shape[1]))
    values = np.where(np.isfinite(values), values, LOWEST).reshape(len(first), -1)
    lower = np.minimum(values[:, 0], values[:, -1])
    return lower - values.min(1)


def log_densities(density: Density, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """log p at many points, in blocks of one size."""
    block = at_once(density.dim)
    padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % block, axis=0)])
    parts = [
        np.asarray(_block(density, jnp.asarray(padded[i : i + block], density.dtype)), np.float64)
        for i in range(0, len(padded), block)
    ]
    return np.concatenate(parts)[: len(x)]


@eqx.filter_jit
def _block(density: Density, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    return density.log_densities(x)


def tabulated(
    points: Float[np.ndarray, "k n d"],
    log_density: Float[np.ndarray, "k n"],
    labels: Int[np.ndarray, "k n"],
    shares: Sequence[float] | np.ndarray,
    errors: Sequence[float] | np.ndarray,
) -> Modes:
    """Describe each mode by the particles in it; the largest share first."""
    modes: list[Mode] = []
    for label in np.argsort(-np.asarray(shares), kind="stable"):
        inside = labels == label
        own = points[inside]
        mode = Mode(
            float(shares[label]),
            float(errors[label]),
            own.mean(0),
            own.std(0),
            float(log_density[inside].max()),
            int(inside.any(1).sum()),
        )
        modes.append(mode._replace(image=_image(mode, modes)))
    return Modes(modes)


def _image(mode: Mode, earlier: Sequence[Mode]) -> str:
    """Say which earlier mode this one mirrors or permutes: same mean and spread but for signs or order."""

    def close(a: np.ndarray, b: np.ndarray, sd: np.ndarray) -> bool:
        return bool((np.abs(a - b) <= 0.5 * sd + 1e-12).all())

    for number, other in enumerate(earlier):
        spread = np.maximum(mode.sd, other.sd)
        alike = (np.abs(np.log(mode.sd / other.sd)) < 0.5).all()
        if alike and close(np.abs(mode.mean), np.abs(other.mean), spread):
            return f"mode {number} with other signs"
        a, b = np.argsort(mode.mean), np.argsort(other.mean)
        alike = (np.abs(np.log(mode.sd[a] / other.sd[b])) < 0.5).all()
        if alike and close(mode.mean[a], other.mean[b], spread[a]):
            return f"mode {number} in another order"
    return ""
