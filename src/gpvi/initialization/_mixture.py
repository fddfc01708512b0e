"""Mixtures of normal distributions, Σ_k a_k N(m_k, L_k L_kᵀ)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from gpvi.initialization._arrays import Points, Values
from gpvi.initialization._normal import Normal


class Mixture(NamedTuple):
    """Normal distributions with shares that add up to one."""

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
        """Draws of which each part contributes its share, rounded down, and the last part contributes the rest.

        They are returned with the mixture of which they are exact draws, part by part: its shares are those of the
        draws, so that a part that contributes none does not count.
        """
        counts = np.floor(self.shares * count).astype(int)
        counts[-1] = count - counts[:-1].sum()
        dim = len(self.parts[0].location)
        noises = [rng.standard_normal((number, dim)) for number in counts]
        pairs = zip(self.parts, noises, strict=True)
        x = np.concatenate([part.points(noise) for part, noise in pairs])
        return x, Mixture(self.parts, counts / count)

    def and_half(self, normal: Normal) -> "Mixture":
        """An even mixture of this one and a normal distribution, which comes last."""
        return Mixture([*self.parts, normal], np.append(self.shares, 1.0) / 2)

    def whitened_by(self, normal: Normal) -> "Mixture":
        """The same mixture in the coordinates that whiten a normal distribution."""
        return Mixture([part.whitened_by(normal) for part in self.parts], self.shares)

    def moments(self) -> Normal:
        """The normal distribution with the mean and covariance of the mixture."""
        heaviest = self.parts[int(np.argmax(self.shares))]
        shares = self.shares[self.shares > 0]
        seen = [
            part.whitened_by(heaviest)
            for part, share in zip(self.parts, self.shares, strict=True)
            if share > 0
        ]
        mean = shares @ np.stack([part.location for part in seen])
        covariance = np.zeros_like(heaviest.scale)
        for part, share in zip(seen, shares, strict=True):
            away = part.location - mean
            covariance += share * (part.scale @ part.scale.T + np.outer(away, away))
        return heaviest.moved(mean, np.linalg.cholesky(covariance))
