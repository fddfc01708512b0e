"""A mixture beside a generator that does not hold all modes: what is tried, in what order, and when it is enough.

Gaussians come first, each alone in its mode; particles at which their mixture is far too small show modes of their own,
once. If that is not enough, the Gaussians learn together. If that is not enough either, every Gaussian that was fitted
alone becomes a richer generator in its coordinates, all trained alone and side by side: with learned tails if those of
the modes or of the weights are heavy, then of the method's own kind.
"""

import dataclasses
import signal
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from threadpoolctl import threadpool_limits

from gpvi._compute.precision import product
from gpvi.diagnostics.sampling import log_densities
from gpvi.diagnostics.verdict import RELIABLE_K_HAT
from gpvi.diagnostics.witness import TOO_SMALL
from gpvi.errors import DivergenceError, TrainingWarning
from gpvi.exploration.modes import labelled
from gpvi.exploration.search import MOST_GRADIENTS, MOST_OPERATIONS, Exploration
from gpvi.generators import FullRank, Generator, Mixture, Triangular
from gpvi.generators.mixture import MixtureMap
from gpvi.methods import GPVI, Method
from gpvi.methods.base import Learner, State
from gpvi.posterior.history import Training
from gpvi.progress import NullMeter
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training.loop import AbandonedError, Watch, train
from gpvi.training.modes import gaussians
from gpvi.training.modes.particles import learns_from_particles
from gpvi.training.modes.weights import Cloud, component_log_probs, weighed
from gpvi.training.program import Plan, compile_chunk, stack
from gpvi.training.stopping import Assessment, Candidate

ENOUGH = 0.9
"""The effective share at which nothing richer is tried, if k̂ is reliable and nothing is missing."""
RICHER_STEPS = 1_000
"""Steps in which richer components are trained."""
FEWEST_DRAWS, MOST_DRAWS = 64, 256
"""Draws of each component in such a step: as many as half the gradients of an exploration allow."""
LISTED = 0.5
"""No mixture is tried if the modes that may get a component hold a smaller share of the particles."""
UNCOVERED = 0.02
"""A share of particles at which the mixture is far too small that calls for further components."""
AFAR = 6.0
"""Standard deviations at which tails are looked at; from its centre to there a Gaussian falls by 18 nats."""


class Fitted(NamedTuple):
    """A mixture in the coordinates of training, and what it took."""

    kind: Generator
    model: MixtureMap
    elbo: Float[np.ndarray, " steps"]
    """At every step the ELBO of the mixture with the best weights, if its components are apart."""
    gradients: int
    """The evaluations of log p and its gradient."""
    dropped: int
    """Components that turned out not to be needed."""

    @property
    def components(self) -> int:
        """Their number."""
        return len(self.model.log_weights)


class Rivalry(NamedTuple):
    """What all attempts at a mixture share."""

    method: GPVI
    density: Whitened
    exploration: Exploration
    assess: Callable[[State], Assessment]
    began: float

    def judged(self, fitted: Fitted) -> Candidate:
        """Have a mixture judged, and say what it is."""
        mixture = Mixture(fitted.components, fitted.kind)
        own = dataclasses.replace(self.method, generator=mixture)
        steps = len(fitted.elbo)
        optimizer = own.default_optimizer(steps)
        state = State(Learner.start(fitted.model, optimizer, self.density.dtype), None)
        found = "several modes" if self.exploration.several else "one mode that is missed in part"
        note = f"exploration found {found}, for which there are {mixture.components} components"
        if fitted.dropped:
            note += f"; {fitted.dropped} more were not needed"
        training = Training(
            steps,
            steps,
            time.perf_counter() - self.began,
            {"elbo": fitted.elbo},
            notes=(note,),
            chosen=f"{type(own).__name__} ({mixture.choices(self.density.dim)})",
            gradients=fitted.gradients,
        )
        return Candidate(self.assess(state), own, state, training)

    def affordable(self, fitted: Fitted) -> bool:
        """Whether every component may be trained on its own within the budget of an exploration."""
        gradients = fitted.components * FEWEST_DRAWS * RICHER_STEPS
        return gradients <= min(MOST_GRADIENTS, MOST_OPERATIONS / self.density.operations())


