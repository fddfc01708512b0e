r"""The points at which a log-density is checked, in units of its own scales.

The scale of a coordinate is s_i = |∂²log p/∂x_i²|^{-1/2} at the start. Points lie near the start, one scale away, ten
scales away, and far out along axes and random lines.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

POINTS = 16
"""The number of points at each distance; more if the rank of their gradients is needed."""
DISTANCES = {"near": 0.1, "a scale away": 1.0, "ten scales away": 10.0}
AXES = 256
"""Up to this dimension every axis is followed outwards, and gradients are searched for a flat direction."""
EXACT_CURVATURES = 1_000
"""Up to this dimension each ∂²log p/∂x_i² is computed; beyond it they are estimated from random probes."""
PROBES = 32
LINES, REACHES = 4, (10.0, 100.0, 1e4, 1e8)
"""The number of random lines, and the distances along both sides of them in scales; no mode lies at the last."""


def scales(
    log_density: Callable[..., Array], x: Float[Array, " d"], *, key: PRNGKeyArray
) -> np.ndarray:
    """|H_ii|^{-1/2}, exact or from Rademacher probes v: the diagonal of H is E[v ⊙ Hv]."""
    gradient = jax.grad(log_density)

    def product(v: Float[Array, " d"]) -> Float[Array, " d"]:
        return v * jax.jvp(gradient, (x,), (v,))[1]

    if x.size <= EXACT_CURVATURES:
        probes = jnp.eye(x.size, dtype=x.dtype)
        diagonal = jax.jit(lambda p: jax.lax.map(product, p, batch_size=64).sum(0))(probes)
    else:
        probes = jax.random.rademacher(key, (PROBES, x.size), x.dtype)
        diagonal = jax.jit(lambda p: jax.lax.map(product, p).mean(0))(probes)
    curvature = np.abs(np.asarray(diagonal, np.float64))
    with np.errstate(divide="ignore"):
        return np.where(np.isfinite(curvature), curvature, 0.0) ** -0.5


def units(scale: np.ndarray) -> np.ndarray:
    """Finite scales: a coordinate without curvature has the median scale of the others."""
    usual = np.median(scale[np.isfinite(scale)]) if np.isfinite(scale).any() else 1.0
    return np.where(np.isfinite(scale), scale, usual)


def cloud(x: np.ndarray, scale: np.ndarray, *, key: PRNGKeyArray) -> np.ndarray:
    """Normal draws around x at each of `DISTANCES`, one distance after the other."""
    count = max(POINTS, 2 * x.size + 8) if x.size <= AXES else POINTS
    noise = np.asarray(jax.random.normal(key, (len(DISTANCES), count, x.size)), np.float64)
    distances = np.array(list(DISTANCES.values()))[:, None, None]
    return (x + units(scale) * noise * distances).reshape(-1, x.size)


def along_axes(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Points at 10³ and at 10⁶ scales on either side of every axis; none in more than `AXES` dimensions."""
    if x.size > AXES:
        return np.zeros((0, x.size))
    steps = np.array([1e3, 1e6, -1e3, -1e6])
    return (x + steps[:, None, None] * np.diag(units(scale))).reshape(-1, x.size)


def along_lines(x: np.ndarray, scale: np.ndarray, *, key: PRNGKeyArray) -> np.ndarray:
    """Points at each of `REACHES` on both sides of random lines through x."""
    lines = np.asarray(jax.random.normal(key, (LINES, x.size)), np.float64)
    steps = np.multiply.outer(REACHES, np.concatenate([lines, -lines]) * units(scale))
    return (x + steps).reshape(-1, x.size)
