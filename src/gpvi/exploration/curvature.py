r"""The curvature of log p near summits, and the last steps of a climb, which need it.

Climbing that adapts a step for each coordinate goes on slowly where log p is narrow across the axes: in the coordinates
of one wide Gaussian every mode may be so. With −∇²log p = V diag(h) Vᵀ a step along V diag(1/(|h| + μ)) Vᵀ ∇log p does
not depend on the coordinates if μ = 0, and is short where log p is not quadratic if μ is large (Levenberg 1944); the
best of several μ is taken.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpvi._compute.brief import brief
from gpvi.exploration.modes import log_densities
from gpvi.targets.density import Density, at_once

DROP, HALVINGS = 0.5, 12
"""The width of a summit along an axis is where log p has fallen by this much, found by this many bisections."""
NARROWEST, WIDEST = 1e-6, 2.0**14
"""Between these are the widths of summits."""
MOST = 64
"""Places at which the curvature is evaluated by one program."""
DAMPING = np.concatenate([[0.0], 4.0 ** np.arange(-10, 1)])
"""μ in units of the largest |h|."""
STEPS = 8
"""Steps to a summit, at most."""
GAIN = 0.01
"""Nats: a step that gains less, or less than rounding, was the last."""


class Curvature(NamedTuple):
    """The shape of log p at some places: −∇²log p = V diag(h) Vᵀ.

    Parameters
    ----------
    variances
        1/|h|, between `NARROWEST` and `WIDEST` squared.
    axes
        The columns of V.
    score
        ∇log p.
    """

    variances: Float[np.ndarray, "m d"]
    axes: Float[np.ndarray, "m d d"]
    score: Float[np.ndarray, "m d"]


class Climbed(NamedTuple):
    """Where a climb has ended, log p there, and what it took in gradients."""

    ends: Float[np.ndarray, "m d"]
    heights: Float[np.ndarray, " m"]
    gradients: int


def curvature(density: Density, places: Float[np.ndarray, "m d"]) -> Curvature:
    """Return the curvature at up to `MOST` places."""
    rows = np.resize(np.arange(len(places)), MOST)
    at = jnp.asarray(places[rows], density.dtype)
    matrices, scores = (
        np.asarray(each, np.float64)[: len(places)]
        for each in _curvatures(density, at, jnp.asarray(len(places)))
    )
    values, axes = np.linalg.eigh(0.5 * (matrices + np.swapaxes(matrices, 1, 2)))
    variances = np.clip(1 / np.maximum(np.abs(values), 1e-30), NARROWEST**2, WIDEST**2)
    return Curvature(variances, axes, scores)


def cost(places: int, dim: int) -> int:
    """Return the gradients that the curvature takes; log p alone counts as half a gradient."""
    return places * (dim * (2 + HALVINGS) + 1)


def to_the_top(
    density: Density, ends: Float[np.ndarray, "m d"], heights: Float[np.ndarray, " m"]
) -> Climbed:
    """Go on from the ends of climbs, up to `MOST`, to the summits above them."""
    ends, heights = ends.copy(), heights.copy()
    rising, spent = np.arange(len(ends)), 0
    for _ in range(STEPS):
        if not len(rising):
            break
        shape = curvature(density, ends[rising])
        along = np.einsum("mji,mj->mi", shape.axes, shape.score)
        curved = 1 / shape.variances
        damped = curved[None] + DAMPING[:, None, None] * curved.max(1)[:, None]
        moved = ends[rising] + np.einsum("mij,kmj->kmi", shape.axes, along / damped)
        reached = log_densities(density, moved.reshape(-1, density.dim)).reshape(moved.shape[:2])
        reached = np.where(np.isfinite(reached), reached, -np.inf)
        best, each = reached.argmax(0), np.arange(len(rising))
        gained = reached[best, each] - heights[rising]
        spent += cost(len(rising), density.dim) + reached.size // 2
        higher = gained > 0
        ends[rising[higher]] = moved[best, each][higher]
        heights[rising[higher]] = reached[best, each][higher]
        rounding = float(np.finfo(density.dtype).eps) * np.abs(heights[rising])
        rising = rising[gained > np.maximum(GAIN, rounding)]
    return Climbed(ends, heights, spent)


@brief
def _curvatures(
    density: Density, x: Float[Array, "m d"], count: Int[Array, ""]
) -> tuple[Float[Array, "m d d"], Float[Array, "m d"]]:
    """−∇²log p and ∇log p at the first `count` places; a log-density need not have second derivatives in JAX."""
    score = jax.grad(density.log_density)

    def one(row: Int[Array, ""], found: tuple[Array, Array]) -> tuple[Array, Array]:
        matrices, scores = found
        matrix = _curvature(density, x[row])
        return matrices.at[row].set(matrix), scores.at[row].set(score(x[row]))

    empty = jnp.zeros((len(x), density.dim, density.dim), x.dtype), jnp.zeros_like(x)
    matrices, scores = jax.lax.fori_loop(0, count, one, empty)
    return matrices, jnp.where(jnp.isfinite(scores), scores, 0.0)


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
