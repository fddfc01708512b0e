r"""A Gaussian for every mode, all side by side: first each alone, then together where they overlap.

Alone, by natural gradient. With x = m + L v, v ~ N(0, I), the score at the draws is regressed on v: s ≈ g − H v, which
is exact for a Gaussian mode. By Stein's identity g and H − I are the natural gradient of KL(q‖p) in mean and precision,
so a step of length ρ gives the precision (1 − ρ) I + ρ H and moves the mean by ρ times its inverse applied to g. It is
at rest where the reverse KL is, after tens of steps.

Together, by EM on importance-weighted draws (Cappé et al. 2008), which lowers KL(p‖q): every Gaussian takes the
weighted mean and covariance of the draws, as far as it is responsible for them. Where the posterior exceeds the
mixture, a Gaussian is cut in two.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, Scalar

from gpvi._compute.noise import normal
from gpvi._compute.precision import product
from gpvi.generators import FullRank, Mixture
from gpvi.generators.mixture import MixtureMap
from gpvi.generators.noise import log_standard_normal
from gpvi.methods.base import built
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import at_once, evaluate
from gpvi.training.mixtures.weights import Cloud, heaviest, weighted_draws

MOST_COMPONENTS = 64
"""Only so many modes, the largest, get a component."""
STEPS = 40
"""Steps of each alone: half of them of length 1/2, then 1/2, 1/3, 1/4, …, which average over the noise."""
FEWEST_DRAWS, DRAWS_PER_DIMENSION = 64, 4
"""Draws of each in a step; the regression needs more than d."""
LARGEST_CHANGE = 4.0
"""A step changes no precision by more than this factor, nor the mean by more than twice the radius √d."""
SMALLEST_VARIANCE = 1e-12
"""Of a coordinate in which the posterior has scale one."""
RIDGE = 1e-3
"""Of the regression, and relative to the variances of particles."""
TOGETHER = 12
"""Rounds of EM together."""
CUTS = 6
"""Rounds before which Gaussians are cut."""
CUT = 0.7
"""Half the distance of the two parts, in standard deviations along the longest axis."""
GAP = 0.01
"""Nats of KL(p‖q): a Gaussian with a larger share of it is cut."""


class Gaussians(NamedTuple):
    """The Gaussians as coordinates x = m + L v, stacked, and what they took."""

    affines: Affine
    elbo: Float[np.ndarray, "steps k"]
    gradients: int


def starts(cloud: Cloud, labels: Int[np.ndarray, " n"]) -> Affine:
    """Return mean and spread of the particles with each label, the heaviest first; −1 is none.

    Where particles are few for the dimension, the covariance is shrunk towards its diagonal.
    """
    shares = np.bincount(labels[labels >= 0], cloud.weights[labels >= 0])
    dim = cloud.points.shape[1]
    means, factors = [], []
    for label in np.argsort(-shares, kind="stable")[:MOST_COMPONENTS]:
        own = cloud.points[labels == label]
        mean, covariance = _moments(own, cloud.weights[labels == label])
        kept = len(own) / (len(own) + dim)
        variance = np.maximum(np.diag(covariance), SMALLEST_VARIANCE)
        covariance = kept * covariance + (1 - kept + RIDGE) * np.diag(variance)
        means.append(mean)
        factors.append(np.linalg.cholesky(covariance))
    return stacked_affines(means, factors, cloud.dtype)


def match(density: Whitened, begin: Affine, *, key: PRNGKeyArray) -> Gaussians:
    """Fit each Gaussian alone, from where it begins."""
    draws = max(FEWEST_DRAWS, DRAWS_PER_DIMENSION * (density.dim + 1))
    affines, elbo = _match(density, begin, draws, key)
    count = len(affines.location)
    return Gaussians(affines, np.asarray(elbo, np.float64), STEPS * count * draws)


@eqx.filter_jit
def _match(
    density: Whitened, affines: Affine, draws: int, key: PRNGKeyArray
) -> tuple[Affine, Float[Array, "steps k"]]:
    late = jnp.maximum(jnp.arange(STEPS) - STEPS // 2, 0)
    lengths = 1 / (2.0 + late).astype(density.dtype)

    def step(affines: Affine, at: tuple[Scalar, PRNGKeyArray]) -> tuple[Affine, Array]:
        length, key = at
        keys = jax.random.split(key, len(affines.location))

        def one(each: tuple[Affine, PRNGKeyArray]) -> tuple[Affine, Scalar]:
            return _matched(density, each[0], draws, length, each[1])

        together = max(1, at_once(density.dim) // draws)
        return jax.lax.map(one, (affines, keys), batch_size=together)

    return jax.lax.scan(step, affines, (lengths, jax.random.split(key, STEPS)))


def _matched(
    density: Whitened, affine: Affine, draws: int, length: Scalar, key: PRNGKeyArray
) -> tuple[Affine, Scalar]:
    """Take one step of natural gradient; return the ELBO, too. Draws come in pairs ±v."""
    half = normal(key, (draws // 2, density.dim), density.dtype)
    v = jnp.concatenate([half, -half])
    at = evaluate(density, jax.vmap(affine)(v))
    slope, curvature = _regressed(v, product(at.score, affine.scale), at.finite)
    curvatures, axes = jnp.linalg.eigh(curvature)
    precisions = 1 + length * (jnp.clip(curvatures, 1 / LARGEST_CHANGE, LARGEST_CHANGE) - 1)
    move = product(axes, product(axes.T, length * slope) / precisions)
    reach = 2 * math.sqrt(density.dim)
    move = move * jnp.minimum(1.0, reach / (jnp.linalg.norm(move) + jnp.finfo(v.dtype).tiny))
    factor = jnp.linalg.cholesky(product(axes / precisions, axes.T))
    log_q = jax.vmap(log_standard_normal)(v) - affine.log_det()
    elbo = jnp.where(at.finite, at.log_density - log_q, 0.0).sum() / at.finite.sum()
    return Affine(affine(move), jnp.tril(product(affine.scale, factor))), elbo


def _regressed(
    v: Float[Array, "n d"], score: Float[Array, "n d"], finite: Bool[Array, " n"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return g and the symmetric H of the least-squares fit s ≈ g − H v to the draws with a finite score."""
    n, dim = v.shape
    design = jnp.concatenate([jnp.ones((n, 1), v.dtype), v], 1) * finite[:, None]
    gram = product(design.T, design) + RIDGE * jnp.eye(dim + 1, dtype=v.dtype)
    fitted = jnp.linalg.solve(gram, product(design.T, score))
    return fitted[0], -0.5 * (fitted[1:] + fitted[1:].T)


