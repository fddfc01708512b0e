"""The climb of a Gaussian q = N(m, LLᵀ) up the ELBO, by Newton steps.

At the optimum the whitened score s(ε) = Lᵀ∇log p(m + Lε) has mean zero and Λ = −E[s εᵀ] = I (Opper & Archambeau 2009).
The regression s ≈ a − Λε from a few draws gives the step m ← m + L Λ⁻¹a, LLᵀ ← L Λ⁻¹ Lᵀ. A fraction t of the step moves
by t Λ⁻¹a and scales by Λ⁻ᵗ; the largest fraction that raises the ELBO at fresh draws is taken.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.initialization._evaluation import BATCH, HostDensity
from gpvi.initialization._gaussians import (
    FINITE_SHARE,
    Matrix,
    Mixture,
    Normal,
    Points,
    Values,
    Vector,
    antithetic_noise,
)
from gpvi.initialization._widths import narrow_to_support

FLATTEST = 1e-2
"""The least curvature, in whitened coordinates, that a step uses."""

MOST_STEPS = 100
"""The most steps of a path."""

PATIENCE = 3
"""A path ends after this many steps in a row without a clear rise of the ELBO."""

PAIRED = 1_000
"""In more dimensions the noise of a step is made of pairs ±ε."""

FRACTIONS = 4.0 ** -np.arange(5.0)
"""The fractions of a Newton step that are tried in turn."""


class PathEnd(NamedTuple):
    """The end of a path.

    Attributes
    ----------
    elbo
        The ELBO of the last Gaussian.
    normal
        The last Gaussian.
    same_as
        The index of the earlier path end that the path ran into, if it did.
    """

    elbo: float
    normal: Normal
    same_as: int | None


class NewtonStep(NamedTuple):
    """The Newton step in whitened coordinates: Λ⁻¹a, and the eigenvalues and eigenvectors of Λ."""

    shift: Vector
    eigenvalues: Vector
    vectors: Matrix

    def factor(self, fraction: float) -> Matrix:
        """The Cholesky factor of Λ^(−fraction)."""
        return np.linalg.cholesky((self.vectors * self.eigenvalues**-fraction) @ self.vectors.T)


class Trial(NamedTuple):
    """A Gaussian, log p at its draws for some noise, and its ELBO from these."""

    normal: Normal
    noise: Points
    values: Values
    elbo: float

    @classmethod
    def of(
        cls, density: HostDensity, normal: Normal, noise: Points, least: float = FINITE_SHARE
    ) -> "Trial":
        """Evaluate log p at the draws. The ELBO is −inf if log p is finite at less than a share `least` of them."""
        values = density.values(normal.points(noise))
        return cls(normal, noise, values, normal.elbo(values, noise, least))

    def clearly_above(self, other: "Trial") -> bool:
        """Whether the rise of the ELBO exceeds its standard error and a hundredth of a nat per dimension."""
        both = np.isfinite(other.values) & np.isfinite(self.values)
        rises = self.normal.log_ratios(self.values, self.noise)[both]
        rises = rises - other.normal.log_ratios(other.values, other.noise)[both]
        least = max(rises.std() / np.sqrt(len(rises)), 0.01 * self.noise.shape[1])
        return bool(self.elbo - other.elbo > least)


def climb(
    density: HostDensity, normal: Normal, widest: float, earlier: Sequence[Normal], rng: Generator
) -> PathEnd | None:
    """Climb the ELBO from a Gaussian, by Newton steps.

    The path ends when the ELBO has not clearly risen for three steps, when it has run into the Gaussian of an earlier
    path end, or when the Gaussian is wider than `widest`, along a flat direction. The path fails, and None is returned,
    when its Gaussian becomes too narrow for float64 to tell it from a point, or log p is finite at too few draws of any
    width.
    """
    dim = len(normal.location)
    elbo, stalled = -np.inf, 0
    for _ in range(MOST_STEPS):
        if np.diag(normal.scale).max() > widest or stalled == PATIENCE:
            break
        if _is_a_point(normal):
            return None
        noise = _noise_of_a_step(dim, rng)
        step = newton_step(normal, noise, *density.scores(normal.points(noise)))
        current = Trial.of(density, normal, antithetic_noise(BATCH, dim, rng), least=0.5)
        elbo = current.elbo
        if step is None or not np.isfinite(elbo):
            narrowed = narrow_to_support(density, normal.scaled(0.5), rng)
            if narrowed is None:
                return None
            normal = narrowed
            continue
        raised = _largest_rising_step(density, current, step)
        stalled += 1
        if raised is not None:
            normal, elbo = raised.normal, raised.elbo
            if raised.clearly_above(current):
                stalled = 0
        for index, other in enumerate(earlier):
            if normal.kl_divergence(other) < 0.5 + 0.01 * dim:
                return PathEnd(elbo, normal, index)
    return PathEnd(elbo, normal, None) if np.isfinite(elbo) else None


def newton_step(normal: Normal, noise: Points, values: Values, scores: Points) -> NewtonStep | None:
    """Regress the whitened score on the noise. None if fewer than half of the draws have finite values and scores.

    In many dimensions the rows of the noise are pairs ±ε, first all ε, then all −ε. The slope is then that of the odd
    part (s(ε) − s(−ε))/2, which a skewness of log p does not enter, and the intercept is the mean of the even part.
    Along a flat direction q is widened tenfold, and moved by no more than its new width.
    """
    dim, finite = noise.shape[1], np.isfinite(values)
    if paired(dim):
        finite = np.tile(np.logical_and(*np.split(finite, 2)), 2)
    if finite.mean() < 0.5:
        return None
    noise, whitened = noise[finite], scores[finite] @ normal.scale
    if paired(dim):
        (noise, _), (there, opposite) = np.split(noise, 2), np.split(whitened, 2)
        precision = _shrunk_precision(noise, 0.5 * (there - opposite), len(noise) - dim)
        intercept = whitened.mean(0)
    else:
        centred, varying = noise - noise.mean(0), whitened - whitened.mean(0)
        precision = _shrunk_precision(centred, varying, len(noise) - dim - 1)
        intercept = whitened.mean(0) + precision @ noise.mean(0)
    if not (np.isfinite(precision).all() and np.isfinite(intercept).all()):
        return None
    eigenvalues, vectors = np.linalg.eigh(precision)
    shift = vectors.T @ intercept / np.maximum(eigenvalues, FLATTEST)
    reach = FLATTEST**-0.5
    shift = np.where(eigenvalues < FLATTEST, np.clip(shift, -reach, reach), shift)
    return NewtonStep(vectors @ shift, np.clip(eigenvalues, FLATTEST, 1e8), vectors)


def _noise_of_a_step(dim: int, rng: Generator) -> Points:
    """Three draws for each dimension, so that the regression is determined."""
    count = max(BATCH, 3 * dim)
    return (
        antithetic_noise(count + count % 2, dim, rng)
        if paired(dim)
        else rng.standard_normal((count, dim))
    )


def paired(dim: int) -> bool:
    """Whether the noise of a step is made of pairs ±ε; with few dimensions and few draws both parts are needed."""
    return dim > PAIRED


def _shrunk_precision(noise: Points, varying: Points, freedom: int) -> Matrix:
    """Λ by regression, with the degrees of freedom that it leaves.

    It is shrunk towards I, its value at the optimum, by the share of sampling error in ‖Λ − I‖² (Ledoit & Wolf: A
    well-conditioned estimator for large-dimensional covariance matrices, Journal of Multivariate Analysis 2004).
    """
    dim = noise.shape[1]
    slope = np.linalg.solve(noise.T @ noise, noise.T @ varying)
    away = -0.5 * (slope + slope.T) - np.eye(dim)
    error = 0.5 * dim * ((varying - noise @ slope) ** 2).sum() / freedom**2
    return np.eye(dim) + away * (1 - min(1.0, error / max((away**2).sum(), 1e-300)))


def mixture_of_ends(ends: Sequence[PathEnd]) -> Mixture:
    """The mixture of the path ends, with shares proportional to exp ELBO, an estimate of the mass around each.

    Ends more than 20 nats below the best have a share of zero.
    """
    elbos = np.array([end.elbo for end in ends])
    elbos = np.where(elbos >= elbos.max() - 20, elbos, -np.inf)
    return Mixture([end.normal for end in ends], np.exp(elbos - logsumexp(elbos)))


def _largest_rising_step(density: HostDensity, current: Trial, step: NewtonStep) -> Trial | None:
    """The result of the largest fraction of the step that raises the ELBO at the same noise, if one does."""
    for fraction in FRACTIONS:
        moved = current.normal.moved(fraction * step.shift, step.factor(fraction))
        trial = Trial.of(density, moved, current.noise)
        if trial.elbo > current.elbo:
            return trial
    return None


def _is_a_point(normal: Normal) -> bool:
    """Whether float64 cannot tell the Gaussian from a point in some coordinate."""
    rounding = 8 * np.finfo(float).eps * np.abs(normal.location)
    return bool((np.diag(normal.scale) < rounding).any())
