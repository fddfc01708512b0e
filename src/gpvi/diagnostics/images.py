r"""Mirror images and permutations: whether log p is as large at images of the draws, where no draw lies.

For a map T that changes signs or exchanges coordinates, |det T| = 1, so the mean of p(Tx)/q(x) over draws x of q with
Tx in a set A estimates the mass of p in A, as far as images reach. A is where q is far smaller than p. One visited mode
thus shows its unvisited twins, however narrow they are and in any dimension. Maps follow the names of the coordinates:
`mu[0]` and `sd[0]` are exchanged together with `mu[1]` and `sd[1]`.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from gpvi.diagnostics.importance import Importance, WeightedDraws
from gpvi.diagnostics.verdict import TOLERATED_MISSING
from gpvi.diagnostics.witness import TOO_SMALL, log_q_at
from gpvi.errors import NotAvailableError
from gpvi.exploration.modes import log_densities
from gpvi.generators import AbstractGenerator
from gpvi.targets.coordinates import Whitened, log_volume, preimages

LOOKED_AT, COUNTED = 8, 256
"""Draws whose images are looked at, and those that are counted where it seems to pay."""
MOST_MAPS, FOLLOWED = 256, 4
"""Maps that are tried, and those that are counted."""


MOST_DIMENSIONS = 1_000
"""Beyond it, as in networks, symmetries are too many for a few maps to mean anything."""


class Image(NamedTuple):
    """Images of the draws at which log p is as large, and which the draws hardly visit."""

    share: float
    """Of the posterior."""
    which: str
    """The map, in words."""


class Map(NamedTuple):
    """x ↦ signs · x[order]."""

    which: str
    order: Int[np.ndarray, " d"]
    signs: Float[np.ndarray, " d"]

    def __call__(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return self.signs * x[:, self.order]


def unvisited_image(
    density: Whitened, generator: AbstractGenerator, drawn: WeightedDraws, own: Importance
) -> Image | None:
    """Return the images that hold the most of what the draws hardly visit, if that is significant."""
    if density.dim > MOST_DIMENSIONS or density.stream is not None:
        return None
    maps = list(itertools.islice(_maps(density.target.names), MOST_MAPS))
    log_p, log_q = (np.asarray(each, np.float64) for each in (drawn.log_p, drawn.log_q))
    usable = np.flatnonzero(np.isfinite(log_p))[:COUNTED]
    if len(usable) < COUNTED:
        return None
    x, log_p, log_q = np.asarray(drawn.x, np.float64)[usable], log_p[usable], log_q[usable]
    few = slice(0, LOOKED_AT)
    first_log_p = _log_p(density, np.stack([each(x[few]) for each in maps]))
    alike = np.flatnonzero((first_log_p > log_p[few] - TOO_SMALL).any(axis=1))
    maps, first_log_p = [maps[i] for i in alike], first_log_p[alike]
    if not maps:
        return None
    try:
        images = np.stack([each(x[few]) for each in maps])
        hardly = first_log_p - own.log_evidence - _log_q(density, generator, images) > TOO_SMALL
        likely = (hardly & (first_log_p > log_p[few] - TOO_SMALL)).mean(1)
        best = [i for i in np.argsort(-likely, kind="stable")[:FOLLOWED] if likely[i] > 0]
        if not best:
            return None
        images = np.stack([maps[i](x) for i in best])
        image_log_p, image_log_q = _log_p(density, images), _log_q(density, generator, images)
    except NotAvailableError:
        return None
    hardly = image_log_p - own.log_evidence - image_log_q > TOO_SMALL
    mass = np.where(hardly, np.exp(np.minimum(image_log_p - log_q - own.log_evidence, 50.0)), 0.0)
    return max(
        (found for i, each in zip(best, mass, strict=True) if (found := _counted(maps[i], each))),
        default=None,
    )


def _counted(map_: Map, mass: Float[np.ndarray, " n"]) -> Image | None:
    """The share of the posterior in these images, from their masses in units of Z as the draws estimate it."""
    mean, error = mass.mean(), mass.std(ddof=1) / math.sqrt(len(mass))
    significant = mean - 3 * error > TOLERATED_MISSING
    return Image(float(mean / (1 + mean)), map_.which) if significant else None


def _log_p(density: Whitened, x: Float[np.ndarray, "m n d"]) -> Float[np.ndarray, "m n"]:
    flat = jnp.asarray(x.reshape(-1, density.dim), density.dtype)
    u = np.asarray(preimages(density.affine, flat), np.float64)
    values = log_densities(density, u) - float(log_volume(density.affine))
    return np.where(np.isfinite(values), values, -np.inf).reshape(x.shape[:2])


def _log_q(
    density: Whitened, generator: AbstractGenerator, x: Float[np.ndarray, "m n d"]
) -> Float[np.ndarray, "m n"]:
    return log_q_at(generator, x.reshape(-1, density.dim), density.dtype).reshape(x.shape[:2])


def _maps(names: Sequence[str]) -> Iterator[Map]:
    """Every map that is worth a look, each once: exchanges first, then changes of sign."""
    seen = {(np.arange(len(names)).tobytes(), np.ones(len(names)).tobytes())}
    for each in itertools.chain(_exchanges(names), _flips(names)):
        identity = each.order.tobytes(), each.signs.tobytes()
        if identity not in seen:
            seen.add(identity)
            yield each


def _exchanges(names: Sequence[str]) -> Iterator[Map]:
    """Exchange two entries along an axis, in all unknowns with an axis of that length."""
    for slices in _alike(names):
        for a, b in itertools.combinations(slices, 2):
            order = np.arange(len(names))
            order[a], order[b] = b, a
            which = f"{names[a[0]]} and {names[b[0]]} exchanged{_others(a)}"
            yield Map(which, order, np.ones(len(names)))


def _flips(names: Sequence[str]) -> Iterator[Map]:
    """Change the signs of one coordinate, of one unknown, of one entry along an axis, or of all."""
    everything = np.arange(len(names))
    unknowns = [each.ravel() for each in _unknowns(names).values()]
    slices = [each for alike in _alike(names) for each in alike]
    for block in (*everything[:, None], *unknowns, *slices, everything):
        signs = np.ones(len(names))
        signs[block] = -1
        yield Map(f"the sign of {names[block[0]]} changed{_others(block)}", everything, signs)


def _others(block: Int[np.ndarray, " m"]) -> str:
    return f" (and {len(block) - 1} more with it)" if len(block) > 1 else ""


def _alike(names: Sequence[str]) -> Iterator[Int[np.ndarray, "k m"]]:
    """Coordinates that may be exchangeable, as rows: along axes of one length, and along the folds of a lone vector."""
    unknowns = list(_unknowns(names).values())
    by_length: dict[int, list[np.ndarray]] = {}
    for each in unknowns:
        for length in dict.fromkeys(each.shape):
            rows = np.moveaxis(each, each.shape.index(length), 0).reshape(length, -1)
            by_length.setdefault(length, []).append(rows)
    for length, parts in by_length.items():
        if length > 1:
            yield np.concatenate(parts, 1)
            if len(parts) > 1:
                yield from parts
    if len(unknowns) == 1 and unknowns[0].ndim == 1:
        dim = len(names)
        for length in range(2, dim // 2 + 1):
            if dim % length == 0:
                yield np.arange(dim).reshape(-1, length).T
                yield np.arange(dim).reshape(length, -1)


def _unknowns(names: Sequence[str]) -> dict[str, Int[np.ndarray, "..."]]:
    """The coordinates of each unknown, in its shape: `w[0,1]` is an entry of `w`."""
    entries: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for coordinate, name in enumerate(names):
        match = re.fullmatch(r"(.*)\[([\d,]+)\]", name)
        site, at = (match[1], match[2]) if match else (name, "0")
        index = tuple(int(each) for each in at.split(",") if each)
        entries.setdefault(site, []).append((index, coordinate))
    return {site: _array(found) for site, found in entries.items()}


def _array(entries: list[tuple[tuple[int, ...], int]]) -> Int[np.ndarray, "..."]:
    """Coordinates in the shape of their indices, or in a row if these do not fill a box."""
    coordinates = np.array([coordinate for _, coordinate in entries])
    if len({len(index) for index, _ in entries}) > 1:
        return coordinates
    shape = tuple(1 + max(each) for each in zip(*(index for index, _ in entries), strict=True))
    if math.prod(shape) != len(coordinates):
        return coordinates
    placed = np.empty(shape, int)
    for index, coordinate in entries:
        placed[index] = coordinate
    return placed
