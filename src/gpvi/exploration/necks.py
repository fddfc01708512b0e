r"""Narrow places next to the draws: whether short chains of small steps go on where the draws end.

Draws end early in a neck. Where a scale τ of a hierarchy nears zero, the posterior becomes as narrow as τ, and neither
a generator nor chains with one step size follow; what they miss holds little mass, but most of the tail of log τ. The
length |∇ log p| of the score is about √d over the local scale, so the draws next to a neck are those with the longest
scores. Let A be the region |∇ log p| > t, with t such that A holds a small share α of the draws. Hamiltonian Monte
Carlo that refuses to leave A has p restricted to A as its invariant density, whatever its step sizes. Started from the
draws in A, its points have the distribution of these draws if the draws are the posterior's. If the posterior goes on
beyond them, chains go where scores are longer, and every second moment gains

    Δ_i = α (E[(x_i − m_i)² | A, chains] − E[(x_i − m_i)² | A, draws]) / σ_i².

Chains in a neck are slow, so this is less than what is missing. The rule needs no density of the draws.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import Density

SHARE = 0.02
"""α: few enough draws to be near the end of a neck, and enough to know the distribution of their scores."""
FEWEST = 20
"""Draws in A below which nothing is said."""
CHAINS, LEAPFROGS = 128, 4
"""Many short trajectories: in a neck the length of a trajectory hardly matters."""
TRANSITIONS, BLOCKS = 50, 6
"""Transitions of each chain in a block, and blocks if the first one raises a suspicion."""
SUSPICIOUS = 1.0
"""Standard errors by which scores must have become longer in the first block for the others to be run."""
ACCEPTANCE = 0.8
"""The mean acceptance that step sizes are adapted to."""
OCTAVES = 2.0
"""Step sizes vary by this many powers of two, independently of where a chain is, so that p stays invariant."""
FIRST_STEP = 0.5
"""The largest step at first, in units of the posterior's scale."""
SMALLEST = 1e-12
"""An error this small is rounding."""


class Neck(NamedTuple):
    """What chains of small steps found next to the narrowest draws.

    Parameters
    ----------
    coordinate
        The coordinate of the target whose spread would grow the most.
    growth
        By how much its standard deviation would grow at least, as a share of it.
    errors
        The smaller of two distances in standard errors: of the growth from 0, and of the length of the scores at the
        chains from that at the draws.
    gradients
        The evaluations of log p and its gradient that it took.
    """

    coordinate: int
    growth: float
    errors: float
    gradients: int


class _Walkers(NamedTuple):
    """The chains, the logarithm of the largest step, and the number of transitions so far."""

    position: Float[Array, "c d"]
    log_step: Scalar
    done: Scalar


