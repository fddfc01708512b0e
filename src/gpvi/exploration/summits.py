r"""What lies around the summits: their widths, and the mass of p near them by importance sampling.

A narrow mode that no particle has met on its way down holds more mass around its summit than the islands say. Near
each summit c with curvature H = −∇²log p(c), draws of Student's t of scale |H|^(−1/2) are weighted by p/t. The mean
weight of those within a region estimates its mass, which is compared with the share of the islands' particles there.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpvi.exploration.modes import log_densities
from gpvi.exploration.probes import MOST, SummitsInSight, summits_in_sight
from gpvi.exploration.tempering import Summits
from gpvi.targets.coordinates import Affine
from gpvi.targets.density import Density, at_once

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
DROP, HALVINGS = 0.5, 12
"""The width of a summit along an axis is where log p has fallen by this much, found by this many bisections."""
BEGUN_AT = 16
"""Particles begin around so many summits at most, those with the largest mass, and in as many modes."""
NARROWEST, WIDEST = 1e-6, 2.0**14
"""Between these are the widths of summits."""


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
            log_density=self.log_density - float(affine.log_det()),
        )

    def starts(
        self, points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"], dtype: np.dtype
    ) -> Summits:
        """Where particles begin: around the summits, and in the modes that other particles have found.

        Their number is made a power of two by repetitions, so that few programs are compiled.
        """
        modes = [points[labels == label] for label in range(min(BEGUN_AT, labels.max() + 1))]
        heaviest = np.argsort(-self.masses(np.isfinite(self.log_weights))[0])[:BEGUN_AT]
        centres = np.concatenate([self.centres[heaviest], [each.mean(0) for each in modes]])
        spreads = np.array([each.std(0) + NARROWEST for each in modes])
        widths = np.concatenate([np.sqrt((self.factors[heaviest] ** 2).sum(2)), spreads])
        rows = np.resize(np.arange(len(centres)), 2 ** (len(centres) - 1).bit_length())
        return Summits(jnp.asarray(centres[rows], dtype), jnp.asarray(widths[rows], dtype))


def look_around(density: Density, *, key: PRNGKeyArray) -> Surroundings | None:
    """Find summits, and draw around those that may matter; None if log p is finite at none."""
    summit_key, draw_key = jax.random.split(key)
    summits = summits_in_sight(density, key=summit_key)
    if not len(summits.centres):
        return None
    variances, vectors = _covariances(density, summits.centres)
    log_mass = summits.heights + 0.5 * np.log(variances).sum(1)
    matters = log_mass >= log_mass.max() - MARGIN
    factors = (vectors * np.sqrt(variances)[:, None])[matters]
    spent = len(log_mass) * density.dim * (2 + HALVINGS) + len(factors) * NEAR // 2
    kept = summits._replace(
        centres=summits.centres[matters],
        points=summits.points[matters],
        gradients=summits.gradients + spent,
    )
    return _surroundings(density, kept, factors, draw_key)


def _covariances(
    density: Density, centres: Float[np.ndarray, "m d"]
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d d"]]:
    """Eigenvalues and eigenvectors of |H|⁻¹ at each summit."""
    rows = np.resize(np.arange(len(centres)), MOST)
    curvature = _curvatures(density, jnp.asarray(centres[rows], density.dtype))
    curvature = np.asarray(curvature, np.float64)[: len(centres)]
    values, vectors = np.linalg.eigh(0.5 * (curvature + np.swapaxes(curvature, 1, 2)))
    return np.clip(1 / np.maximum(np.abs(values), 1e-30), NARROWEST**2, WIDEST**2), vectors


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


@eqx.filter_jit
def _curvatures(density: Density, x: Float[Array, "m d"]) -> Float[Array, "m d d"]:
    """−∇²log p at each summit, by differences of scores: a log-density need not have second derivatives in JAX."""
    return jax.lax.map(lambda x: _curvature(density, x), x)


def _curvature(density: Density, x: Float[Array, " d"]) -> Float[Array, "d d"]:
    axes, top = jnp.eye(density.dim, dtype=x.dtype), density.log_density(x)

    def halve(_: Int[Array, ""], ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        step = jnp.exp(0.5 * (low + high))
        moved = step[:, None] * axes
        values = density.log_densities(jnp.concatenate([x + moved, x - moved]))
        near = (top - values).reshape(2, -1).mean(0) < DROP
        return jnp.where(near, jnp.log(step), low), jnp.where(near, high, jnp.log(step))

    ends = jnp.full_like(x, math.log(NARROWEST)), jnp.full_like(x, math.log(WIDEST))
    width = jnp.exp(jax.lax.fori_loop(0, HALVINGS, halve, ends)[0])
    moved = width[:, None] * axes
    above, below = (
        jax.lax.map(jax.grad(density.log_density), each, batch_size=at_once(density.dim))
        for each in (x + moved, x - moved)
    )
    rows = (below - above) / (2 * width[:, None])
    return jnp.where(jnp.isfinite(rows).all(1, keepdims=True), rows, axes / width**2)
