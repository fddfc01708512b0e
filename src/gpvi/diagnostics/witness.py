r"""A second witness: what independent islands found of the posterior, beside what the draws say of themselves.

Three comparisons. (1) log Z: the islands' estimate may lie below the draws' own, if particles could not follow into a
narrow neck; they then say nothing of what they missed. Above it, the draws miss mass. (2) At the islands' particles,
distributed like p, the ratio p/(Z q) is near 1 if q fits; the share of particles at which q is far too small is the
share of the posterior that the draws hardly visit. The mean of log p − log q there is the EUBO, never below log Z. The
same is asked around each summit that was in sight. (3) Without log q, the shares of the modes among the draws, and of
the surroundings of summits, are compared with the islands'.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gpvi._compute.brief import brief
from gpvi.diagnostics.importance import Importance
from gpvi.diagnostics.missing_mass import ReferenceEvidence
from gpvi.diagnostics.verdict import LARGEST_EVIDENCE_ERROR, TOLERATED_MISSING
from gpvi.errors import NotAvailableError
from gpvi.exploration.search import Exploration
from gpvi.exploration.summits import Surroundings
from gpvi.generators import AbstractGenerator

TOO_SMALL = math.log(20)
"""Nats: where log q lies this far below log p − log Z, the draws hardly visit the posterior."""
ISLAND_ERRORS = 4.8
"""Standard errors from eight islands that chance exceeds once in a thousand: the quantile of Student's t."""
RARE = 0.1
"""A mode is lost if the draws have less than this part of its share."""
FEWEST_ISLANDS = 2
"""A part of the posterior that one island alone has met is reported as a doubt only if its share is large."""


BLOCK = 1_024
"""Points at which log q is evaluated by one program."""


class Witness(NamedTuple):
    """What the islands say about the draws.

    Parameters
    ----------
    log_evidence, se
        log Z by the islands, and its standard error.
    healthy
        Whether the islands arrived, agree with each other, and miss nothing that the draws have found.
    unseen
        The share of the posterior that the draws hardly visit, as far as it is significant.
    gradients
        The evaluations of log p and its gradient that exploration took.
    met_once
        The share of the posterior in modes that were met once only: about as much may be unseen.
    eubo
        E_p[log p − log q], an upper bound of log Z; None without log q.
    """

    log_evidence: float
    se: float
    healthy: bool
    unseen: float
    gradients: int
    met_once: float = 0.0
    eubo: float | None = None


def evidence_of(exploration: Exploration | None) -> ReferenceEvidence | None:
    """The islands' log Z, its error widened so that three mean one chance in a thousand; None unless all arrived."""
    if exploration is None or not exploration.arrived:
        return None
    return ReferenceEvidence(
        exploration.log_evidence, exploration.log_evidence_se * ISLAND_ERRORS / 3
    )


def hear(
    exploration: Exploration, generator: AbstractGenerator, own: Importance, dtype: np.dtype
) -> Witness:
    """Compare the draws of a generator with what the islands found."""
    healthy = _healthy(exploration, own, dtype)
    shape = exploration.log_density.shape
    try:
        points = exploration.points.reshape(-1, exploration.points.shape[-1])
        log_q = log_q_at(generator, points, dtype).reshape(shape)
    except NotAvailableError:
        return _witness(exploration, healthy, 0.0)
    log_ratio = exploration.log_density - log_q
    evidence = max(own.log_evidence, exploration.log_evidence)
    hardly = (log_ratio - evidence > TOO_SMALL).astype(float)
    around = exploration.around
    unseen = max(_significant(exploration, hardly, evidence), _lost(exploration, hardly, evidence))
    if around is not None:
        near_log_q = log_q_at(generator, around.points.reshape(-1, around.points.shape[-1]), dtype)
        near_ratio = around.log_density - near_log_q.reshape(around.log_density.shape)
        near = _around_summits(around, near_ratio - own.log_evidence > TOO_SMALL, evidence)
        unseen = max(unseen, near.max())
    eubo = float(exploration.average(np.minimum(log_ratio, 1e6))[0])
    return _witness(exploration, healthy, unseen, eubo)