def of_gaussians(affines: Affine) -> MixtureMap:
    """Return the mixture of these Gaussians, with equal weights."""
    count, dim = affines.location.shape
    dtype = affines.location.dtype
    mixture = built(Mixture(count, FullRank()), dim, dtype, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.affines, mixture, affines)  # pyright: ignore[reportReturnType]


def together(density: Whitened, affines: Affine, *, key: PRNGKeyArray) -> Affine:
    """Fit the Gaussians together, cutting in two those where most is missing; return these Gaussians."""
    for number in range(TOGETHER):
        own_key = jax.random.fold_in(key, number)
        drawn = weighted_draws(density, of_gaussians(affines), key=own_key)
        weights = heaviest(drawn.ratios, drawn.average)
        density_ratio = drawn.ratios * weights
        total = np.maximum(density_ratio.sum(1), np.finfo(float).tiny)
        responsible = drawn.average[:, None] * density_ratio / total[:, None]
        excess = np.log(np.maximum(len(drawn.average) * drawn.average / total, 1e-30))
        gaps = responsible.T @ excess
        affines = _taken_over(affines, drawn.x, responsible, gaps if number < CUTS else None)
    return affines


def _taken_over(
    affines: Affine,
    x: Float[np.ndarray, "n d"],
    responsible: Float[np.ndarray, "n k"],
    gaps: Float[np.ndarray, " k"] | None,
) -> Affine:
    """Return Gaussians with the moments of the draws that each is responsible for.

    With few effective draws for its parameters, a Gaussian stays near what it was. Those with the largest gaps are cut
    across their longest axis into two that have the same moments together.
    """
    dim = x.shape[1]
    parameters = dim * (dim + 3) / 2
    means, factors = [], []
    spare = MOST_COMPONENTS - responsible.shape[1]
    cut = [] if gaps is None else [c for c in np.argsort(-gaps)[: max(spare, 0)] if gaps[c] > GAP]
    for c, weights in enumerate(responsible.T):
        mean, scale = (np.asarray(a[c], np.float64) for a in (affines.location, affines.scale))
        effective = weights.sum() ** 2 / max((weights**2).sum(), np.finfo(float).tiny)
        kept = effective / (effective + parameters)
        own_mean, own_covariance = _moments(x, weights)
        moved = mean + kept * (own_mean - mean)
        covariance = (1 - kept) * scale @ scale.T + kept * own_covariance
        covariance += RIDGE**2 * np.diag(np.diag(covariance))
        if c in cut:
            lengths, axes = np.linalg.eigh(covariance)
            offset = CUT * math.sqrt(lengths[-1]) * axes[:, -1]
            covariance = covariance - np.outer(offset, offset)
            means += [moved + offset, moved - offset]
            factors += 2 * [np.linalg.cholesky(covariance)]
        else:
            means.append(moved)
            factors.append(np.linalg.cholesky(covariance))
    return stacked_affines(means, factors, affines.location.dtype)


def stacked_affines(
    means: Sequence[Float[np.ndarray, " d"]],
    factors: Sequence[Float[np.ndarray, "d d"]],
    dtype: DTypeLike,
) -> Affine:
    """Return the coordinates of Gaussians with these means and factors of the covariance, stacked."""
    locations, scales = (jnp.asarray(np.stack(each), dtype) for each in (means, factors))
    return jax.vmap(Affine)(locations, scales)


def _moments(
    x: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return the weighted mean and covariance of the rows of x."""
    weights = weights / max(weights.sum(), np.finfo(float).tiny)
    mean = weights @ x
    centred = x - mean
    return mean, centred.T @ (weights[:, None] * centred)
