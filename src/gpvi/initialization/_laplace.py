"""Laplace's approximation: the best Gaussian N(x, |H|⁻¹), H = −∇²log p(x), along a Newton ascent of log p.

|H| has the absolute eigenvalues of H, so that the Gaussian exists and the ascent leaves saddles. They are taken after H
is scaled to a unit diagonal, so that they do not depend on the units of the coordinates.
"""

import numpy as np
from numpy.random import Generator

from gpvi._inputs import format_point
from gpvi.initialization._evaluation import BATCH, HostDensity
from gpvi.initialization._gaussians import Matrix, Normal, Vector, antithetic_noise
from gpvi.initialization._widths import narrow_to_gentle_scores, narrow_to_support
from gpvi.initialization.result import Gaussian, NoPathError, Report

MOST_STEPS = 100
"""The most steps of the ascent."""

LENGTHS = 4.0 ** np.arange(3.0, -29.0, -1.0)
"""The lengths of each Newton step that are tried, all at once."""

LEAST_RISE = 1e-6
"""The ascent ends when log p rises by less, in nats."""


def ascend(density: HostDensity, start: Vector, rng: Generator) -> Gaussian:
    """The Gaussian of `gpvi.initialization.laplace`, from a point at which log p and its gradient are finite."""
    x, value = start, density.values(start[None])[0]
    noise = antithetic_noise(BATCH, len(x), rng)
    best, best_elbo = None, -np.inf
    for _ in range(MOST_STEPS):
        score, hessian = density.curvature(x)
        if not np.isfinite(hessian).all():
            break
        root = _inverse_root(hessian, score)
        normal = Normal(x, _triangular(root))
        elbo = normal.elbo(density.values(normal.points(noise)), noise)
        if best is None or elbo > best_elbo:
            best, best_elbo = normal, elbo
        points = x + LENGTHS[:, None] * (root @ (root.T @ score))
        values = density.values(points)
        if not values.max() > value + LEAST_RISE:
            break
        x, value = points[values.argmax()], values.max()
    normal = None if best is None else narrow_to_support(density, best, rng)
    if normal is None:
        raise NoPathError(
            f"the Hessian or the values of the log-density are not finite around {format_point(x)}. "
            "Pass another start, or guard the log-density."
        )
    report = Report(
        kind="laplace",
        elbos=(best_elbo,),
        distinct=(0,),
        chosen=0,
        tempering=0.0,
        effective_share=1.0,
        flat=False,
    )
    normal = narrow_to_gentle_scores(density, normal, rng)
    return Gaussian.of(normal, report._replace(scores=density.scored))


def _inverse_root(hessian: Matrix, score: Vector) -> Matrix:
    """A matrix R with RRᵀ = |H|⁻¹.

    A coordinate without curvature is given the inverse variance of an exponential distribution with its slope, or 1 if
    its slope is zero. A direction without curvature is given that of its coordinates.
    """
    curvature = np.abs(np.diag(hessian))
    curvature = np.where(curvature > 0, curvature, np.where(score != 0, score**2, 1.0))
    unit = 1 / np.sqrt(curvature)
    eigenvalues, vectors = np.linalg.eigh(hessian * unit * unit[:, None])
    eigenvalues = np.abs(eigenvalues)
    eigenvalues = np.where(eigenvalues > 1e-12 * eigenvalues.max(), eigenvalues, 1.0)
    return unit[:, None] * vectors / np.sqrt(eigenvalues)


def _triangular(root: Matrix) -> Matrix:
    """The Cholesky factor of RRᵀ, from a QR decomposition of Rᵀ."""
    upper = np.asarray(np.linalg.qr(root.T, mode="r"))
    return upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0)
