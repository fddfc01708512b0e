r"""Two witnesses of one posterior: Markov chains, and the weighted draws of the generator that they started from.

Chains err by mixing too little, weights by what q visits too rarely; where both say the same, probably neither errs.
Compared are the mean and the sd of every coordinate, clipped to the central 98 % of the chains' draws, because the
error of an unclipped moment is itself unknown under a heavy tail. The difference is counted in combined Monte-Carlo
errors: those of the chains by their effective draws, those of weights w by √Σw²(v − v̄)² for the values v averaged.

log Z follows from both by bridge sampling (Meng & Wong 1996): with ratios l = p/q and shares s of the draws,

    Z = E_q[l / (s_p l + s_q Z)] / E_p[1 / (s_p l + s_q Z)],

which is far more certain than E_q[l], since the draws of p are where l is large. Errors: Frühwirth-Schnatter 2004.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gpvi.diagnostics import mcmc
from gpvi.diagnostics.importance import Importance

CENTRAL = (0.01, 0.99)
"""The quantiles of the chains' draws at which values are clipped."""
ITERATIONS, SETTLED = 1_000, 1e-10
"""Of the fixed point of bridge sampling: at most this many, until log Z changes by less."""


class Agreement(NamedTuple):
    """What Markov chains and importance weights say of the same posterior.

    Parameters
    ----------
    quantity
        Where they differ most, in standard errors, such as "the mean of tau".
    shift
        By how much: the chains' value less that of the weights, in standard deviations.
    errors
        The same in combined standard errors.
    importance
        How reliable the weights are.
    log_evidence, log_evidence_se
        log Z by bridge sampling and its standard error; None if the generator has no inverse.
    """

    quantity: str
    shift: float
    errors: float
    importance: Importance
    log_evidence: float | None = None
    log_evidence_se: float | None = None


class Compared(NamedTuple):
    """The largest difference of moments: its name, in standard deviations, and in standard errors."""

    quantity: str
    shift: float
    errors: float


def compared(
    chains: Float[np.ndarray, "c n d"],
    x: Float[np.ndarray, "m d"],
    log_weights: Float[np.ndarray, " m"],
    names: Sequence[str],
) -> Compared:
    """Compare chains with draws x and their normalised log weights, coordinate by coordinate."""
    low, high = np.quantile(chains, CENTRAL, axis=(0, 1))
    chains, x = chains.clip(low, high), x.clip(low, high)
    mean, sd = chains.mean((0, 1)), chains.std((0, 1))
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    found = []
    for moment in ("mean", "sd"):
        values, others = chains, x
        if moment == "sd":  # (v − v̄)² / 2 sd has the mean sd / 2, and its error is that of the sd
            values, others = (chains - mean) ** 2 / (2 * sd), (x - weights @ x) ** 2 / (2 * sd)
        own, weighted = values.mean((0, 1)), weights @ others
        error = np.sqrt(weights**2 @ (others - weighted) ** 2)
        errors = (own - weighted) / np.hypot(mcmc.summary(values).mcse, error)
        errors = np.where(np.isfinite(errors), errors, 0.0)
        worst = int(np.abs(errors).argmax())
        shift = float((own - weighted)[worst] / sd[worst])
        found.append(Compared(f"the {moment} of {names[worst]}", shift, float(errors[worst])))
    return max(found, key=lambda each: abs(each.errors))


def bridged(
    at_chains: Float[np.ndarray, "c n"], at_draws: Float[np.ndarray, " m"]
) -> tuple[float, float]:
    """Return log Z and its standard error from log p − log q at chains of p and at independent draws of q."""
    offset = float(np.median(at_chains))
    p, q = np.exp((at_chains - offset).clip(-300, 300)), np.exp((at_draws - offset).clip(-300, 300))
    effective = float(mcmc.summary(at_chains[..., None]).ess_bulk[0])
    share = effective / (effective + len(q))
    z = 1.0
    for _ in range(ITERATIONS):
        previous, z = z, _ratio(p, q, share, z)
        if abs(math.log(z / previous)) < SETTLED:
            break
    of_q, of_p = q / (share * q + (1 - share) * z), 1 / (share * p + (1 - share) * z)
    variance = of_q.var() / of_q.mean() ** 2 / len(q) + of_p.var() / of_p.mean() ** 2 / effective
    return offset + math.log(z), math.sqrt(variance)


def _ratio(p: np.ndarray, q: np.ndarray, share: float, z: float) -> float:
    above, below = q / (share * q + (1 - share) * z), 1 / (share * p + (1 - share) * z)
    return float(above.mean() / below.mean())
