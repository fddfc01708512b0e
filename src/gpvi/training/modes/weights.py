r"""How heavy the components of a mixture are, and which of them are needed.

The mean of log Σ_c w_c q_c(x) over the posterior is concave in w, and EM, w_c ← E_p[w_c q_c/q], never lowers it. Where
components are apart, it makes their weights the shares of the evidence that they hold. A component without which the
largest mean is nearly the same is not needed: a copy of another one, or one where the posterior is not.
"""

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpvi._compute.noise import normal
from gpvi.diagnostics.importance import smoothed_log_weights
from gpvi.diagnostics.sampling import log_densities
from gpvi.diagnostics.verdict import RELIABLE_K_HAT
from gpvi.exploration.search import Exploration
from gpvi.generators.mixture import MixtureMap
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import at_once

DRAWS, FEWEST = 20_000, 200
"""Draws of all components, and of each, by which they are weighed."""
ON_TRIAL = 4_000
"""Of these draws, by which components are left out on trial."""
EM_STEPS, FEW_EM_STEPS = 300, 20
"""Steps of EM, and those where a component is left out on trial."""
SETTLED = 1e-6
"""EM ends where no weight changes by more."""
LEAST_WEIGHT = 1e-12
LEAST_WORTH = 0.002
"""Nats: a component without which the mean of log q is lower by less is dropped."""


class Cloud(NamedTuple):
    """The islands' particles in the coordinates of training, with their weights in averages over the posterior."""

    points: Float[np.ndarray, "n d"]
    weights: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"]
    dtype: np.dtype
    """That of training."""
    effective: float
    """As many independent draws would estimate log Z as well as the islands."""

    @classmethod
    def of(cls, exploration: Exploration, density: Whitened) -> "Cloud":
        """Take them from an exploration."""
        flat = exploration.points.reshape(-1, density.dim)
        u = jax.vmap(density.affine.inverse)(jnp.asarray(flat, density.dtype))
        each = exploration.labels.shape[1]
        weights = np.repeat(exploration.island_weights, each) / each
        log_density = exploration.log_density.ravel() + float(density.affine.log_det())
        effective = 1 / max(exploration.log_evidence_se, len(flat) ** -0.5) ** 2
        return cls(np.asarray(u, np.float64), weights, log_density, density.dtype, effective)


class Weighted(NamedTuple):
    """Draws of all components alike, as the weights see them."""

    ratios: Float[np.ndarray, "n k"]
    """q_c(x), up to a factor for each x."""
    average: Float[np.ndarray, " n"]
    """Their importance weights, Pareto-smoothed, which sum to one."""
    k_hat: float


def weighted_draws(density: Whitened, mixture: MixtureMap, *, key: PRNGKeyArray) -> Weighted:
    """Draw from all components alike, and weigh the draws by p over the mean of the q_c."""
    count = len(mixture.log_weights)
    x, log_q = draws_of_all(mixture, max(FEWEST, DRAWS // count), key)
    log_proposal = logsumexp(log_q, axis=1) - math.log(count)
    log_weights, k_hat = smoothed_log_weights(log_densities(density, x) - log_proposal)
    average = np.exp(np.asarray(log_weights, np.float64))
    ratios = np.exp(np.asarray(log_q - log_proposal[:, None], np.float64))
    return Weighted(ratios, average / max(average.sum(), np.finfo(float).tiny), float(k_hat))


def weighed(
    density: Whitened, mixture: MixtureMap, cloud: Cloud, *, key: PRNGKeyArray
) -> tuple[MixtureMap, int]:
    """Return the mixture with the best weights, without the components that are not needed, and the number of these.

    The mean over the posterior is over weighted draws of the components. If their weights cannot be relied on, the
    islands' particles count as well: by how many effective draws both are, but not for more than those, since particles
    may have met fewer modes.
    """
    drawn = weighted_draws(density, mixture, key=key)
    ratios, average = drawn.ratios, drawn.average
    if not drawn.k_hat <= RELIABLE_K_HAT:
        log_q = component_log_probs(mixture, jnp.asarray(cloud.points, density.dtype))
        at_particles = np.exp(np.asarray(log_q - log_q.max(1, keepdims=True), np.float64))
        ratios = np.concatenate([ratios, at_particles])
        effective = average.sum() ** 2 / max((average**2).sum(), np.finfo(float).tiny)
        counted = min(0.5, cloud.effective / (cloud.effective + effective))
        particles = counted * cloud.weights / cloud.weights.sum()
        average = np.concatenate([(1 - counted) * average, particles])
    kept, weights = needed(ratios, average)
    arrays, static = eqx.partition(mixture, eqx.is_array)
    fewer = eqx.combine(jax.tree.map(lambda leaf: leaf[kept], arrays), static)
    log_weights = jnp.asarray(np.log(weights), density.dtype)
    return dataclasses.replace(fewer, log_weights=log_weights), ratios.shape[1] - len(kept)


def needed(
    ratios: Float[np.ndarray, "n k"], average: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return which components are needed, and their weights; they are left out on trial, the lightest first."""
    kept, weights = np.arange(ratios.shape[1]), heaviest(ratios, average)
    some = slice(None, None, max(1, len(average) // ON_TRIAL))
    ratios, average = ratios[some], average[some] / average[some].sum()
    for component in np.argsort(weights, kind="stable")[:-1]:
        others = kept != component
        fewer = heaviest(ratios[:, kept[others]], average, weights[others], FEW_EM_STEPS)
        before, after = ratios[:, kept] @ weights, ratios[:, kept[others]] @ fewer
        worth = average @ (_log(before) - _log(after))
        if worth < LEAST_WORTH:
            kept, weights = kept[others], fewer
    return kept, weights


def heaviest(
    ratios: Float[np.ndarray, "n k"],
    average: Float[np.ndarray, " n"],
    begin: Float[np.ndarray, " k"] | None = None,
    steps: int = EM_STEPS,
) -> Float[np.ndarray, " k"]:
    """Maximise the mean of log Σ_c w_c q_c over the posterior by EM."""
    weights = np.ones(ratios.shape[1]) if begin is None else begin
    weights = weights / weights.sum()
    for _ in range(steps):
        before = weights
        weights = before * ((average / np.exp(_log(ratios @ before))) @ ratios)
        weights = np.maximum(weights / weights.sum(), LEAST_WEIGHT)
        if np.abs(weights - before).max() < SETTLED:
            break
    return weights / weights.sum()


def _log(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.log(np.maximum(values, np.finfo(float).tiny))


@eqx.filter_jit
def draws_of_all(
    mixture: MixtureMap, draws: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, "n k"]]:
    """Return as many draws of each component, and log q_c of all components there."""
    count, dim = mixture.affines.location.shape
    z = normal(key, (count * draws, dim), mixture.log_weights.dtype).reshape(count, draws, dim)
    x = mixture.each(lambda component, z: jax.vmap(component)(z), z).reshape(-1, dim)
    return x, component_log_probs(mixture, x)


@eqx.filter_jit
def component_log_probs(mixture: MixtureMap, x: Float[Array, "n d"]) -> Float[Array, "n k"]:
    """Return log q_c of all components at the rows of x."""
    return jax.lax.map(mixture.component_log_probs, x, batch_size=at_once(x.shape[1]))