@threadpool_limits.wrap(limits=1, user_api="blas")
def mixture_for(
    method: Method,
    density: Whitened,
    exploration: Exploration | None,
    assess: Callable[[State], Assessment],
    *,
    key: PRNGKeyArray,
) -> Candidate | None:
    """Train a mixture in place of the method's generator.

    None if that may not be replaced, if one component is enough, or if the modes are too many to be listed. BLAS has
    one thread meanwhile: on matrices of this size several gain little, and on busy cores take fifty times as long.
    """
    if exploration is None:
        return None
    if not learns_from_particles(method) or not _listed(exploration):
        return None
    rivalry = Rivalry(cast(GPVI, method), density, exploration, assess, time.perf_counter())
    alone_key, together_key, richer_key = jax.random.split(key, 3)
    fitted = alone(rivalry, key=alone_key)
    if fitted is None:
        return None
    best = rivalry.judged(fitted)
    if not _enough(best):
        joint = together(rivalry, fitted, key=together_key)
        best = max(best, rivalry.judged(joint), key=lambda each: each.assessment.rank)
    kinds = _richer_kinds(rivalry, fitted, best)
    for kind, own_key in zip(kinds, jax.random.split(richer_key, len(kinds)), strict=True):
        if _enough(best) or not rivalry.affordable(fitted):
            break
        richer = enriched(rivalry, fitted, kind, key=own_key)
        if richer is not None:
            best = max(best, rivalry.judged(richer), key=lambda each: each.assessment.rank)
    return best


def _listed(exploration: Exploration) -> bool:
    """Whether the largest modes, as many as a mixture may have components, hold most of the particles."""
    counts = np.sort(np.bincount(exploration.labels.ravel()))
    return bool(counts[-gaussians.MOST_COMPONENTS :].sum() >= LISTED * counts.sum())


def _enough(candidate: Candidate) -> bool:
    found = candidate.assessment
    return found.trusted and found.importance.effective_share >= ENOUGH


def _richer_kinds(rivalry: Rivalry, fitted: Fitted, found: Candidate) -> list[Generator]:
    """Return the kinds of components to try where Gaussians do not fit."""
    own = cast(Triangular, rivalry.method.generator)
    uneven = not found.assessment.importance.k_hat <= RELIABLE_K_HAT
    if uneven or heavy_tailed(rivalry.density, fitted.model.affines):
        return [FullRank(tails=True), dataclasses.replace(own, tails=True)]
    return [own]


def heavy_tailed(density: Whitened, affines: Affine) -> bool:
    """Whether log p falls by less than half of what a Gaussian's does, from the centres to `AFAR` standard deviations.

    That is the median over components and axes: along a few of them p may meet another mode.
    """
    centres = affines.location
    scales = jnp.swapaxes(jax.vmap(lambda affine: affine.matrix)(affines), 1, 2)
    places = jnp.concatenate(
        [centres[:, None] + AFAR * scales, centres[:, None] - AFAR * scales], 1
    )
    afar = log_densities(density, places.reshape(-1, density.dim)).reshape(places.shape[:2])
    fall = log_densities(density, centres)[:, None] - afar
    return bool(jnp.nanmedian(fall) < 0.25 * AFAR**2)


def alone(rivalry: Rivalry, *, key: PRNGKeyArray) -> Fitted | None:
    """Fit a Gaussian to every mode that was found, and weigh them; None if fewer than two are needed."""
    density, exploration = rivalry.density, rivalry.exploration
    match_key, weigh_key, repair_key, again_key = jax.random.split(key, 4)
    cloud = Cloud.of(exploration, density)
    begin = gaussians.starts(cloud, exploration.labels.ravel())
    if exploration.around is not None:
        summits = gaussians.around_summits(exploration.around, density)
        begin = jax.tree.map(lambda *a: jnp.concatenate(a), begin, summits)
    found = gaussians.match(density, begin, key=match_key)
    mixture = gaussians.of_gaussians(found.affines)
    model, dropped = weighed(density, mixture, cloud, key=weigh_key)
    lost = _uncovered(cloud, model, exploration.log_evidence)
    if cloud.weights[lost].sum() > UNCOVERED:
        labels = np.full(len(lost), -1)
        labels[lost] = labelled(density, cloud.points[lost])
        more = gaussians.match(density, gaussians.starts(cloud, labels), key=repair_key)
        affines = jax.tree.map(lambda *a: jnp.concatenate(a), model.affines, more.affines)
        found = found._replace(gradients=found.gradients + more.gradients)
        mixture = gaussians.of_gaussians(affines)
        model, again = weighed(density, mixture, cloud, key=again_key)
        dropped += again
    if len(model.log_weights) < 2:
        return None
    elbo = np.logaddexp.reduce(found.elbo, axis=1)
    return Fitted(FullRank(), model, elbo, found.gradients, dropped)


