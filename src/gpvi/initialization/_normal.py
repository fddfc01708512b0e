"""The normal distribution N(m, LLᵀ) with which the search works.

L is lower-triangular with a positive diagonal. Draws are x = m + Lε, and ε = L⁻¹(x − m) are the coordinates that whiten
the distribution.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import solve_triangular

from gpvi.initialization._arrays import Matrix, Points, Values, Vector

FINITE_SHARE = 0.75
"""The share of a Gaussian's draws at which log p must be finite for the Gaussian to be usable."""


class Normal(NamedTuple):
    """N(location, scale scaleᵀ)."""

    location: Vector
    scale: Matrix

    @property
    def log_det(self) -> float:
        """log det L."""
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
        """The distribution that is N(shift, factor factorᵀ) in the coordinates that whiten this one."""
        return Normal(self.location + self.scale @ shift, self.scale @ factor)

    def scaled(self, by: float) -> "Normal":
        """The distribution with its scale multiplied by a number."""
        return Normal(self.location, self.scale * by)

    def log_ratios(self, values: Values, noise: Points) -> Values:
        """log p − log q at the draws made of `noise`, where `values` are log p."""
        constant = self.log_det + 0.5 * noise.shape[1] * np.log(2 * np.pi)
        return values + 0.5 * (noise**2).sum(1) + constant

    def elbo(self, values: Values, noise: Points, least: float = FINITE_SHARE) -> float:
        """The ELBO of this distribution restricted to where log p is finite.

        It is E[log p − log q] over the finite draws, plus the log of their share; −inf if that share is below `least`.
        """
        finite = np.isfinite(values)
        if finite.mean() < least:
            return -np.inf
        elbo = float(self.log_ratios(values, noise)[finite].mean() + np.log(finite.mean()))
        return elbo if np.isfinite(elbo) else -np.inf

    def kl_divergence(self, other: "Normal") -> float:
        """KL(self ‖ other)."""
        seen = self.whitened_by(other)
        squares = (seen.scale**2).sum() + (seen.location**2).sum() - len(seen.location)
        return float(0.5 * squares - seen.log_det)


def antithetic_noise(count: int, dim: int, rng: Generator) -> Points:
    """Standard normal draws in pairs ±ε, whose odd moments vanish."""
    half = rng.standard_normal((count // 2, dim))
    return np.concatenate([half, -half])
