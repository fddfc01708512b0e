r"""Necks beyond the draws: the tail of the coordinate along which the posterior narrows, found without the draws.

Where a scale τ of a hierarchy nears zero, the posterior becomes as narrow as τ, and neither a generator nor chains with
one step size follow to the end. What they miss holds little mass, but most of the tail of log τ. The length of the
score, |∇ log p|, grows as the posterior narrows, so the coordinate c = x_i to look along is the one that is most
correlated with log |∇ log p| at the draws, towards longer scores. On its way outwards the mode x*(c) of the others is
followed by Newton's method. With H the Hessian of −log p there, importance sampling from N(x*(c), H⁻¹) estimates

    m(c) = ∫ p(x) dx_{−i},

the marginal density of x_i up to a constant, without bias (Tierney & Kadane 1986 evaluate the ratio at x* only). The
constant follows from where draws are plentiful, between their upper quartile and their last twentieth. What m says of
the tail beyond is compared with what the draws say of it. The effective share of the weights at each c tells whether
the others are nearly Gaussian given c; where they are not, the error is large, and nothing should follow.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.noise import normal
from gpvi.targets.density import Density

LEAST_CORRELATION = 0.2
"""Of a coordinate with log |∇ log p|: if none has more, the posterior is as wide everywhere as it is in its middle."""
PLENTIFUL, EDGE = 0.75, 0.95
"""Quantiles of the draws towards the neck: m is scaled by the draws between them, and compared beyond the second."""
FEWEST = 50
"""Draws beyond the edge below which nothing is said."""
WINDOW = 4
"""Steps of c from the one quantile to the other, an even number for Simpson's rule; the rest have the same length."""
LEAST_STEP = 0.1
"""The least step of c, in standard deviations."""
VALUES = 57
"""Values of c: some twelve standard deviations of a Gaussian."""
LEAD = 3
"""Times that the first value of c is visited beforehand, so that the others arrive at their mode."""
NEWTON_STEPS = 3
"""Newton steps at each value, from the mode at the one before."""
SHORTENED = (1.0, 0.5, 0.25, 0.1, 0.01, 0.0)
"""The best of these parts of a Newton step is taken."""
LEAST_CURVATURE = 1e-3
"""Curvatures are no less than this, in units of the draws' spread."""
PAIRS = 64
"""Antithetic pairs of importance draws at each value."""
LEAST_SHARE = 0.1
"""The effective share of their weights below which m is unknown; it then counts as 0, as where rounding ends a neck."""


class Neck(NamedTuple):
    """What the tail of one coordinate adds to what the draws know of it.

    Parameters
    ----------
    coordinate
        The coordinate of the target along which the posterior narrows.
    growth
        By how much its standard deviation grows if the tail is added, as a share of it; below 0 if it shrinks.
    errors
        The same in standard errors.
    gradients
        The evaluations of log p and its gradient that it took; two for each product with a Hessian.
    """

    coordinate: int
    growth: float
    errors: float
    gradients: int


class _Marginal(NamedTuple):
    """log m at the values of c, and the effective share of the importance weights there."""

    log_density: Float[Array, " k"]
    share: Float[Array, " k"]


def beyond(
    density: Density,
    x: Float[np.ndarray, "n d"],
    score: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    efficiency: float = 1.0,
    *,
    key: PRNGKeyArray,
) -> Neck | None:
    """Look beyond draws for a neck; None if there are too few, or the posterior does not narrow.

    Parameters
    ----------
    density
        The posterior in the target's coordinates.
    x, score, weights
        Draws in these coordinates, ∇ log p there, and normalised weights.
    efficiency
        The effective share of the draws, if they are the points of Markov chains.
    key
        A JAX random key.
    """
    usable = np.isfinite(score).all(1) & (weights > 0)
    x, score, weights = x[usable], score[usable], weights[usable] / weights[usable].sum()
    if density.dim == 1 or len(x) * (1 - EDGE) < FEWEST:
        return None
    mean = weights @ x
    sd = np.sqrt(weights @ (x - mean) ** 2)
    along, correlation = _narrowing((x - mean) / sd, score * sd, weights)
    if not abs(correlation) > LEAST_CORRELATION:
        return None
    direction = math.copysign(sd[along], correlation)
    outwards = (x[:, along] - mean[along]) / direction
    t = _abscissae(outwards, weights)
    start = x[np.abs(outwards - t[0]).argmin()]
    values = mean[along] + direction * np.concatenate([np.full(LEAD, t[0]), t])
    given = (jnp.asarray(each, density.dtype) for each in (start, sd, values))
    log_m, share = (
        np.asarray(each, np.float64)[LEAD:] for each in _follow(density, along, *given, key=key)
    )
    gradients = len(x) + len(values) * (2 * density.dim * (NEWTON_STEPS + 1) + 2 * PAIRS)
    growth, errors = _added(outwards, weights, t, log_m, share, efficiency)
    return Neck(along, growth, errors, gradients)


def _abscissae(
    outwards: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " k"]:
    """Return standardised values of c, evenly spaced: the first is one quantile, that of index `WINDOW` the other."""
    order = outwards.argsort()
    ranks = np.searchsorted(weights[order].cumsum(), (PLENTIFUL, EDGE))
    first, edge = outwards[order[np.minimum(ranks, len(order) - 1)]]
    return first + max((edge - first) / WINDOW, LEAST_STEP) * np.arange(VALUES)