def hear_points(exploration: Exploration, draws: Float[np.ndarray, "n d"]) -> Witness:
    """Compare the shares of the modes among draws without densities with those that the islands found."""
    from scipy.spatial import KDTree

    points = exploration.points.reshape(-1, exploration.points.shape[-1])
    spread = points.std(0) + np.finfo(float).tiny
    nearest = KDTree(points / spread).query(draws / spread)[1]
    labels = exploration.labels.ravel()[nearest]
    shares, _ = exploration.shares
    own = np.bincount(labels, minlength=len(shares)) / len(labels)
    rare = np.isin(exploration.labels, np.flatnonzero(own < RARE * shares)).astype(float)
    unseen = _lost(exploration, rare, exploration.log_evidence)
    around = exploration.around
    if around is not None:
        everywhere = np.ones_like(around.log_weights, bool)
        near = _around_summits(around, everywhere, exploration.log_evidence)
        few = around.within(draws).mean(1) < RARE * near
        unseen = max(unseen, float((near * few).max()))
    return _witness(exploration, exploration.arrived and not exploration.overlooks, unseen)


def _witness(
    exploration: Exploration, healthy: bool, unseen: float, eubo: float | None = None
) -> Witness:
    log_evidence, se = exploration.log_evidence, exploration.log_evidence_se
    met_once = exploration.met_once
    return Witness(log_evidence, se, healthy, unseen, exploration.gradients, met_once, eubo)


def _healthy(exploration: Exploration, own: Importance, dtype: np.dtype) -> bool:
    """Whether the islands agree, and miss nothing that the draws found: their log Z is not significantly smaller."""
    rounding = abs(own.log_evidence) * float(np.finfo(dtype).eps)
    error = ISLAND_ERRORS * exploration.log_evidence_se + 3 * own.log_evidence_se + rounding
    short = own.log_evidence - exploration.log_evidence
    agrees = short <= max(error, -math.log1p(-TOLERATED_MISSING))
    certain = exploration.log_evidence_se <= LARGEST_EVIDENCE_ERROR
    return exploration.arrived and certain and agrees and not exploration.overlooks


def _around_summits(
    around: Surroundings, inside: Bool[np.ndarray, "m n"], log_evidence: float
) -> Float[np.ndarray, " m"]:
    """The share of the posterior in a part of the region of each summit, or 0 if it is small or uncertain."""
    log_mass, error = around.masses(inside)
    share = np.exp(log_mass - np.logaddexp(log_evidence, log_mass))
    return np.where((1 - 3 * error) * share > TOLERATED_MISSING, share, 0.0)


def _significant(
    exploration: Exploration, inside: Float[np.ndarray, "k n"], log_evidence: float
) -> float:
    """The share of the posterior in a set, or 0 if it is small, uncertain, or met by one island only.

    The islands' estimate of the mass in a set has the right mean, or falls short where particles could not follow. So
    it counts against the draws even if the islands miss other parts; what it is a share of is the larger log Z.
    """
    share, error, islands = _share(exploration, inside, log_evidence)
    surely = share > TOLERATED_MISSING + error
    return share if surely and islands >= FEWEST_ISLANDS else 0.0


def _lost(exploration: Exploration, hardly: Float[np.ndarray, "k n"], log_evidence: float) -> float:
    """The share of the modes that the draws hardly visit anywhere, or 0 if it is surely small.

    That draws leave out a whole mode is no matter of chance, so its share need not be known well to count.
    """
    visited = np.bincount(exploration.labels.ravel(), 1 - hardly.ravel())
    lost = visited < RARE * np.bincount(exploration.labels.ravel())
    share, error, islands = _share(
        exploration, lost[exploration.labels].astype(float), log_evidence
    )
    possibly = share + error > TOLERATED_MISSING
    return share if possibly and islands >= FEWEST_ISLANDS else 0.0


def _share(
    exploration: Exploration, inside: Float[np.ndarray, "k n"], log_evidence: float
) -> tuple[float, float, int]:
    """The share of the posterior in a set, its standard error, and how many islands have met it."""
    known = math.exp(min(exploration.log_evidence - log_evidence, 0.0))
    share, error = (known * float(each) for each in exploration.average(inside))
    return share, error, int(inside.any(1).sum())


def log_q_at(
    generator: AbstractGenerator, x: Float[np.ndarray, "m d"], dtype: np.dtype
) -> Float[np.ndarray, " m"]:
    """log q at any points, very small where it underflows, in blocks of one size."""
    padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % BLOCK, axis=0)])
    parts = [
        np.asarray(_log_q(generator, jnp.asarray(padded[first : first + BLOCK], dtype)), np.float64)
        for first in range(0, len(padded), BLOCK)
    ]
    log_q = np.concatenate(parts)[: len(x)]
    return np.maximum(np.where(np.isnan(log_q), -np.inf, log_q), -1e30)


@brief(calls=16)
def _log_q(generator: AbstractGenerator, x: Float[Array, "m d"]) -> Float[Array, " m"]:
    return jax.lax.map(generator.log_prob, x, batch_size=256)
