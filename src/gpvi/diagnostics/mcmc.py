r"""Convergence of Markov chains, R̂ and effective sample sizes: pure functions of arrays (chains, draws, d).

R̂ = √((n − 1)/n + B/W) compares the variance B of the means of chains of n draws with the variance W within them. Each
chain is split into halves, which reveals trends, and draws are replaced by the normal scores of their ranks, which
tames heavy tails. A second R̂, of the draws folded about their median, reveals scales that differ; the larger of the two
is reported.

The effective sample size is cn/τ with τ = 1 + 2Σρ_t. The autocorrelations of successive lags sum to a positive,
decreasing sequence P_t = ρ_2t + ρ_2t+1 in a reversible chain, so the sum stops at the first P_t < 0 and P is made
monotone (Geyer 1992). Of normal scores it is the ESS of the bulk; of the indicators of the 5 % and 95 % quantiles,
whichever is less, that of the tails; of the draws themselves, what the error of their mean needs.

Vehtari, Gelman, Simpson, Carpenter, Bürkner: Rank-normalization, folding, and localization: an improved R̂ for
assessing convergence of MCMC (Bayesian Analysis 2021). It runs on the host, where FFTs and ranks need no compiling.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Num

from gpvi.errors import InputError

FEWEST_DRAWS = 8

_BLOCK = 256
Draws = Float[np.ndarray, "c n d"]
PerCoordinate = Float[np.ndarray, " d"]


class Convergence(NamedTuple):
    """Convergence of each coordinate; NaN if a draw is not finite or all draws are equal."""

    rhat: PerCoordinate
    ess_bulk: PerCoordinate
    ess_tail: PerCoordinate
    mcse: PerCoordinate
    """The Monte-Carlo standard error of the mean, sd/√ESS."""


def summary(chains: Float[Array | np.ndarray, "c n d"]) -> Convergence:
    """Return R̂, bulk and tail ESS, and the standard error of the mean, for each coordinate."""
    draws = np.asarray(chains, np.float64)
    if draws.shape[1] < FEWEST_DRAWS:
        raise InputError(
            f"the chains have {draws.shape[1]} draws each; R̂ and ESS take {FEWEST_DRAWS} or more."
        )
    blocks = [
        _summary_of_some(draws[..., first : first + _BLOCK])
        for first in range(0, draws.shape[2], _BLOCK)
    ]
    return Convergence(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def worst(*views: Float[Array | np.ndarray, "c n _"]) -> tuple[float, float]:
    """Return the largest R̂ and the smallest ESS, bulk or tail, of the same chains in several sets of coordinates."""
    found = summary(np.concatenate([np.asarray(view, np.float64) for view in views], axis=-1))
    return float(np.max(found.rhat)), float(np.min([found.ess_bulk, found.ess_tail]))


def split_rhat(halves: Draws) -> PerCoordinate:
    """Return √((n − 1)/n + B/W) for chains that have been split."""
    n = halves.shape[1]
    between, within = halves.mean(1).var(0, ddof=1), halves.var(1, ddof=1).mean(0)
    return np.sqrt((n - 1) / n + between / within)


def effective_sample_size(halves: Num[np.ndarray, "c n d"]) -> PerCoordinate:
    """Return cn/τ, limited to cn·log₁₀(cn) for antithetic chains."""
    chains, n, _ = halves.shape
    rho = _autocorrelations(halves)[: 2 * ((n - 1) // 2)]
    pairs = rho[0::2] + rho[1::2]
    positive = np.logical_and.accumulate(pairs > 0)
    positive[-1] = False
    monotone = np.minimum.accumulate(np.where(positive, pairs, 0.0))
    beyond = np.take_along_axis(rho[0::2], positive.sum(0)[None], 0)[0].clip(0.0)
    tau = -1 + 2 * monotone.sum(0) + beyond
    return chains * n / np.maximum(tau, 1 / np.log10(chains * n))


def _summary_of_some(draws: Draws) -> Convergence:
    usable = np.isfinite(draws).all((0, 1)) & (np.ptp(draws, (0, 1)) > 0)
    draws = np.where(usable, draws, np.random.default_rng(0).standard_normal(draws.shape))
    halves = _split(draws)
    scores = _normal_scores(halves)
    folded = _normal_scores(np.abs(halves - np.median(halves, (0, 1))))
    tails = [
        effective_sample_size(_split((draws <= np.quantile(draws, level, (0, 1))).astype(float)))
        for level in (0.05, 0.95)
    ]
    sd = draws.std((0, 1), ddof=1)
    found = (
        np.maximum(split_rhat(scores), split_rhat(folded)),
        effective_sample_size(scores),
        np.minimum(*tails),
        sd / np.sqrt(effective_sample_size(halves)),
    )
    return Convergence(*(np.where(usable, values, np.nan) for values in found))


def _split(draws: Draws) -> Float[np.ndarray, "h m d"]:
    """Split each chain into two; the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Draws) -> Draws:
    """Φ^{-1}((r − 3/8)/(n + 1/4)) of the ranks r among all chains (Blom 1958)."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    size = draws.shape[0] * draws.shape[1]
    ranks = rankdata(draws.reshape(size, -1), axis=0)
    return ndtri((ranks - 0.375) / (size + 0.25)).reshape(draws.shape)


def _autocorrelations(draws: Draws) -> Float[np.ndarray, "n d"]:
    """ρ_t = 1 − (W − mean autocovariance at lag t) / var⁺, over all chains."""
    from scipy.fft import next_fast_len

    chains, n, _ = draws.shape
    means = draws.mean(1)
    length = next_fast_len(2 * n, real=True)
    spectrum = np.fft.rfft(draws - means[:, None], length, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).mean(0)
    covariance = np.fft.irfft(power, length, axis=0)[:n] / n
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (means.var(0, ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    return rho
