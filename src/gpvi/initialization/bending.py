r"""How much of what a Gaussian misses could be mended by bending each coordinate by itself, to second order.

Let q = N(b, LLᵀ), and let y = (x − b)/s be standardised by the standard deviations s, so that y ~ N(0, ρ) with S = L/s
and SSᵀ = ρ. Moving y by a small velocity g changes KL(q‖p) by

    −E[δ·g] + ½ E[gᵀρ⁻¹g] + ½ E tr(∇g ∇g),   δ = s ∇ₓ(log p − log q).

If q is the best Gaussian, constant and linear g gain nothing. Take g_i = Σ_n a_ni He_n(y_i), with Hermite polynomials
He₂ (skewness) and He₃ (tails) of one coordinate each. Since E[He_m(y_i) He_n(y_j)] = n! ρ_ij^n for m = n, and 0 for
m ≠ n, and He_n′ = n He_{n−1}, the orders separate, and each gains

    ½ c_nᵀ Q_n⁻¹ c_n,   c_ni = E[δ_i He_n(y_i)],   Q_n = n! (ρ^n ∘ ρ⁻¹ + n I)   (powers and ∘ entry by entry).

What q misses in all is KL(q‖p) ≈ ½ Var_q log(p/q). The expectations c_n are means over draws; the terms in which a draw
meets itself are left out of the quadratic form, so that their noise has mean zero.
"""

import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from gpvi._compute.noise import normal
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import at_once

DRAWS = 1_024


def share_of_marginals(density: Whitened, *, key: PRNGKeyArray) -> float:
    """Return the share of KL(q‖p) that bent coordinates of x would remove, for the standard normal q of u.

    It is an estimate from few draws, roughly between 0 and 1, and meant for a KL of few nats. It is 0 where log p is
    finite at fewer than half of the draws.
    """
    u = normal(key, (DRAWS, density.dim), density.dtype)
    log_p, scores = (np.asarray(each, np.float64) for each in _scored(density, u))
    finite = np.isfinite(log_p) & np.isfinite(scores).all(1)
    if finite.mean() < 0.5:
        return 0.0
    u = np.asarray(u, np.float64)[finite]
    missed = 0.5 * (log_p[finite] + 0.5 * (u**2).sum(1)).var()
    scale = np.asarray(density.affine.matrix, np.float64)
    factor = scale / np.linalg.norm(scale, axis=1, keepdims=True)
    return float(_gain(factor, u, scores[finite] + u) / missed) if missed > 0 else 0.0


@eqx.filter_jit
def _scored(
    density: Whitened, u: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """Return log p and its scores."""
    return jax.lax.map(jax.value_and_grad(density.log_density), u, batch_size=at_once(density.dim))


def _gain(
    factor: Float[np.ndarray, "d d"],
    u: Float[np.ndarray, "n d"],
    residual: Float[np.ndarray, "n d"],
) -> float:
    """Return the nats that both orders gain; `residual` is ∇(log p − log q) in u, and `factor` is S."""
    y = u @ factor.T
    delta = solve_triangular(factor, residual.T, trans=1, lower=True).T
    correlation = factor @ factor.T
    precision = cho_solve((factor, True), np.eye(len(factor)))
    count, gained = len(u), 0.0
    for order, polynomial in ((2, y**2 - 1), (3, y**3 - 3 * y)):
        each = delta * polynomial
        curvature = correlation**order * precision + order * np.eye(len(factor))
        solved = cho_solve(cho_factor(math.factorial(order) * curvature), each.T).T
        pairs = each.sum(0) @ solved.sum(0) - (each * solved).sum()
        gained += 0.5 * pairs / (count * (count - 1))
    return gained
