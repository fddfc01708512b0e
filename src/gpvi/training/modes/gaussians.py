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
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, Float, Int, PRNGKeyArray, Scalar

from gpvi._compute.noise import normal
from gpvi._compute.precision import product
from gpvi.diagnostics.importance import smoothed_log_weights
from gpvi.diagnostics.sampling import log_densities
from gpvi.exploration.summits import Surroundings
from gpvi.generators import FullRank, Mixture
from gpvi.generators.mixture import MixtureMap
from gpvi.generators.noise import log_standard_normal
from gpvi.methods.base import built
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import at_once, evaluate
from gpvi.training.modes.weights import DRAWS, Cloud, heaviest

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
GAP = 0.002
"""Nats of KL(p‖q): a Gaussian with a larger part of it is cut."""


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
    return stacked_affines(np.stack(means), np.stack(factors), cloud.dtype)


def around_summits(around: Surroundings, density: Whitened) -> Affine:
    """Return the Gaussians that log p has around its summits, in the coordinates of training."""
    affine = density.affine
    centres = jax.vmap(affine.inverse)(jnp.asarray(around.centres, density.dtype))
    factors = np.linalg.solve(np.asarray(affine.matrix, np.float64), around.factors)
    covariances = factors @ np.swapaxes(factors, 1, 2)
    tiny = SMALLEST_VARIANCE * np.eye(density.dim)
    return stacked_affines(centres, np.linalg.cholesky(covariances + tiny), density.dtype)


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
    slope, curvature = _regressed(v, product(at.score, affine.matrix), at.finite)
    curvatures, axes = jnp.linalg.eigh(curvature)
    precisions = 1 + length * (jnp.clip(curvatures, 1 / LARGEST_CHANGE, LARGEST_CHANGE) - 1)
    move = product(axes, product(axes.T, length * slope) / precisions)
    reach = 2 * math.sqrt(density.dim)
    move = move * jnp.minimum(1.0, reach / (jnp.linalg.norm(move) + jnp.finfo(v.dtype).tiny))
    factor = jnp.linalg.cholesky(product(axes / precisions, axes.T))
    log_q = jax.vmap(log_standard_normal)(v) - affine.log_det()
    elbo = jnp.where(at.finite, at.log_density - log_q, 0.0).sum() / jnp.maximum(at.finite.sum(), 1)
    scale = jnp.tril(product(affine.matrix, factor))
    after = Affine(affine(move), scale)
    sound = jnp.isfinite(after.location).all() & jnp.isfinite(scale).all()
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, affine), elbo


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
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    dtype = affines.location.dtype
    means, factors = (np.asarray(a, np.float64) for a in (affines.location, affines.scale))
    for number in range(TOGETHER):
        x, log_q = _drawn(means, factors, rng)
        log_proposal = np.logaddexp.reduce(log_q, axis=1) - math.log(len(means))
        log_p = np.asarray(log_densities(density, jnp.asarray(x, dtype)), np.float64)
        log_weights, _ = smoothed_log_weights(jnp.asarray(log_p - log_proposal, dtype))
        average = np.exp(np.asarray(log_weights, np.float64))
        if not average.sum() > 0:
            break
        average /= average.sum()
        ratios = np.exp(log_q - log_proposal[:, None])
        of_each = ratios * heaviest(ratios, average)
        total = np.maximum(of_each.sum(1), np.finfo(float).tiny)
        responsible = average[:, None] * of_each / total[:, None]
        gaps = responsible.T @ np.log(np.maximum(len(average) * average / total, 1e-30))
        cut = _worst(gaps) if number < CUTS else np.zeros(0, int)
        means, factors = _taken_over(means, factors, x, responsible, cut)
    return stacked_affines(means, factors, dtype)


def _drawn(
    means: Float[np.ndarray, "k d"], factors: Float[np.ndarray, "k d d"], rng: np.random.Generator
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n k"]]:
    """Draw as many from each Gaussian, and return log q_c of all of them; on the host, since their number changes."""
    from scipy.linalg import solve_triangular

    count, dim = means.shape
    x = rng.standard_normal((DRAWS, dim))
    for c in range(count):
        x[c::count] = means[c] + x[c::count] @ factors[c].T
    log_q = np.empty((DRAWS, count))
    for c in range(count):
        v = solve_triangular(factors[c], (x - means[c]).T, lower=True)
        log_det = np.log(np.diag(factors[c])).sum()
        log_q[:, c] = -0.5 * ((v**2).sum(0) + dim * math.log(2 * math.pi)) - log_det
    return x, log_q


def _worst(gaps: Float[np.ndarray, " k"]) -> Int[np.ndarray, " m"]:
    """Return the Gaussians with the largest gaps, as many as may be cut."""
    spare = max(MOST_COMPONENTS - len(gaps), 0)
    largest = np.argsort(-gaps, kind="stable")[:spare]
    return largest[gaps[largest] > GAP]


def _taken_over(
    means: Float[np.ndarray, "k d"],
    factors: Float[np.ndarray, "k d d"],
    x: Float[np.ndarray, "n d"],
    responsible: Float[np.ndarray, "n k"],
    cut: Int[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, "j d"], Float[np.ndarray, "j d d"]]:
    """Return Gaussians with the moments of the draws that each is responsible for.

    With few effective draws for its parameters, a Gaussian stays near what it was. Those to be cut become two across
    their longest axis, with the same moments together.
    """
    dim = x.shape[1]
    after: list[tuple[np.ndarray, np.ndarray]] = []
    for c, weights in enumerate(responsible.T):
        effective = weights.sum() ** 2 / max((weights**2).sum(), np.finfo(float).tiny)
        kept = effective / (effective + dim * (dim + 3) / 2)
        mean, covariance = _moments(x, weights)
        mean = means[c] + kept * (mean - means[c])
        covariance = (1 - kept) * factors[c] @ factors[c].T + kept * covariance
        covariance += RIDGE**2 * np.diag(np.diag(covariance))
        if c in cut:
            lengths, axes = np.linalg.eigh(covariance)
            offset = CUT * math.sqrt(lengths[-1]) * axes[:, -1]
            covariance -= np.outer(offset, offset)
            after += [(mean + offset, covariance), (mean - offset, covariance)]
        else:
            after.append((mean, covariance))
    moved, covariances = map(np.stack, zip(*after, strict=True))
    return moved, np.linalg.cholesky(covariances)


def stacked_affines(
    means: ArrayLike,
    factors: ArrayLike,
    dtype: DTypeLike,
) -> Affine:
    """Return the coordinates of Gaussians with these means and factors of the covariance, stacked."""
    locations, scales = (jnp.asarray(each, dtype) for each in (means, factors))
    return jax.vmap(Affine)(locations, scales)


def _moments(
    x: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return the weighted mean and covariance of the rows of x."""
    weights = weights / max(weights.sum(), np.finfo(float).tiny)
    mean = weights @ x
    centred = x - mean
    return mean, centred.T @ (weights[:, None] * centred)
