"""One sentence on whether to believe a posterior: good, no fault seen, usable with importance weights, or do not trust.

The rules look for a reason to doubt, the gravest first. "Good" is said only where densities are exact, or chains
have mixed, and where weighting would move no mean by more than a tenth of a standard deviation.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

Level = Literal["good", "usable with importance weights", "no fault seen", "do not trust"]

RELIABLE_K_HAT = 0.7
"""Above this importance weights have no usable variance (Vehtari et al. 2024)."""
GOOD_SHARE = 0.5
EVEN_SHARE, HOPELESS_K_HAT = 0.95, 1.0
"""Weights this even hardly move a mean, even if their tail is heavier than k̂ = 0.7; beyond 1 they have no mean."""
MEAN_SHIFT, LOG_SPREAD_SHIFT = 0.1, 0.2
FEW_EFFECTIVE = 100
REJECTED = 0.01
FAR = 10.0
"""So many times as far out as the draws are, log p should have fallen."""
LEAST_FALL = math.log(FAR)
"""A density that falls like 1/r, or less, has no integral along its line."""
TRUSTED_RHAT, DOUBTFUL_RHAT = 1.01, 1.05
TRUSTED_ESS = 400
NARROW, WIDE = 0.8, 1.25
"""Spread of the draws over that of the posterior, from Stein's identity, where a method without density is believed."""
MEAN_ERRORS = 4.0
"""Standard errors of the mean score beyond which a mean is off; particles at rest have it at 0."""
RULED_OUT = 0.01
"""The kernel Stein test's p below which the draws are not the posterior's; particles at rest, evener than chance, have
it far above."""


class Verdict(NamedTuple):
    """The level, why, and what to do."""

    level: Level
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(f"{self.level.capitalize()}: {self.reason}. {self.remedy}".split())


class Evidence(NamedTuple):
    """What importance sampling from q says of q."""

    draws: int
    effective_share: float
    k_hat: float
    mean_shift: float
    """The largest move of a mean under the weights, in standard deviations."""
    log_spread_shift: float
    """The largest |log| of the ratio of standard deviations."""
    missing: float | None
    """The share of the posterior that q is seen to miss; None where nothing can be said."""
    rejected: float
    density: str
    fall: float | None = None
    """Nats by which log p is lower `FAR` times as far out along its flattest line; None if it was not measured."""


def of_density(seen: Evidence) -> Verdict:
    """For methods whose draws have a density."""
    return next(_of_density(seen))


def _of_density(seen: Evidence) -> Iterator[Verdict]:
    """Reasons to doubt, the gravest first."""
    effective = seen.effective_share * seen.draws
    if seen.density == "invalid":
        yield Verdict(
            "do not trust",
            "the generator folds, so its densities are invalid",
            "Use an injective generator such as Triangular.",
        )
    if seen.rejected > REJECTED:
        yield Verdict(
            "do not trust",
            f"log p is not finite at {seen.rejected:.1%} of the draws",
            "Guard the log-density, transform a bounded coordinate, or use dtype='float64' where numbers underflow "
            "(target.debug() shows where).",
        )
    if seen.fall is not None and seen.fall < LEAST_FALL:
        yield Verdict(
            "do not trust",
            f"{FAR:.0f} times as far out as the draws log p is lower by {max(seen.fall, 0.0):.1f} nats only, along "
            "some line: it seems to have no integral, or the draws are far from it or far too narrow",
            "Give a prior to what the data do not determine, or fix it; where everything has one, train longer.",
        )
    if seen.missing is not None and seen.missing > 0:
        yield Verdict(
            "do not trust",
            f"the draws miss about {seen.missing:.0%} of the posterior",
            "Give a start near what is missed (initial=), or run NUTS with several chains; a fit with another key "
            "that does not see it does not disprove it.",
        )
    heavy = not seen.k_hat <= RELIABLE_K_HAT
    if heavy and seen.k_hat <= HOPELESS_K_HAT and seen.effective_share >= EVEN_SHARE:
        yield Verdict(
            "no fault seen",
            f"weights are even (effective share {seen.effective_share:.2f}) but for a heavy tail "
            f"(k̂ = {seen.k_hat:.2f}): means are right, but rare events may be under-represented",
            "Train longer (steps=) if tails matter.",
        )
    few = effective < FEW_EFFECTIVE
    if heavy or (few and seen.effective_share < GOOD_SHARE):
        yield Verdict(
            "do not trust",
            f"importance weights have k̂ = {seen.k_hat:.2f} and an effective share of {seen.effective_share:.2g}: "
            "q is too far from p",
            "Train longer (steps=), reparameterise what is strongly bent (non-centred hierarchies), or run NUTS.",
        )
    if few:
        yield Verdict(
            "no fault seen",
            f"{seen.draws} draws, {effective:.0f} of them effective, are too few to say more",
            "Look at more of them: diagnose(draws=4_000, key=…).",
        )
    if seen.density == "unverified":
        yield Verdict(
            "no fault seen",
            "no fold was seen, but the generator is not injective by construction",
            "Use an injective generator such as Triangular for densities that can be believed.",
        )
    moved = seen.mean_shift > MEAN_SHIFT or seen.log_spread_shift > LOG_SPREAD_SHIFT
    if moved or seen.effective_share < GOOD_SHARE:
        yield Verdict(
            "usable with importance weights",
            f"weighting moves a mean by {seen.mean_shift:.2f} sd and a spread by "
            f"{math.expm1(seen.log_spread_shift):.0%} (effective share {seen.effective_share:.2f}, "
            f"k̂ = {seen.k_hat:.2f})",
            "Use resample(n, key=…), or train longer.",
        )
    yield Verdict(
        "good",
        f"q fits p (effective share {seen.effective_share:.2f}, k̂ = {seen.k_hat:.2f}), and weighting moves no mean by "
        f"more than {seen.mean_shift:.2g} sd, no spread by more than {math.expm1(seen.log_spread_shift):.0%}",
        ""
        if seen.missing is not None
        else "Nothing but its own draws speaks for it: a mode never visited would not be seen.",
    )


