"""When training stops and when it begins again: rounds, the stopping rule, and attempts.

Where its length is left to the library, training goes in rounds. Each has a schedule that decays to zero, so that it
ends at rest. After a round the draws are compared with the posterior by importance weights, and with what exploration
found: training stops when they fit, or when the ELBO no longer rises. If they do not fit and several modes were found,
or if they still miss a part of the posterior at the end, the generator has a rival: a mixture. If the draws then cannot
be trusted, training begins anew from another key, with a generator that has been fitted to what was found. The best
attempt is kept, and all are reported, as a check on several modes. Where Markov chains follow, training also stops as
soon as the draws fit well enough for weights to be a second witness, and chains mix in the noise of the generator: the
next round would cost more than it could save them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optax
from jaxtyping import PRNGKeyArray

from gpvi._compute.noise import divided, folded
from gpvi.diagnostics.importance import (
    DEFAULT_DRAWS,
    Importance,
    draw_weighted,
    importance,
)
from gpvi.diagnostics.missing_mass import (
    InitialEvidence,
    ReferenceEvidence,
    missing_mass,
    wide_gaussian_evidence,
)
from gpvi.diagnostics.verdict import EVEN_SHARE, GOOD_SHARE, RELIABLE_K_HAT
from gpvi.diagnostics.witness import evidence_of, hear
from gpvi.errors import DivergenceError, TrainingWarning, warn
from gpvi.exploration.search import Exploration
from gpvi.generators import AbstractGenerator, Preconditioned
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.posterior.history import Training
from gpvi.targets.coordinates import Whitened
from gpvi.targets.target import Target

ATTEMPTS = 3
"""How often training may begin, the first time included."""
SETTLED_SHARE = 0.97
"""The effective share of importance weights at which more training has little to give."""
LEAST_GAIN = 0.005
"""Nats: a round that raises the ELBO by less, or by less than the noise of new draws, is the last."""
MOST_DIMENSIONS = 100
"""Beyond it importance weights say little, and training runs its full length."""


def rounds(
    target: Target,
    method: Method,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    batch_size: int | None,
    init: Any,
) -> tuple[int, ...]:
    """Return the steps of each round; none if the user chose the length, the schedule or the coordinates."""
    if not length_is_open(target, method, steps, optimizer, batch_size, init):
        return ()
    if target.dim > MOST_DIMENSIONS:
        return ()
    return method.rounds(target.dim)


def length_is_open(
    target: Target,
    method: Method,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    batch_size: int | None,
    init: Any,
) -> bool:
    """Whether the library may choose how long to train, from a start that it has searched for."""
    chosen = steps is not None or optimizer is not None or batch_size is not None
    searched = isinstance(init, str) and not target.draws_its_start
    return not chosen and searched and bool(method.rounds(target.dim))


class Outlook(NamedTuple):
    """What Markov chains from the draws promise: how they mixed, or None if badly, and the gradients of looking."""

    mixing: str | None
    gradients: int


class Assessment(NamedTuple):
    """How well the draws fit at the end of a round: their importance weights, and the mass they miss, if known.

    If chains are to follow, also whether they mix already.
    """

    importance: Importance
    missing: float | None
    outlook: Outlook | None = None

    @property
    def second_witness(self) -> bool:
        """Whether the draws fit so well that chains in the generator's noise go everywhere, and weights can confirm it.

        Where q is far too narrow, its noise is walled off from what it misses, and no chain there says so.
        """
        reliable = self.importance.k_hat <= RELIABLE_K_HAT and not self.missing
        return reliable and self.importance.effective_share >= GOOD_SHARE

    @property
    def refinable(self) -> bool:
        """Whether chains mix in the generator's noise."""
        return self.outlook is not None and self.outlook.mixing is not None

    @property
    def trusted(self) -> bool:
        """Whether nothing is missing, and weights are reliable or so even that they hardly matter."""
        even = self.importance.effective_share >= EVEN_SHARE
        return (self.importance.k_hat <= RELIABLE_K_HAT or even) and not self.missing

    @property
    def settled(self) -> bool:
        """Whether the draws fit so well that training can stop."""
        reliable = self.importance.k_hat <= RELIABLE_K_HAT and not self.missing
        return reliable and self.importance.effective_share >= SETTLED_SHARE

    @property
    def rank(self) -> tuple[bool, float]:
        """Order of attempts: one that misses nothing is better, then the one with the higher ELBO."""
        return not self.missing, self.importance.elbo

    def supersedes(self, other: "Assessment") -> bool:
        """Whether training the other further is not worth its time: this one is better, and fits or finds more."""
        return self.rank > other.rank and (self.settled or bool(other.missing))

    def __str__(self) -> str:
        missing = f", misses {self.missing:.0%}" if self.missing else ""
        return (
            f"ELBO {self.importance.elbo:.4g}, effective share {self.importance.effective_share:.2f}, "
            f"k̂ {self.importance.k_hat:.2f}{missing}"
        )


