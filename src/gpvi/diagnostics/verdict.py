"""The verdict on a posterior: good, not explored, no fault seen, usable with importance weights, or do not trust.

All thresholds are here. The rules look for a reason to doubt, the gravest first. "Good" requires exact densities, or
chains that have mixed; that weighting moves no mean by more than a tenth of a standard deviation; that islands of
particles, which explored the posterior by themselves, found nothing else; and that the posterior does not go on in a
neck beyond the draws. Where nothing could be explored, the level says so.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from gpvi._html import badge, paragraph
from gpvi.diagnostics.agreement import Compared
from gpvi.diagnostics.importance import Importance
from gpvi.exploration.necks import Neck

Level = Literal[
    "good", "not explored", "usable with importance weights", "no fault seen", "do not trust"
]

GOOD_K_HAT, RELIABLE_K_HAT, HOPELESS_K_HAT = 0.5, 0.7, 1.0
"""Tail index of importance weights: finite variance, usable after smoothing, no finite mean (Vehtari et al. 2024)."""
GOOD_SHARE, EVEN_SHARE = 0.5, 0.95
"""Effective share at which q fits p well, and at which weights hardly move a mean even if k̂ exceeds 0.7."""
MEAN_SHIFT, LOG_SPREAD_SHIFT = 0.1, 0.2
"""Largest shift of a mean (in sd) and of a log spread under weighting with which q is called good."""
FEWEST_EFFECTIVE = 100
"""Effective draws below which nothing more is said."""
FEWEST_DRAWS = 100
"""Draws below which the tail of their weights cannot be judged."""
TOLERATED_REJECTED = 0.01
"""Share of draws at which log p may be non-finite."""
TOLERATED_MISSING = 0.02
"""Missing share of the posterior below which nothing is reported."""
FAR = 10.0
"""Log p must have fallen at points this many times as far out as the draws."""
LEAST_FALL = math.log(FAR)
"""A density that falls like 1/r, or less, has no integral along its line."""
TRUSTED_RHAT, DOUBTFUL_RHAT = 1.01, 1.05
TRUSTED_ESS = 400
LARGEST_EVIDENCE_ERROR = 0.1
"""Nats: islands whose log Z is less certain disagree."""
NARROW, WIDE = 0.8, 1.25
"""Spread of the draws over that of the posterior, by Stein's identity, between which particles are believed."""
MEAN_ERRORS = 4.0
"""Standard errors of the mean score beyond which a mean is wrong; particles at rest have 0."""
DISAGREEMENT = 5.0
"""Combined Monte-Carlo errors beyond which chains and importance weights disagree, of all means and spreads."""
SMALLER_STEPS = "Reparameterise (non-centred hierarchies), or raise acceptance=."
BETTER_NOISE = "Reparameterise (non-centred hierarchies), or train longer before refining."
"""What to do about divergences of chains by themselves, and of chains in the noise of a generator."""
HELD_LITTLE = (
    "; the heavy tail of the weights holds little, for independent islands found nothing more"
)
"""What to say of a tail that is no reason to doubt."""
NECK_SHOWN, NECK_GROWTH, NECK_ERRORS = 0.08, 0.15, 3.0
"""Growth of a standard deviation by the tail beyond the draws that is shown, and that is a reason to doubt, if it is so
many standard errors. Weighting may move a spread by as much before it counts."""
RULED_OUT = 0.01
"""Below this p-value of the kernel Stein test the draws are not the posterior's."""


UNEXPLORED = (
    "Nothing but its own draws speaks for it: a mode that they never visit would not be seen, and this posterior is "
    "too large or too expensive to be explored, or no particle arrived there. Compare fits with other keys and starts."
)
"""What to do where no second witness can be heard."""


class Verdict(NamedTuple):
    """The level, why, and what to do."""

    level: Level
    reason: str
    remedy: str = ""
    divergent: bool = False
    """Whether the reason is that transitions of chains diverged."""

    def __repr__(self) -> str:
        return f"<Verdict: {self.level}>"

    def _repr_html_(self) -> str:
        return paragraph(badge(self.level), f"{self.reason}.", self.remedy)

    def __str__(self) -> str:
        return " ".join(f"{self.level.capitalize()}: {self.reason}. {self.remedy}".split())