def of_chains(rhat: float, ess: float, divergences: int) -> Verdict:
    """For MCMC."""
    if not rhat <= DOUBTFUL_RHAT:
        return Verdict(
            "do not trust",
            f"R̂ = {rhat:.2f}: the chains disagree",
            "Run longer, reparameterise, or look for several modes.",
        )
    if divergences:
        return Verdict(
            "do not trust",
            f"{divergences} transitions diverged: a part of the posterior is out of the integrator's reach",
            "Reparameterise (non-centred hierarchies), or raise acceptance=.",
        )
    if rhat > TRUSTED_RHAT or ess < TRUSTED_ESS:
        return Verdict(
            "no fault seen",
            f"R̂ = {rhat:.3f} and {ess:.0f} effective draws are too few to be sure",
            "Run more draws.",
        )
    return Verdict("good", f"R̂ = {rhat:.3f}, {ess:.0f} effective draws, no divergences")


def of_particles(
    stein_mean: float | None,
    stein_spread: tuple[float, float] | None,
    p_value: float | None,
    dim: int,
) -> Verdict:
    """For methods whose draws have neither density nor chains."""
    if stein_mean is None or stein_spread is None or p_value is None:
        return Verdict(
            "do not trust",
            "the score is not finite at the particles",
            "Look at target.debug().",
        )
    narrowest, widest = stein_spread
    if not stein_mean <= MEAN_ERRORS:
        return Verdict(
            "do not trust",
            f"the mean score is {stein_mean:.0f} standard errors from 0 in some coordinate: the particles are not "
            "where the posterior is",
            "Train longer, or start closer.",
        )
    if narrowest < NARROW:
        return Verdict(
            "do not trust",
            f"the particles have {narrowest:.0%} of the spread of the posterior in some coordinate: their variance "
            f"has collapsed, as kernel methods' does in {dim} dimensions",
            "Use many more particles, or GPVI, whose spread does not depend on their number.",
        )
    if widest > WIDE:
        return Verdict(
            "do not trust",
            f"the particles are {widest:.2f} times too wide in some coordinate",
            "Train longer, or start closer.",
        )
    if p_value < RULED_OUT:
        return Verdict(
            "do not trust",
            f"the kernel Stein test has p = {p_value:.3f}: draws of the posterior would not lie like this",
            "Train longer, with more particles, or use GPVI.",
        )
    return Verdict(
        "no fault seen",
        f"spreads fit to {max(1 - narrowest, widest - 1):.0%}, kernel Stein test p = {p_value:.2f}; "
        "without a density nothing more can be checked",
        "GPVI gives draws whose densities are known.",
    )
