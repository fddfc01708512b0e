r"""What lies around the summits: their widths, and the mass of p near them by importance sampling.

A narrow mode that no particle has met on its way down holds more mass around its summit than the islands say. Near
each summit c with curvature H = −∇²log p(c), draws of Student's t of scale |H|^(−1/2) are weighted by p/t. The mean
weight of those within a region estimates its mass, which is compared with the share of the islands' particles there.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from gpvi._compute.noise import divided
from gpvi.exploration.curvature import MOST, NARROWEST, cost, curvature
from gpvi.exploration.modes import log_densities
from gpvi.exploration.probes import SummitsInSight, summits_in_sight
from gpvi.exploration.tempering import Summits
from gpvi.targets.coordinates import Affine, log_volume
from gpvi.targets.density import Density

DEGREES = 5
"""Degrees of freedom of the draws around a summit."""
NEAR = 256
"""Draws around each summit."""
MARGIN = 12.0
"""Nats: a summit whose mass, as that of a Gaussian, is smaller by more than this does not matter."""
OVERLOOKED = 2.0
"""Islands overlook a summit if the mass around it is this many times what they found there."""
LEAST_SHARE = 0.02
"""Of the posterior; less is not looked at."""
FEWEST_BEGUN_AT, BEGUN_COORDINATES = 16, 1_280
"""Particles begin at as many summits and modes as have so many coordinates together, but at no fewer, nor at more than
`MOST`: each costs an evaluation of the wide end."""


class Surroundings(NamedTuple):
    """Summits of log p and weighted draws around them, in the coordinates of training or the target's.

    Parameters
    ----------
    centres
        The summits.
    factors
        F with covariance F Fᵀ around each.
    points
        Draws around each summit.
    log_density
        log p there.
    log_weights
        log p less the log-density of the draws; −∞ outside the region of the summit.
    met_once
        Whether one climbing point alone reached it.
    gradients
        The gradients that it took to find them.
    """

    centres: Float[np.ndarray, "m d"]
    factors: Float[np.ndarray, "m d d"]
    points: Float[np.ndarray, "m n d"]
    log_density: Float[np.ndarray, "m n"]
    log_weights: Float[np.ndarray, "m n"]
    met_once: Bool[np.ndarray, " m"]
    gradients: int

    def within(self, x: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, "m n"]:
        """Whether points lie in the region of each summit."""
        away = x - self.centres[:, None]
        standard = np.linalg.solve(self.factors, np.swapaxes(away, 1, 2))
        return (standard**2).sum(1) < _radius(x.shape[1])

    def masses(self, inside: Bool[np.ndarray, "m n"]) -> tuple[np.ndarray, np.ndarray]:
        """log of the mass of p in the part of each region where `inside` holds, and its relative standard error."""
        log_weights = np.where(inside, self.log_weights, -np.inf)
        largest = np.maximum(log_weights.max(1, keepdims=True), -1e30)
        weights = np.exp(log_weights - largest)
        mean = np.maximum(weights.mean(1), 1e-300)
        error = weights.std(1, ddof=1) / mean / math.sqrt(weights.shape[1])
        return np.log(mean) + largest[:, 0], error

    def overlooked(self, points: Float[np.ndarray, "k n d"], log_evidence: float) -> bool:
        """Whether the particles of islands, whose estimate of Z is given, are too few around some summit."""
        found = self.within(points.reshape(-1, points.shape[-1])).mean(1)
        log_mass, error = self.masses(np.isfinite(self.log_weights))
        share = np.exp(np.minimum(log_mass - log_evidence, 50.0)) * np.maximum(1 - 3 * error, 0)
        return bool(((share > LEAST_SHARE) & (share > OVERLOOKED * found)).any())

    def share_met_once(self, log_evidence: float) -> float:
        """The share of the posterior around summits that one point alone reached, as far as it is certain."""
        log_mass, error = self.masses(np.isfinite(self.log_weights))
        share = np.exp(log_mass - np.logaddexp(log_evidence, log_mass)) * np.maximum(
            1 - 3 * error, 0
        )
        return float(share[self.met_once].sum())

    def placed(self, affine: Affine) -> "Surroundings":
        """The same in the coordinates that the affine map leads to."""
        matrix = np.asarray(affine.scale, np.float64)
        matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
        location = np.asarray(affine.location, np.float64)
        return self._replace(
            centres=location + self.centres @ matrix.T,
            factors=matrix @ self.factors,
            points=location + self.points @ matrix.T,
            log_density=self.log_density - float(log_volume(affine)),
        )

    def starts(
        self, points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"], dtype: np.dtype
    ) -> Summits:
        """Where particles begin: around the summits with the largest mass, and in modes that lie elsewhere.

        Their number is made a power of two by repetitions, so that few programs are compiled.
        """
        most = int(np.clip(BEGUN_COORDINATES // points.shape[1], FEWEST_BEGUN_AT, MOST))
        at_summit = np.any(self.within(points), axis=0)
        modes = [points[labels == label] for label in range(labels.max() + 1)]
        elsewhere = [
            each for label, each in enumerate(modes) if at_summit[labels == label].mean() < 0.5
        ][: most // 2]
        heaviest = np.argsort(-self.masses(np.isfinite(self.log_weights))[0])
        heaviest = heaviest[: most - len(elsewhere)]
        centres = np.concatenate([self.centres[heaviest], *(e.mean(0)[None] for e in elsewhere)])
        widths = np.sqrt((self.factors[heaviest] ** 2).sum(2))
        widths = np.concatenate([widths, *(e.std(0)[None] + NARROWEST for e in elsewhere)])
        rows = np.resize(np.arange(len(centres)), 2 ** (len(centres) - 1).bit_length())
        return Summits(jnp.asarray(centres[rows], dtype), jnp.asarray(widths[rows], dtype))


def look_around(density: Density, *, key: PRNGKeyArray) -> Surroundings | None:
    """Find summits, and draw around those that may matter; None if log p is finite at none."""
    summit_key, draw_key = divided(key, 2)
    summits = summits_in_sight(density, key=summit_key)
    if not len(summits.centres):
        return None
    shape = curvature(density, summits.centres)
    log_mass = summits.heights + 0.5 * np.log(shape.variances).sum(1)
    matters = log_mass >= log_mass.max() - MARGIN
    factors = (shape.axes * np.sqrt(shape.variances)[:, None])[matters]
    spent = cost(len(log_mass), density.dim) + len(factors) * NEAR // 2
    kept = summits._replace(
        centres=summits.centres[matters],
        points=summits.points[matters],
        gradients=summits.gradients + spent,
    )
    return _surroundings(density, kept, factors, draw_key)


def _surroundings(
    density: Density,
    summits: SummitsInSight,
    factors: Float[np.ndarray, "m d d"],
    key: PRNGKeyArray,
) -> Surroundings:
    centres = summits.centres
    count, dim = centres.shape
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    stretch = np.sqrt(DEGREES / rng.chisquare(DEGREES, (count, NEAR, 1)))
    standard = rng.standard_normal((count, NEAR, dim)) * stretch
    points = centres[:, None] + np.einsum("mij,mnj->mni", factors, standard)
    log_p = log_densities(density, points.reshape(-1, dim)).reshape(count, NEAR)
    log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
    square = (standard**2).sum(2)
    log_norm = math.lgamma((DEGREES + dim) / 2) - math.lgamma(DEGREES / 2)
    log_norm -= 0.5 * dim * math.log(DEGREES * math.pi)
    log_det = np.linalg.slogdet(factors)[1][:, None]
    log_t = log_norm - log_det - 0.5 * (DEGREES + dim) * np.log1p(square / DEGREES)
    log_weights = np.where(square < _radius(dim), log_p - log_t, -np.inf)
    once = summits.points == 1
    return Surroundings(centres, factors, points, log_p, log_weights, once, summits.gradients)


def _radius(dim: int) -> float:
    """The squared distance, in standard deviations, that nearly all draws of a Gaussian are within."""
    return dim + 4 * math.sqrt(2 * dim)