class ImportanceSummary(NamedTuple):
    """What importance sampling from q says of q."""

    draws: int
    effective_share: float
    k_hat: float
    mean_shift: float
    """The largest shift of a mean under the weights, in standard deviations."""
    log_spread_shift: float
    """The largest |log| of the ratio of standard deviations."""
    missing: float | None
    """The share of the posterior that q misses; None where there is nothing to compare with."""
    rejected: float
    density: str
    fall: float | None = None
    """By how many nats log p falls from the draws to `FAR` times as far out, along its flattest line, if measured."""
    outside: float = 0.0
    """The share of draws at which log p is −∞. They count as rejected, too, but nothing is unknown there."""
    coarse: str | None = None
    """What the float type cannot resolve, and the remedy, if anything."""
    explored: bool = True
    """Whether independent islands explored the posterior and arrived there."""
    met_once: float = 0.0
    """The share of the posterior in modes that exploration met once only."""
    certain_log_spread_shift: float | None = None
    """The largest |log| of that ratio as far as it exceeds chance; None where that is not known."""
    confirmed: bool = False
    """Whether islands that agree with each other miss nothing that the draws found, and find nothing else."""


def of_density(summary: ImportanceSummary) -> Verdict:
    """Judge a method whose draws have a density."""
    return next(_of_density(summary))


def _of_density(summary: ImportanceSummary) -> Iterator[Verdict]:
    """Yield reasons to doubt, the gravest first; "good" comes last."""
    effective = summary.effective_share * summary.draws
    if summary.density == "invalid":
        yield Verdict(
            "do not trust",
            "the generator folds, so its densities are invalid",
            "Use an injective generator such as Triangular.",
        )
    if summary.rejected - summary.outside > TOLERATED_REJECTED:
        yield Verdict(
            "do not trust",
            f"log p is not finite at {summary.rejected:.1%} of the draws",
            "Guard the log-density, transform a bounded coordinate, or use dtype='float64' where numbers underflow "
            "(target.debug() shows where).",
        )
    if summary.fall is not None and summary.fall < LEAST_FALL:
        if summary.coarse is not None:
            reason, _, remedy = summary.coarse.rpartition(". ")
            yield Verdict("do not trust", reason, f"{remedy}.")
        yield Verdict(
            "do not trust",
            f"{FAR:.0f} times as far out as the draws log p is lower by {max(summary.fall, 0.0):.1f} nats only, along "
            "some line: it seems to have no integral, or the draws are far from it or far too narrow",
            "Give a prior to what the data do not determine, or fix it; where everything has one, train longer.",
        )
    if summary.missing is not None and summary.missing > 0:
        yield Verdict(
            "do not trust",
            f"the draws miss about {summary.missing:.0%} of the posterior",
            "Look at posterior.modes(key=…), and run gpvi.SMC, which weighs modes that are far apart; a fit with "
            "another key that does not see what is missed does not disprove it.",
        )
    even = summary.effective_share >= EVEN_SHARE
    heavy = not summary.k_hat <= RELIABLE_K_HAT and not (even and summary.confirmed)
    if heavy and even and summary.k_hat <= HOPELESS_K_HAT:
        yield Verdict(
            "no fault seen",
            f"weights are even (effective share {summary.effective_share:.2f}) but for a heavy tail "
            f"(k̂ = {summary.k_hat:.2f}): means are right, but rare events may be under-represented",
            "Train longer (steps=) if tails matter.",
        )
    few = effective < FEWEST_EFFECTIVE
    if heavy or (few and summary.effective_share < GOOD_SHARE):
        yield Verdict(
            "do not trust",
            f"importance weights have k̂ = {summary.k_hat:.2f} and an effective share of {summary.effective_share:.2g}: "
            "q is too far from p",
            "Train longer (steps=), reparameterise what is strongly bent (non-centred hierarchies), or run NUTS.",
        )
    if few:
        yield Verdict(
            "no fault seen",
            f"{summary.draws} draws, {effective:.0f} of them effective, are too few to say more",
            "Look at more of them: diagnose(draws=4_000, key=…).",
        )
    if summary.density == "unverified":
        yield Verdict(
            "no fault seen",
            "no fold was seen, but the generator is not injective by construction",
            "Use an injective generator such as Triangular for densities that can be believed.",
        )
    if summary.outside > TOLERATED_REJECTED:
        yield Verdict(
            "usable with importance weights",
            f"log p is −∞ at {summary.outside:.1%} of the draws, which lie outside the posterior; the others have an "
            f"effective share of {summary.effective_share:.2f} (k̂ = {summary.k_hat:.2f})",
            "Use resample(n, key=…), which leaves them out, or transform the bounded coordinate.",
        )
    spread_shift, chance = _spread_shift(summary)
    moved = summary.mean_shift > MEAN_SHIFT or spread_shift > LOG_SPREAD_SHIFT
    weighted = moved or summary.effective_share < GOOD_SHARE
    explored = summary.explored and summary.met_once <= TOLERATED_MISSING
    if weighted and (explored or not summary.met_once):
        yield Verdict(
            "usable with importance weights",
            f"weighting moves a mean by {summary.mean_shift:.2f} sd and a spread by "
            f"{math.expm1(spread_shift):.0%} (effective share {summary.effective_share:.2f}, "
            f"k̂ = {summary.k_hat:.2f})",
            "Use resample(n, key=…), or train longer.",
        )
    fits = (
        f"q fits p (effective share {summary.effective_share:.2f}, k̂ = {summary.k_hat:.2f}), and weighting moves no "
        f"mean by more than {summary.mean_shift:.2g} sd, no spread by more than {math.expm1(spread_shift):.0%}{chance}"
        f"{HELD_LITTLE if summary.k_hat > RELIABLE_K_HAT else ''}"
    )
    if not explored:
        yield _unexplored(f"where it draws, {fits}", summary.met_once)
    yield Verdict("good", fits)