class Candidate(NamedTuple):
    """What an attempt has trained, and how well it fits."""

    assessment: Assessment
    method: Method
    state: State
    training: Training


Rival = Callable[["Judge"], Candidate | None]
"""Trains a mixture, and has it judged; None where there is nothing to gain."""


def _no_rival(judge: "Judge") -> None:
    """No mixture is tried."""


Looks = Callable[[State], Outlook | None]
"""Looks at the chains that would start from a state; None where they cannot."""


def importance_of_draws(
    density: Whitened, generator: AbstractGenerator, *, key: PRNGKeyArray
) -> Importance:
    """Summarise the importance weights of new draws."""
    return importance(draw_weighted(density, generator, DEFAULT_DRAWS, key=key).log_ratios)[0]


class Judge:
    """The stopping rule of one attempt: it assesses the state at the end of each round.

    Rounds are compared at the same noise. Draws that fit must also fit at other noise: k̂ of 4,000 draws varies, and
    training would otherwise stop at the first lucky set.
    """

    def __init__(
        self,
        density: Whitened,
        references: Callable[[], Sequence[ReferenceEvidence | None]],
        rival: Rival = _no_rival,
        explored: Callable[[], Exploration | None] = lambda: None,
        looks: Looks | None = None,
        *,
        key: PRNGKeyArray,
    ):
        self._density, self._references, self._explored = density, references, explored
        self._looks = looks
        self._train_rival = functools.cache(lambda: rival(self))
        self._key, self._other_key = divided(key, 2)
        self.last: Assessment | None = None

    def rival(self, *, ended: bool = False) -> Candidate | None:
        """Return a mixture, trained once: beside the first round if several modes were found.

        At the end of an attempt, also where there is one mode of which the draws miss a part.
        """
        found = self._explored()
        missed = ended and self.last is not None and bool(self.last.missing)
        due = found is not None and (found.several or missed)
        return self._train_rival() if due else None

    def looks_settled(self, state: State) -> bool:
        """Whether the weights of the draws are even, whatever the draws may miss."""
        summary = importance_of_draws(self._density, state.learner.model, key=self._key)
        return Assessment(summary, None).settled

    def assess(self, state: State) -> Assessment:
        """Assess the draws of this state."""
        return self._assessed(state, self._key)

    def _assessed(self, state: State, key: PRNGKeyArray) -> Assessment:
        summary = importance_of_draws(self._density, state.learner.model, key=key)
        missing = missing_mass(summary, *self._references(), dtype=self._density.dtype)
        found = self._explored()
        if found is not None:
            generator = Preconditioned(state.learner.model, self._density.affine)
            unseen = hear(found, generator, summary, self._density.dtype).unseen
            missing = max(missing or 0.0, unseen)
        return Assessment(summary, missing)

    def __call__(self, state: State, previous: Assessment | None) -> tuple[str | None, Assessment]:
        """Return the reason to stop here, or None, and the assessment. `previous` is that of the round before."""
        self.last = now = self.assess(state)
        if now.settled and self._assessed(state, self._other_key).settled:
            return f"the draws fit ({now})", now
        rival = self.rival()
        if rival is not None and rival.assessment.supersedes(now):
            return f"a mixture fits better ({rival.assessment})", now
        if self._looks is not None and now.second_witness:
            self.last = now = now._replace(outlook=self._looks(state))
        if now.outlook is not None and now.refinable:
            return f"chains in its noise mix ({now.outlook.mixing}; {now})", now
        if previous is None:
            return None, now
        gain = now.importance.elbo - previous.importance.elbo
        noise = (now.importance.elbo_se**2 + previous.importance.elbo_se**2) ** 0.5
        reason = None if gain > max(LEAST_GAIN, noise) else f"the ELBO no longer rises ({now})"
        return reason, now


