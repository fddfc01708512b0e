r"""Densities with known answers: log p, log Z, exact draws, and which mode a draw belongs to.

The public ones are those on which annealed samplers and flows are compared: Neal's funnel (2003), a mixture of forty
Gaussians (Midgley et al., 2023) and of Student's t (Blessing et al., 2024) with means from a stated key, ManyWell (Noé
et al., 2019; Midgley et al., 2023) and three concentric rings.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Scalar

import gpvi

LOG_2PI = math.log(2 * math.pi)
Draw = Callable[[np.random.Generator, int], np.ndarray]


class Known(NamedTuple):
    """A density with known answers.

    Parameters
    ----------
    log_density
        log p at one point, up to the constant whose logarithm is `log_evidence`.
    dim
        The dimension.
    log_evidence
        log Z.
    draw
        Exact draws, (n, d).
    modes
        Which mode each of some points, (n, d), belongs to.
    initial
        Where log p is finite, if it is not at the origin.
    """

    log_density: Callable[[Float[Array, " d"]], Scalar]
    dim: int
    log_evidence: float
    draw: Draw
    modes: Callable[[np.ndarray], np.ndarray]
    initial: tuple[float, ...] | None = None

    def target(self) -> gpvi.Target:
        """The density as a user would pass it."""
        return gpvi.Target(self.log_density, dim=self.dim, initial=self.initial)


def one_mode(x: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
    """Every point belongs to the only mode."""
    return np.zeros(len(x), int)


def mixture(means: Any, sds: Any, weights: Any = None, degrees: float | None = None) -> Known:
    """Gaussians, or products of Student's t, with these means, sds (one a component) and weights."""
    means = np.asarray(means, float)
    count, dim = means.shape
    sds = np.broadcast_to(np.asarray(sds, float), (count,))
    weights = np.full(count, 1 / count) if weights is None else np.asarray(weights, float)
    if degrees is None:
        log_norm = -0.5 * LOG_2PI
    else:
        log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
        log_norm -= 0.5 * math.log(degrees * math.pi)
    constants = np.log(weights) + dim * log_norm - dim * np.log(sds)

    def terms(x: Any, module: Any) -> Any:
        squares = ((x[..., None, :] - means) / sds[:, None]) ** 2
        if degrees is None:
            return constants - 0.5 * squares.sum(-1)
        return constants - 0.5 * (degrees + 1) * module.log1p(squares / degrees).sum(-1)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        which = rng.choice(count, n, p=weights)
        size = (n, dim)
        noise = rng.normal(size=size) if degrees is None else rng.standard_t(degrees, size)
        return means[which] + sds[which, None] * noise

    return Known(
        lambda x: logsumexp(terms(x, jnp)),
        dim,
        0.0,
        draw,
        lambda x: terms(np.asarray(x, float), np).argmax(-1),
    )


def forty_gaussians(dim: int) -> Known:
    """Forty unit Gaussians with means U(−40, 40)^d from `jax.random.key(0)`."""
    means = jax.random.uniform(jax.random.key(0), (40, dim), minval=-40, maxval=40)
    return mixture(means, 1.0)


def students(dim: int) -> Known:
    """Ten products of t with two degrees of freedom, means U(−10, 10)^d from `jax.random.key(1)`."""
    means = jax.random.uniform(jax.random.key(1), (10, dim), minval=-10, maxval=10)
    return mixture(means, 1.0, degrees=2.0)


def funnel(dim: int = 10, sd: float = 3.0) -> Known:
    """v ~ N(0, sd²), and the other coordinates N(0, eᵛ) given v."""

    def log_density(x: Float[Array, " d"]) -> Scalar:
        v, rest = x[0], x[1:]
        own = -0.5 * (v / sd) ** 2 - math.log(sd) - 0.5 * LOG_2PI
        return own - 0.5 * jnp.exp(-v) * rest @ rest - 0.5 * (dim - 1) * (v + LOG_2PI)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        v = sd * rng.normal(size=(n, 1))
        rest = np.exp(v / 2) * rng.normal(size=(n, dim - 1))
        return np.concatenate([v, rest], 1)

    return Known(log_density, dim, 0.0, draw, one_mode)