def _added(
    outwards: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    t: Float[np.ndarray, " k"],
    log_m: Float[np.ndarray, " k"],
    share: Float[np.ndarray, " k"],
    efficiency: float,
) -> tuple[float, float]:
    """Return how the sd of standardised draws grows if their tail is replaced by that of m, and in standard errors.

    m counts up to a constant, which is such that the draws and m agree on the mass from t[0] to t[WINDOW].
    """
    m = np.exp(log_m - np.where(np.isfinite(log_m), log_m, -np.inf).max(initial=-1e30))
    m = np.where(np.isfinite(m), m, 0.0)
    variances = np.maximum(1 / np.maximum(share, 0.5 / PAIRS) - 1, 0.0) / (2 * PAIRS)
    window, tail = np.zeros((2, len(t)))
    window[: WINDOW + 1] = _simpson(WINDOW)
    tail[WINDOW:] = _simpson(len(t) - 1 - WINDOW)
    tail *= (share > LEAST_SHARE) * m
    inside = ((outwards > t[0]) & (outwards <= t[WINDOW])).astype(float)
    beyond = (outwards > t[WINDOW]).astype(float)
    mass, scale = weights @ inside, window @ m
    if not (mass > 0 and scale > 0):
        return 0.0, 0.0
    tail *= mass / scale
    of_m = np.array([tail @ t**power for power in range(3)])
    added = of_m - [weights @ (beyond * outwards**power) for power in range(3)]
    total = 1 + added[0]
    variance = (1 + added[2]) / total - (added[1] / total) ** 2
    error = math.hypot(
        of_m[2] * _error(weights, inside, efficiency) / mass,
        of_m[2] * math.sqrt((window * m) ** 2 @ variances) / scale,
        math.sqrt((tail * t**2) ** 2 @ variances),
        _error(weights, beyond * outwards**2, efficiency),
    )
    return math.sqrt(max(variance, 0.0)) - 1, float(added[2]) / error if error > 0 else 0.0


def _simpson(steps: int) -> Float[np.ndarray, " k"]:
    """The weights of Simpson's rule for an even number of steps of length 1."""
    weights = np.where(np.arange(steps + 1) % 2, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    return weights / 3


def _narrowing(
    x: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]
) -> tuple[int, float]:
    """Return the standardised coordinate most correlated with the logarithm of the length of the score."""
    length = np.log((score**2).sum(1) + np.finfo(float).tiny)
    length -= weights @ length
    spread = math.sqrt(weights @ length**2)
    correlations = (weights * length) @ x / max(spread, np.finfo(float).tiny)
    along = int(np.abs(correlations).argmax())
    return along, float(correlations[along])


def _error(
    weights: Float[np.ndarray, " n"], quantity: Float[np.ndarray, " n"], efficiency: float
) -> float:
    """The standard error of a weighted mean."""
    centred = quantity - weights @ quantity
    return math.sqrt(weights**2 @ centred**2 / efficiency)


@brief(calls=1)
def _follow(
    density: Density,
    along: int,
    start: Float[Array, " d"],
    sd: Float[Array, " d"],
    values: Float[Array, " k"],
    *,
    key: PRNGKeyArray,
) -> _Marginal:
    """Estimate m at each value of one coordinate, following the mode of the others from a starting point."""
    scale = jnp.delete(sd, along)

    def log_density(y: Float[Array, " e"], value: Scalar) -> Scalar:
        return density.log_density(jnp.insert(y * scale, along, value))

    def curvature(y: Float[Array, " e"], value: Scalar) -> tuple[Float[Array, " e"], Array]:
        hessian = -jax.hessian(log_density)(y, value)
        eigenvalues, axes = jnp.linalg.eigh(hessian)
        return jnp.maximum(jnp.abs(eigenvalues), LEAST_CURVATURE), axes

    def newton(y: Float[Array, " e"], value: Scalar) -> Float[Array, " e"]:
        eigenvalues, axes = curvature(y, value)
        move = axes @ ((axes.T @ jax.grad(log_density)(y, value)) / eigenvalues)
        moved = y + jnp.asarray(SHORTENED, y.dtype)[:, None] * jnp.where(
            jnp.isfinite(move), move, 0.0
        )
        heights = jax.vmap(log_density, (0, None))(moved, value)
        return moved[jnp.where(jnp.isfinite(heights), heights, -jnp.inf).argmax()]

    def visit(
        y: Float[Array, " e"], at: tuple[Scalar, PRNGKeyArray]
    ) -> tuple[Float[Array, " e"], _Marginal]:
        value, key = at
        y = jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, y: newton(y, value), y)
        eigenvalues, axes = curvature(y, value)
        noise = normal(key, (PAIRS, y.size), y.dtype)
        noise = jnp.concatenate([noise, -noise])
        points = y + (noise / jnp.sqrt(eigenvalues)) @ axes.T
        log_q = 0.5 * jnp.log(eigenvalues).sum() - 0.5 * (noise**2).sum(1)
        log_weights = jax.vmap(log_density, (0, None))(points, value) - log_q
        log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
        total = logsumexp(log_weights)
        share = jnp.exp(2 * total - logsumexp(2 * log_weights)) / len(log_weights)
        return y, _Marginal(total, jnp.nan_to_num(share))

    keys = jax.random.split(key, len(values))
    return jax.lax.scan(visit, jnp.delete(start, along) / scale, (values, keys))[1]