def beyond(
    density: Whitened,
    u: Float[Array, "n d"],
    score: Float[Array, "n d"],
    log_weights: Float[Array, " n"] | None = None,
    efficiency: float = 1.0,
    *,
    key: PRNGKeyArray,
) -> Neck | None:
    """Look beyond the narrowest of some draws; None if there are too few, or if all scores are alike.

    Parameters
    ----------
    density
        The posterior in the coordinates of training.
    u
        The draws, in these coordinates.
    score
        ∇ log p there.
    log_weights
        Normalised log importance weights; None if all are equal.
    efficiency
        The effective share of the draws, if they are the points of Markov chains.
    key
        A JAX random key.
    """
    lengths = _log_lengths(score)
    weights = _weights(lengths, log_weights)
    order = np.argsort(-lengths)
    end = int(np.searchsorted(weights[order].cumsum(), SHARE))
    level = lengths[order[min(end, len(order) - 1)]]
    narrow = np.flatnonzero((lengths > level) & (weights > 0))
    if len(narrow) < FEWEST or not np.isfinite(level):
        return None
    start_key, key = jax.random.split(key)
    own = weights[narrow] / weights[narrow].sum()
    starts = np.random.default_rng(np.asarray(jax.random.bits(start_key, (4,)))).choice(
        narrow, CHAINS, p=own
    )
    x = _pushed(density, u)
    mean = weights @ x
    variance = weights @ (x - mean) ** 2
    squares = (x[narrow] - mean) ** 2 / variance
    share = float(weights[narrow].sum())
    step = jnp.asarray(math.log(FIRST_STEP), density.dtype)
    walkers = _Walkers(u[starts], step, jnp.zeros((), density.dtype))
    paths, path_lengths, gradients, narrower = [], [], len(u), 0.0
    for block in range(BLOCKS):
        walkers, path, score_path = _block(
            density, walkers, jnp.asarray(level, density.dtype), jax.random.fold_in(key, block)
        )
        gradients += CHAINS * TRANSITIONS * LEAPFROGS
        paths.append(_pushed(density, path.reshape(-1, density.dim)).reshape(path.shape))
        path_lengths.append(np.asarray(score_path, np.float64))
        later = slice((block + 1) * TRANSITIONS // 2, None)
        longer = np.concatenate(path_lengths)[later, :, None]
        gained, error = _gain(longer, lengths[narrow, None], own, efficiency)
        narrower = float(gained[0] / error[0])
        if not narrower > SUSPICIOUS:
            break
    moved = (np.concatenate(paths)[later] - mean) ** 2 / variance
    gained, error = _gain(moved, squares, own, efficiency)
    most = int(gained.argmax())
    growth = math.sqrt(max(1 + share * float(gained[most]), 0.0)) - 1
    return Neck(most, growth, min(narrower, float(gained[most] / error[most])), gradients)


def _gain(
    chains: Float[np.ndarray, "k c q"],
    draws: Float[np.ndarray, "n q"],
    weights: Float[np.ndarray, " n"],
    efficiency: float,
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Return the mean at independent chains less that at draws, and its standard error, for each quantity."""
    each = chains.mean(0)
    before = weights @ draws
    error = np.sqrt(weights**2 @ (draws - before) ** 2 / efficiency)
    error = np.hypot(error, each.std(0, ddof=1) / math.sqrt(len(each)))
    return each.mean(0) - before, np.maximum(error, SMALLEST)


def _log_lengths(score: Float[Array, "n d"]) -> Float[np.ndarray, " n"]:
    """The logarithms of |∇ log p|², −∞ where it is not finite."""
    squares = (np.asarray(score, np.float64) ** 2).sum(1)
    usable = np.isfinite(squares) & (squares > 0)
    return np.where(usable, np.log(np.where(usable, squares, 1.0)), -np.inf)


def _weights(
    lengths: Float[np.ndarray, " n"], log_weights: Float[Array, " n"] | None
) -> Float[np.ndarray, " n"]:
    """Normalised weights, 0 where the score is not finite."""
    logs = np.zeros(len(lengths)) if log_weights is None else np.asarray(log_weights, np.float64)
    weights = np.where(np.isfinite(lengths), np.exp(logs - logs.max()), 0.0)
    return weights / max(weights.sum(), np.finfo(float).tiny)


@eqx.filter_jit
def _images(density: Whitened, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.vmap(density.affine)(u)


def _pushed(density: Whitened, u: Float[Array, "n d"]) -> Float[np.ndarray, "n d"]:
    """The points in the target's own coordinates."""
    return np.asarray(_images(density, u), np.float64)


@eqx.filter_jit
def _block(
    density: Density, walkers: _Walkers, level: Scalar, key: PRNGKeyArray
) -> tuple[_Walkers, Float[Array, "k c d"], Float[Array, "k c"]]:
    """Move all chains by a block of transitions inside A; return them, their paths, and the log |∇ log p|² there."""
    from blackjax.mcmc.hmc import HMCState, build_kernel

    kernel, unit = build_kernel(), jnp.ones(density.dim, density.dtype)
    value_and_score = jax.value_and_grad(density.log_density)

    def move(key: PRNGKeyArray, before: HMCState, step: Scalar) -> tuple[HMCState, Scalar]:
        after, info = kernel(key, before, density.log_density, step, unit, LEAPFROGS)
        inside = length(after) > level
        kept = jax.tree.map(lambda new, old: jnp.where(inside, new, old), after, before)
        return kept, jnp.nan_to_num(info.acceptance_rate)

    def length(state: HMCState) -> Scalar:
        return jnp.log((state.logdensity_grad**2).sum())

    def transition(
        carry: tuple[HMCState, Scalar, Scalar], key: PRNGKeyArray
    ) -> tuple[tuple[HMCState, Scalar, Scalar], tuple[Array, Array]]:
        states, log_step, done = carry
        step_key, move_key = jax.random.split(key)
        octaves = jax.random.uniform(step_key, (CHAINS,), log_step.dtype, 0.0, OCTAVES)
        steps = jnp.exp(log_step) * 2.0**-octaves
        states, rates = jax.vmap(move)(jax.random.split(move_key, CHAINS), states, steps)
        log_step = log_step + 2.0 * (rates.mean() - ACCEPTANCE) / (done + 5.0) ** 0.7
        return (states, log_step, done + 1), (states.position, jax.vmap(length)(states))

    begun = HMCState(walkers.position, *jax.vmap(value_and_score)(walkers.position))
    (states, log_step, done), (path, lengths) = jax.lax.scan(
        transition, (begun, walkers.log_step, walkers.done), jax.random.split(key, TRANSITIONS)
    )
    return _Walkers(states.position, log_step, done), path, lengths