def together(rivalry: Rivalry, fitted: Fitted, *, key: PRNGKeyArray) -> Fitted:
    """Let the Gaussians learn together, and weigh them again."""
    learn_key, weigh_key = jax.random.split(key)
    affines = gaussians.together(rivalry.density, fitted.model.affines, key=learn_key)
    cloud = Cloud.of(rivalry.exploration, rivalry.density)
    mixture = gaussians.of_gaussians(affines)
    model, dropped = weighed(rivalry.density, mixture, cloud, key=weigh_key)
    return fitted._replace(model=model, dropped=fitted.dropped + dropped)


def enriched(
    rivalry: Rivalry, fitted: Fitted, kind: Generator, *, key: PRNGKeyArray
) -> Fitted | None:
    """Train a generator of this kind in the coordinates of each component, side by side, and weigh them again.

    Returns None if training failed, and raises `AbandonedError` if it was interrupted.
    """
    density, count = rivalry.density, fitted.components
    init_key, run_key, weigh_key = jax.random.split(key, 3)
    each = MOST_GRADIENTS // (2 * count * RICHER_STEPS)
    draws = int(np.clip(each, FEWEST_DRAWS, MOST_DRAWS))
    method = dataclasses.replace(rivalry.method, generator=kind, particles=draws)
    optimizer = method.default_optimizer(RICHER_STEPS)
    densities = [_in_coordinates(density, fitted.model.affines, c) for c in range(count)]
    keys = jax.random.split(init_key, count)
    states = [method.init(each, optimizer, key=k) for each, k in zip(densities, keys, strict=True)]
    (beside, shared), (state, _) = stack(densities, share=True), stack(states)
    plan = Plan(method, optimizer, RICHER_STEPS, seeds=count, shared=shared)
    program = compile_chunk(plan, beside, state)
    try:
        with warnings.catch_warnings(action="ignore", category=TrainingWarning):  # of an attempt
            state, training = train(plan, program, beside, state, Watch(NullMeter()), key=run_key)
    except DivergenceError:
        return None
    if training.interrupted:
        signal.raise_signal(signal.SIGINT)
        raise AbandonedError
    if training.steps < training.planned:
        return None
    model = dataclasses.replace(fitted.model, generators=state.learner.model)
    cloud = Cloud.of(rivalry.exploration, density)
    model, dropped = weighed(density, model, cloud, key=weigh_key)
    elbo = np.logaddexp.reduce(training.history["elbo"], axis=0)
    return Fitted(
        kind,
        model,
        np.concatenate([fitted.elbo, elbo]),
        fitted.gradients + draws * count * RICHER_STEPS,
        fitted.dropped + dropped,
    )


def _in_coordinates(density: Whitened, affines: Affine, c: int) -> Whitened:
    """Return the posterior in the coordinates of component c."""
    outer, inner = density.affine, jax.tree.map(lambda leaf: leaf[c], affines)
    own = Affine(outer(inner.location), product(outer.matrix, inner.matrix))
    return Whitened(density.target, own)


def _uncovered(cloud: Cloud, mixture: MixtureMap, log_evidence: float) -> Bool[np.ndarray, " n"]:
    """Which particles lie where the mixture is far too small."""
    log_q: Array = component_log_probs(mixture, jnp.asarray(cloud.points, cloud.dtype))
    log_q = jax.nn.logsumexp(log_q + mixture.normalised, axis=1)
    return cloud.log_density - np.asarray(log_q, np.float64) - log_evidence > TOO_SMALL