def _spread_shift(summary: ImportanceSummary) -> tuple[float, str]:
    """The shift of a log spread that counts, and what to add to it in words.

    A few far draws decide the spread of heavy tails. Where islands confirm the draws, chance does not speak against
    them.
    """
    if summary.confirmed and summary.certain_log_spread_shift is not None:
        return summary.certain_log_spread_shift, " beyond chance"
    return summary.log_spread_shift, ""


def _unexplored(known: str, met_once: float) -> Verdict:
    """Judge draws without a fault where nothing was explored, or modes were met once only and others by nothing."""
    if met_once <= TOLERATED_MISSING:
        return Verdict("not explored", known, UNEXPLORED)
    return Verdict(
        "not explored",
        f"{known}; but modes that exploration met once only hold {met_once:.0%} of the posterior, and about as much "
        "may be unseen",
        "Run gpvi.SMC(particles=…) with more particles, pass a start (initial=), or compare fits with other keys.",
    )


def of_chains(
    rhat: float,
    ess: float,
    divergences: int,
    unseen: float = 0.0,
    *,
    explored: bool = True,
    met_once: float = 0.0,
) -> Verdict:
    """Judge Markov chains; `unseen` is the share of the posterior in modes that exploration found and they did not."""
    if unseen:
        return Verdict(
            "do not trust",
            f"the chains miss modes that hold about {unseen:.0%} of the posterior",
            "Look at posterior.modes(key=…), and run gpvi.SMC, which weighs modes that are far apart.",
        )
    if not rhat <= DOUBTFUL_RHAT:
        return Verdict(
            "do not trust",
            f"R̂ = {rhat:.2f}: the chains disagree",
            "Run longer, reparameterise, or look for several modes.",
        )
    if divergences:
        return Verdict(
            "do not trust",
            f"{divergences} transition{'s' * (divergences > 1)} diverged: a part of the posterior is out of the "
            "integrator's reach",
            SMALLER_STEPS,
            divergent=True,
        )
    if rhat > TRUSTED_RHAT or ess < TRUSTED_ESS:
        return Verdict(
            "no fault seen",
            f"R̂ = {rhat:.3f} and {ess:.0f} effective draws are too few to be sure",
            "Run more draws.",
        )
    mixed = f"R̂ = {rhat:.3f}, {ess:.0f} effective draws, no divergences"
    if not explored or met_once > TOLERATED_MISSING:
        return _unexplored(f"where they went, the chains agree: {mixed}", met_once)
    return Verdict("good", mixed)


def shown(neck: Neck) -> bool:
    """Whether the posterior goes on beyond the draws so far that a diagnosis says so."""
    return neck.growth >= NECK_SHOWN and neck.errors >= NECK_ERRORS


def beside_neck(judged: Verdict, neck: Neck | None, name: str) -> Verdict:
    """Withdraw a verdict on draws that end where the posterior goes on; `name` is that of the neck's coordinate."""
    if neck is None or not shown(neck) or neck.growth < NECK_GROWTH:
        return judged
    return Verdict(
        "do not trust",
        f"the draws end in a neck: the posterior narrows along {name} and goes on beyond them; what they miss there "
        f"widens its sd by about {neck.growth:.0%} ({neck.errors:.0f} standard errors)",
        "Write hierarchies non-centred: longer training or longer chains do not lead there.",
    )


