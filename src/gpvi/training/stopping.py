"""When to stop and when to begin again, if the length of training is not given.

Training goes in rounds, each with a schedule that decays to zero, so that each ends at rest. After a round the draws
are weighed against the posterior: training stops where they fit, or where the ELBO no longer rises. If then they
cannot be trusted, it begins anew; of all attempts the best is kept, and all are reported, as a check on several modes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jaxtyping import PRNGKeyArray

from gpvi.diagnostics.importance import Importance
from gpvi.diagnostics.missing_mass import Outside, inside_evidence, missing
from gpvi.diagnostics.verdict import EVEN_SHARE, RELIABLE_K_HAT
from gpvi.generators import AbstractGenerator
from gpvi.methods.base import State
from gpvi.targets.density import Density

ATTEMPTS = 3
SETTLED_SHARE = 0.97
"""The effective share of importance weights at which more training has little to give."""
LEAST_GAIN = 0.005
"""Nats: a round that raises the ELBO by less, or by less than the noise of new draws, is the last."""
PACED_DIMENSIONS = 100
"""Beyond it importance weights say little, and training runs its length."""


class Assessment(NamedTuple):
    """What was seen of the draws at the end of a round."""

    seen: Importance
    missed: float | None

    @property
    def trusted(self) -> bool:
        """Whether weights are reliable, or so even that they hardly matter, and nothing is seen to be missed."""
        even = self.seen.effective_share >= EVEN_SHARE
        return (self.seen.k_hat <= RELIABLE_K_HAT or even) and not self.missed

    @property
    def settled(self) -> bool:
        """Whether the draws fit."""
        reliable = self.seen.k_hat <= RELIABLE_K_HAT and not self.missed
        return reliable and self.seen.effective_share >= SETTLED_SHARE

    @property
    def rank(self) -> tuple[bool, float]:
        """Of two attempts the one that misses nothing is better, then the one with the higher ELBO."""
        return not self.missed, self.seen.elbo

    def __str__(self) -> str:
        missed = f", misses {self.missed:.0%}" if self.missed else ""
        return (
            f"ELBO {self.seen.elbo:.4g}, effective share {self.seen.effective_share:.2f}, "
            f"k̂ {self.seen.k_hat:.2f}{missed}"
        )


class Judge:
    """Assesses the state at the end of each round of one attempt.

    Rounds are compared at the same noise. Draws that fit must do so at other noise, too: k̂ of 4,000 draws varies, and
    training would stop at the first lucky set.
    """

    def __init__(
        self, target: Density, outside: Callable[[], Sequence[Outside | None]], *, key: PRNGKeyArray
    ):
        self._target, self._outside = target, outside
        self._key, self._other_key = jax.random.split(key)
        self.last: Assessment | None = None

    def assess(self, state: State) -> Assessment:
        """The draws of this state."""
        return self._assessed(state, self._key)

    def _assessed(self, state: State, key: PRNGKeyArray) -> Assessment:
        model = state.learner.model
        assert isinstance(model, AbstractGenerator)
        seen = inside_evidence(self._target, model, key=key)
        return Assessment(seen, missing(seen, *self._outside(), dtype=self._target.dtype))

    def __call__(self, state: State, before: Assessment | None) -> tuple[str | None, Assessment]:
        """Why training should stop here, or None; and what was seen. `before` is what the round before had."""
        self.last = now = self.assess(state)
        if now.settled and self._assessed(state, self._other_key).settled:
            return f"the draws fit ({now})", now
        if before is None:
            return None, now
        gain = now.seen.elbo - before.seen.elbo
        noise = (now.seen.elbo_se**2 + before.seen.elbo_se**2) ** 0.5
        why = None if gain > max(LEAST_GAIN, noise) else f"the ELBO no longer rises ({now})"
        return why, now