def many_wells(dim: int, rotation: int | None = None) -> Known:
    """Σ over pairs (a, b): −a⁴ + 6a² + a/2 − b²/2; in coordinates rotated at random from this seed, if one is given."""
    pairs = dim // 2
    line = np.linspace(-5, 5, 200_001)
    log_p = -(line**4) + 6 * line**2 + line / 2
    p = np.exp(log_p)
    log_z = math.log(np.trapezoid(p, line)) + 0.5 * LOG_2PI
    cumulative = np.cumsum(p) / p.sum()
    rotate = np.eye(dim)
    if rotation is not None:
        rotate = np.linalg.qr(np.random.default_rng(rotation).normal(size=(dim, dim)))[0]
    matrix = jnp.asarray(rotate, jnp.float32)

    def log_density(x: Float[Array, " d"]) -> Scalar:
        y = x if rotation is None else jnp.matmul(matrix, x, precision="highest")
        a, b = y[0::2], y[1::2]
        return (-(a**4) + 6 * a**2 + a / 2 - b**2 / 2).sum()

    def modes(x: np.ndarray) -> np.ndarray:
        a = (x @ rotate.T)[:, 0::2]
        return (a > 0) @ (1 << np.arange(pairs)) if pairs <= 5 else (a > 0).sum(1)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        y = rng.normal(size=(n, dim))
        y[:, 0::2] = np.interp(rng.uniform(size=(n, pairs)), cumulative, line)
        return y @ rotate

    return Known(log_density, dim, pairs * log_z, draw, modes)


def gridded(
    log_density: Callable[[Float[Array, " 2"]], Scalar],
    x: tuple[float, float],
    y: tuple[float, float],
    modes: Callable[[np.ndarray], np.ndarray] = one_mode,
    cells: int = 2_000,
) -> Known:
    """A density of two unknowns that a rectangle contains; its answers are those of midpoint sums over a fine grid."""

    @cache
    def summed() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        axes = [low + (high - low) * (np.arange(cells) + 0.5) / cells for low, high in (x, y)]
        row = jax.jit(jax.vmap(lambda a, b: log_density(jnp.stack([a, b])), (None, 0)))
        log_p = np.stack([np.asarray(row(a, jnp.asarray(axes[1])), float) for a in axes[0]])
        log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
        p = np.exp(log_p - log_p.max())
        area = (x[1] - x[0]) * (y[1] - y[0]) / cells**2
        return axes[0], axes[1], p, float(log_p.max() + math.log(p.sum() * area))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        first, second, p, _ = summed()
        flat = rng.choice(p.size, n, p=p.ravel() / p.sum())
        points = np.stack([first[flat // cells], second[flat % cells]], 1)
        steps = np.array([first[1] - first[0], second[1] - second[0]])
        return points + steps * rng.uniform(-0.5, 0.5, points.shape)

    return Known(log_density, 2, summed()[-1], draw, modes)


def rings() -> Known:
    """Three concentric rings of radii 1, 3 and 5, each with sd .15 across."""
    radii = np.array([1.0, 3.0, 5.0])

    def log_density(x: Float[Array, " 2"]) -> Scalar:
        radius = jnp.sqrt((x**2).sum() + 1e-12)
        return logsumexp(-0.5 * ((radius - radii) / 0.15) ** 2)

    def modes(x: np.ndarray) -> np.ndarray:
        return np.abs(np.linalg.norm(x, axis=1)[:, None] - radii).argmin(1)

    return gridded(log_density, (-6.5, 6.5), (-6.5, 6.5), modes)


PUBLIC: dict[str, tuple[str, Callable[[], Known]]] = {
    "funnel": ("Funnel, d = 10", funnel),
    "gmm40-2": ("Forty Gaussians, d = 2", lambda: forty_gaussians(2)),
    "gmm40-10": ("Forty Gaussians, d = 10", lambda: forty_gaussians(10)),
    "gmm40-50": ("Forty Gaussians, d = 50", lambda: forty_gaussians(50)),
    "student-2": ("Ten Student's t, d = 2", lambda: students(2)),
    "student-10": ("Ten Student's t, d = 10", lambda: students(10)),
    "student-50": ("Ten Student's t, d = 50", lambda: students(50)),
    "rings": ("Three rings", rings),
    "wells-32": ("ManyWell, d = 32", lambda: many_wells(32)),
    "wells-32-rotated": ("ManyWell, d = 32, rotated", lambda: many_wells(32, rotation=0)),
}
"""Name → title and density: the public tasks."""