def of_two_witnesses(chains: Verdict, importance: Importance, found: Compared | None) -> Verdict:
    """Judge chains after a comparison with importance weights: where they differ most, or None if nothing has a weight.

    Weights that cannot be relied on do not count against the chains. Nor do uneven ones confirm them: in the noise of a
    generator that fits badly, what it misses is so far out and so narrow that chains turn back before it, with an R̂ of
    one and without a divergence. Agreement does not make up for divergences: in a neck where trajectories fail, the
    generator may fall short as well.
    """
    share = importance.effective_share
    heavy = not importance.k_hat <= RELIABLE_K_HAT
    unreliable = heavy or share * importance.draws < FEWEST_EFFECTIVE
    if chains.divergent:
        return chains._replace(remedy=BETTER_NOISE)
    if chains.level == "do not trust":
        return chains
    if found is not None and abs(found.errors) > DISAGREEMENT and not unreliable:
        return Verdict(
            "do not trust",
            f"by the chains {found.quantity} is {abs(found.shift):.2g} sd {'above' if found.shift > 0 else 'below'} "
            f"what importance weights say, {abs(found.errors):.0f} combined standard errors",
            "Run longer chains (refine(draws=…)) and train longer: one of the two misses a part of the posterior.",
        )
    if found is None or heavy or share < GOOD_SHARE:
        return Verdict(
            "no fault seen" if chains.level == "good" else chains.level,
            f"{chains.reason}; but the generator that they started from fits too badly to confirm it (effective share "
            f"{share:.2g}, k̂ = {importance.k_hat:.2f}), and in its noise chains can miss what it misses",
            chains.remedy
            or "Train longer before refining, reparameterise, or compare with gpvi.NUTS().",
        )
    agree = f"importance weights agree, everywhere within {abs(found.errors):.1f} standard errors"
    return chains._replace(reason=f"{chains.reason}; {agree}")


def of_particles(
    stein_mean: float | None,
    stein_spread: tuple[float, float] | None,
    p_value: float | None,
    dim: int,
    unseen: float = 0.0,
) -> Verdict:
    """Judge particles, whose draws have neither a density nor chains."""
    return next(_of_particles(stein_mean, stein_spread, p_value, dim, unseen))


def _of_particles(
    stein_mean: float | None,
    stein_spread: tuple[float, float] | None,
    p_value: float | None,
    dim: int,
    unseen: float,
) -> Iterator[Verdict]:
    if unseen:
        yield Verdict(
            "do not trust",
            f"the particles miss modes that hold about {unseen:.0%} of the posterior",
            "Look at posterior.modes(key=…), use more particles, or run gpvi.SMC.",
        )
    if stein_mean is None or stein_spread is None or p_value is None:
        yield Verdict(
            "do not trust",
            "the score is not finite at the particles",
            "Look at target.debug().",
        )
        return
    narrowest, widest = stein_spread
    if not stein_mean <= MEAN_ERRORS:
        yield Verdict(
            "do not trust",
            f"the mean score is {stein_mean:.0f} standard errors from 0 in some coordinate: the particles are not "
            "where the posterior is",
            "Train longer, or start closer.",
        )
    if narrowest < NARROW:
        yield Verdict(
            "do not trust",
            f"the particles have {narrowest:.0%} of the spread of the posterior in some coordinate: their variance "
            f"has collapsed, as kernel methods' does in {dim} dimensions",
            "Use many more particles, or GPVI, whose spread does not depend on their number.",
        )
    if widest > WIDE:
        yield Verdict(
            "do not trust",
            f"the particles are {widest:.2f} times too wide in some coordinate",
            "Train longer, or start closer.",
        )
    if p_value < RULED_OUT:
        yield Verdict(
            "do not trust",
            f"the kernel Stein test has p = {p_value:.3f}: draws of the posterior would not lie like this",
            "Train longer, with more particles, or use GPVI.",
        )
    yield Verdict(
        "no fault seen",
        f"spreads fit to {max(1 - narrowest, widest - 1):.0%}, kernel Stein test p = {p_value:.2f}; "
        "without a density nothing more can be checked",
        "GPVI gives draws whose densities are known.",
    )


def of_islands(
    arrived: bool,
    error: float,
    rhat: float,
    stein_mean: float | None,
    p_value: float | None,
    unseen: float = 0.0,
) -> Verdict:
    """Judge islands of particles by their agreement on log Z (its standard error) and R̂, and by the score."""
    doubt = None
    if not arrived:
        doubt = "the islands have not arrived at the posterior"
    elif unseen:
        doubt = f"the particles miss modes that hold about {unseen:.0%} of the posterior"
    elif error > LARGEST_EVIDENCE_ERROR or not rhat <= DOUBTFUL_RHAT:
        doubt = f"the islands disagree: log Z has a standard error of {error:.2f}, R̂ = {rhat:.2f}"
    elif stein_mean is None or p_value is None or stein_mean > MEAN_ERRORS or p_value < RULED_OUT:
        doubt = "by the score, draws of the posterior would not lie like these particles"
    if doubt is not None:
        return Verdict(
            "do not trust", doubt, "Use more particles, more temperatures, or a larger kept_share."
        )
    return Verdict("good", f"the islands agree: log Z to ± {error:.2g}, R̂ = {rhat:.3f}")