def fits_at_start(
    density: Whitened,
    state: State,
    initial: InitialEvidence | None,
    explored: Callable[[], Exploration | None],
    *,
    key: PRNGKeyArray,
) -> Assessment | None:
    """Assess the Gaussian that training starts from; None unless it fits, so that there is nothing to train.

    Only if its weights are as even as training could make them are other parts of the posterior looked for.
    """
    wide_key, judge_key = divided(key, 2)
    references = _references(density, initial, explored, key=wide_key)
    judge = Judge(density, references, explored=explored, key=judge_key)
    if not judge.looks_settled(state):
        return None
    reason, assessment = judge(state, None)
    return None if reason is None else assessment


def _references(
    density: Whitened,
    initial: InitialEvidence | None,
    explored: Callable[[], Exploration | None],
    *,
    key: PRNGKeyArray,
) -> Callable[[], Sequence[ReferenceEvidence | None]]:
    """Return a function that estimates log Z without the draws, when it is first called."""
    from_start = None if initial is None else initial.reference(density)
    return functools.cache(
        lambda: (from_start, wide_gaussian_evidence(density, key=key), evidence_of(explored()))
    )


def best_attempt(
    method: Method,
    attempt: Callable[[int, Judge], tuple[State, Training]],
    density: Whitened,
    initial: InitialEvidence | None,
    explored: Callable[[], Exploration | None],
    rival: Rival = _no_rival,
    looks: Looks | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[Method, State, Training]:
    """Train until the draws can be trusted, at most `ATTEMPTS` times; keep the best attempt, and report all.

    An attempt that is cut short is the last one. If an earlier attempt was finished, the better of the two is kept. A
    rival that can be trusted ends the attempts; beside one that cannot, there is one more.
    """
    wide_key, judge_key = divided(folded(key, ATTEMPTS), 2)
    references = _references(density, initial, explored, key=wide_key)
    attempts: list[Candidate] = []
    reports: list[str] = []
    mixture: Candidate | None = None
    while len(attempts) < ATTEMPTS:
        judge = Judge(density, references, rival, explored, looks, key=judge_key)
        try:
            state, training = attempt(len(attempts), judge)
        except DivergenceError as error:
            if not attempts:
                raise
            reports.append(str(error))
            break
        finished = training.steps == training.planned
        if not finished and not attempts:
            return method, state, training
        assessment = judge.last if finished and judge.last is not None else judge.assess(state)
        attempts.append(Candidate(assessment, method, state, training))
        reports.append("; ".join([str(assessment), *training.notes]))
        enough = assessment.settled or assessment.refinable
        other = judge.rival(ended=True) if finished and not enough else None
        rival = _no_rival
        if other is not None:
            mixture = other
        if assessment.trusted or not finished:
            break
        if mixture is not None and (mixture.assessment.trusted or len(attempts) > 1):
            break
    if mixture is not None:
        attempts.append(mixture)
    best = max(attempts, key=lambda each: each.assessment.rank)
    if len(attempts) == 1 == len(reports):
        return best.method, best.state, best.training
    notes = [f"attempt {i + 1} of {len(reports)}: {each}" for i, each in enumerate(reports)]
    if mixture is not None:
        notes.append("; ".join([f"a mixture: {mixture.assessment}", *mixture.training.notes]))
    if not best.assessment.trusted:
        warn(f"no attempt can be trusted; {'; '.join(notes)}", TrainingWarning)
    interrupted = any(each.training.interrupted for each in attempts)
    training = dataclasses.replace(
        best.training,
        notes=tuple(notes),
        gradients=sum(each.training.gradients or 0 for each in attempts),
        interrupted=interrupted,
    )
    return best.method, best.state, training
