r"""Checks of draws that need the score alone, and no density: Stein's identities and the kernel Stein discrepancy.

Under p, for any smooth g that does not grow too fast, E[s(x)·g(x) + ∇·g(x)] = 0. With g constant, E[s] = 0; with
g = (x_i − m_i) e_i and m the mean, −E[(x_i − m_i) s_i] = 1. For a Gaussian p the latter is var_q / var_p: particles
whose variance has collapsed show it without any reference. The kernel Stein discrepancy [1] takes the worst g of a
reproducing kernel Hilbert space; with the inverse multiquadric kernel it detects loss of tails too [2]. All are local:
none sees a mode that no draw has visited.

[1] Liu, Lee, Jordan: A kernelized Stein discrepancy for goodness-of-fit tests (ICML 2016).
[2] Gorham, Mackey: Measuring sample quality with kernels (ICML 2017).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.precision import product

BOOTSTRAPS = 500
POINTS = 1_000
"""The discrepancy compares all pairs of at most this many draws."""


class Identities(NamedTuple):
    """Stein's identities for linear test functions, one value per coordinate."""

    mean_score: Float[Array, " d"]
    """E[s_i] in standard errors of independent draws: 0 if the draws are from p."""
    spread: Float[Array, " d"]
    """−E[(x_i − m_i) s_i]: 1 if the draws are from p, below 1 if they are too narrow."""


class Discrepancy(NamedTuple):
    """The kernel Stein discrepancy of a set of draws."""

    value: Scalar
    """The square root of the V-statistic."""
    p_value: Scalar
    """The share of bootstrapped U-statistics above the observed one; small if these are not independent draws of p."""


@brief(calls=1)
def identities(x: Float[Array, "n d"], score: Float[Array, "n d"]) -> Identities:
    """Compute Stein's identities for linear test functions."""
    centred = x - x.mean(0)
    error, mean = score.std(0) / jnp.sqrt(len(x)), score.mean(0)
    in_errors = jnp.where(mean == 0, 0.0, mean / error)
    return Identities(in_errors, -(centred * score).mean(0))


@brief(calls=1)
def flattest(
    x: Float[Array, "n d"], score: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, " d"]]:
    """Return where the draws lie along the line on which log p falls the least, in sd, and the vector of one sd.

    In coordinates in which the draws have covariance I, −E[x sᵀ] is the identity at p; its least eigenvalue is near 0
    where log p hardly falls along some line.
    """
    centred = x - x.mean(0)
    factor = jnp.linalg.cholesky(product(centred.T, centred) / len(x))
    white = jax.scipy.linalg.solve_triangular(factor, centred.T, lower=True).T
    stein = -product(white.T, product(score, factor)) / len(x)
    direction = jnp.linalg.eigh((stein + stein.T) / 2)[1][:, 0]
    return product(white, direction), product(factor, direction)


@brief(calls=1)
def discrepancy(
    x: Float[Array, "n d"], score: Float[Array, "n d"], *, key: PRNGKeyArray
) -> Discrepancy:
    """KSD with k(x, y) = (1 + ‖x − y‖²/d)^{-1/2}, in coordinates where p has scale one.

    The Stein kernel is u(x, y) = s_x·s_y k + s_x·∇_y k + s_y·∇_x k + ∇_x·∇_y k; products of all pairs are matmuls.
    """
    n, dim = x.shape
    squares = (x**2).sum(1)
    distances = jnp.maximum(squares[:, None] + squares[None] - 2 * product(x, x.T), 0.0)
    base = 1 + distances / dim
    slope, curvature = -(base**-1.5) / dim, 3 * base**-2.5 / dim**2
    along = product(score, x.T)
    own = (score * x).sum(1)
    toward_y = own[:, None] - along
    toward_x = own[None] - along.T
    u = (
        product(score, score.T) * base**-0.5
        - slope * (toward_y + toward_x)
        - dim * slope
        - curvature * distances
    )
    pairs = u - jnp.diag(jnp.diag(u))
    statistic = pairs.sum() / (n * (n - 1))
    signs = jax.random.rademacher(key, (BOOTSTRAPS, n), x.dtype) / n
    replicates = ((signs @ pairs) * signs).sum(1)
    value = jnp.sqrt(jnp.maximum(u.mean(), 0.0))
    return Discrepancy(value, (replicates >= statistic).mean())
