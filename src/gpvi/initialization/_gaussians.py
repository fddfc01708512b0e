"""Normal distributions N(m, LLᵀ) and their mixtures, in float64 arrays of NumPy.

L is lower-triangular with a positive diagonal. Draws are x = m + Lε, and ε = L⁻¹(x − m) are the coordinates that whiten
the distribution. d is the dimension, n the number of points.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

Vector = Float[np.ndarray, " d"]
Matrix = Float[np.ndarray, "d d"]
Points = Float[np.ndarray, "n d"]
Values = Float[np.ndarray, " n"]

FINITE_SHARE = 0.75
"""A Gaussian is usable if log p is finite at this share of its draws at least."""


class Normal(NamedTuple):
    """The normal distribution N(location, scale scaleᵀ)."""

    location: Vector
    scale: Matrix

    @property
    def log_det(self) -> float:
        """The logarithm of det L."""
        return float(np.log(np.diag(self.scale)).sum())

    def points(self, noise: Points) -> Points:
        """The draws x = m + Lε for the rows ε of the noise."""
        return self.location + noise @ self.scale.T

    def whiten(self, x: Points) -> Points:
        """The noise ε = L⁻¹(x − m) for the rows of x."""
        return solve_triangular(self.scale, (x - self.location).T, lower=True).T

    def log_density(self, x: Points) -> Values:
        """The normalised log-density at the rows of x."""
        u = self.whiten(x)
        return -0.5 * (u**2).sum(1) - self.log_det - 0.5 * x.shape[1] * np.log(2 * np.pi)

    def whitened_by(self, other: "Normal") -> "Normal":
        """The same distribution in the coordinates that whiten `other`."""
        scale = solve_triangular(other.scale, self.scale, lower=True)
        return Normal(other.whiten(self.location[None])[0], scale)

    def moved(self, shift: Vector, factor: Matrix) -> "Normal":
        """N(shift, factor factorᵀ) of the coordinates that whiten this distribution, as a distribution of x."""
        return Normal(self.location + self.scale @ shift, self.scale @ factor)

    def scaled(self, factor: float) -> "Normal":
        """The same distribution with its scale multiplied by a number."""
        return Normal(self.location, self.scale * factor)

    def log_ratios(self, values: Values, noise: Points) -> Values:
        """log p − log q at the draws m + Lε for the rows ε of the noise, where `values` are log p there."""
        constant = self.log_det + 0.5 * noise.shape[1] * np.log(2 * np.pi)
        return values + 0.5 * (noise**2).sum(1) + constant

    def elbo(self, values: Values, noise: Points, least: float = FINITE_SHARE) -> float:
        """The ELBO of this distribution, restricted to the region where log p is finite.

        It is the mean of log p − log q over the draws with finite log p, plus the logarithm of their share. It is −inf
        if that share is below `least`.
        """
        finite = np.isfinite(values)
        if finite.mean() < least:
            return -np.inf
        elbo = float(self.log_ratios(values, noise)[finite].mean() + np.log(finite.mean()))
        return elbo if np.isfinite(elbo) else -np.inf

    def kl_divergence(self, other: "Normal") -> float:
        """KL(self ‖ other)."""
        white = self.whitened_by(other)
        squares = (white.scale**2).sum() + (white.location**2).sum() - len(white.location)
        return float(0.5 * squares - white.log_det)


class Mixture(NamedTuple):
    """The mixture Σ_k a_k N(m_k, L_k L_kᵀ), with shares a_k that add up to one."""

    parts: Sequence[Normal]
    shares: Values

    def log_density(self, x: Points) -> Values:
        """The normalised log-density at the rows of x."""
        with np.errstate(divide="ignore"):
            log_parts = [
                np.log(share) + part.log_density(x)
                for part, share in zip(self.parts, self.shares, strict=True)
            ]
        return np.asarray(logsumexp(log_parts, axis=0))

    def draw(self, count: int, rng: Generator) -> tuple[Points, "Mixture"]:
        """Stratified draws, and the mixture from which they are drawn exactly.

        Each part contributes its share of the draws, rounded down, and the last part contributes the rest. The shares
        of the returned mixture are those of the draws, so that a part without a draw does not count.
        """
        counts = np.floor(self.shares * count).astype(int)
        counts[-1] = count - counts[:-1].sum()
        dim = len(self.parts[0].location)
        noises = [rng.standard_normal((number, dim)) for number in counts]
        pairs = zip(self.parts, noises, strict=True)
        x = np.concatenate([part.points(noise) for part, noise in pairs])
        return x, Mixture(self.parts, counts / count)

    def and_half(self, normal: Normal) -> "Mixture":
        """The even mixture of this mixture and a normal distribution, which comes last."""
        return Mixture([*self.parts, normal], np.append(self.shares, 1.0) / 2)

    def whitened_by(self, normal: Normal) -> "Mixture":
        """The same mixture in the coordinates that whiten a normal distribution."""
        return Mixture([part.whitened_by(normal) for part in self.parts], self.shares)

    def moments(self) -> Normal:
        """The normal distribution with the mean and covariance of the mixture."""
        heaviest = self.parts[int(np.argmax(self.shares))]
        shares = self.shares[self.shares > 0]
        whitened = [
            part.whitened_by(heaviest)
            for part, share in zip(self.parts, self.shares, strict=True)
            if share > 0
        ]
        mean = shares @ np.stack([part.location for part in whitened])
        covariance = np.zeros_like(heaviest.scale)
        for part, share in zip(whitened, shares, strict=True):
            away = part.location - mean
            covariance += share * (part.scale @ part.scale.T + np.outer(away, away))
        return heaviest.moved(mean, np.linalg.cholesky(covariance))


def antithetic_noise(count: int, dim: int, rng: Generator) -> Points:
    """Standard normal draws in pairs ±ε, so that their odd moments vanish."""
    half = rng.standard_normal((count // 2, dim))
    return np.concatenate([half, -half])
