r"""One component for each mode that exploration found: a mixture that is trained beside a generator that misses some.

1. A Gaussian for each mode, all side by side, from the particles in it. With x = m + L v, v ~ N(0, I), the score at the
   draws is regressed on v: s ≈ g − H v, which is exact for a Gaussian mode. By Stein's identity g and H − I are the
   natural gradient of KL(q‖p) in mean and precision, so a step of length ρ gives the precision (1 − ρ) I + ρ H and
   moves the mean by ρ times its inverse applied to g. It is at rest where the reverse KL is, after tens of steps.
2. Weights. log Σ_c w_c q_c(x) is concave in w, and its mean over the posterior, by importance weights of draws from all
   components, is maximised by w_c ← E_p[w_c q_c / q] (EM): where components are apart, their shares of the evidence.
   Components without which that mean is as large are dropped.
3. Particles at which the mixture is far too small are modes of their own, once.
4. If Gaussians do not fit, every component becomes a richer generator in the coordinates of its Gaussian, all trained
   alone and side by side, and is weighed again: with learned tails if weights have a heavy one, then of the method's
   own kind.
"""

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from gpvi._compute.noise import normal
from gpvi._compute.precision import product
from gpvi.diagnostics.importance import smoothed_log_weights
from gpvi.diagnostics.sampling import log_densities
from gpvi.diagnostics.verdict import RELIABLE_K_HAT
from gpvi.diagnostics.witness import TOO_SMALL
from gpvi.exploration.modes import labelled
from gpvi.exploration.search import MOST_GRADIENTS, MOST_OPERATIONS, Exploration
from gpvi.generators import FullRank, Generator, Mixture, Triangular
from gpvi.generators.mixture import MixtureMap
from gpvi.generators.noise import log_standard_normal
from gpvi.methods import GPVI, Method
from gpvi.methods.base import Learner, State, built
from gpvi.posterior.history import Training
from gpvi.progress import NullMeter
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import at_once, evaluate
from gpvi.training.loop import Watch, train
from gpvi.training.program import Plan, compile_chunk, stacked
from gpvi.training.stopping import Assessment, Candidate

MOST_COMPONENTS = 64
"""Only so many modes, the largest, get a component."""
MATCHING_STEPS = 40
"""Steps of the Gaussians: as many at half length as at lengths 1/2, 1/3, 1/4, …, which average over the noise."""
FEWEST_DRAWS, DRAWS_PER_DIMENSION = 64, 4
"""Draws of each Gaussian in a step; the regression needs more than d."""
LARGEST_CHANGE = 4.0
"""A step changes no precision by more than this factor, nor the mean by more than twice the radius √d."""
WEIGHED_DRAWS, FEWEST_WEIGHED = 20_000, 200
"""Draws of all components, and of each, by which they are weighed."""
WEIGHED_ON_TRIAL = 4_000
"""Of these draws, by which components are left out on trial."""
EM_STEPS, FEW_EM_STEPS = 300, 20
"""Steps of EM for the weights, and for those of the others where a component is left out on trial."""
EM_TOLERANCE = 1e-6
LEAST_WORTH = 0.002
"""Nats: a component without which the mean of log q over the posterior is lower by less is dropped."""
RICHER_STEPS = 1_000
"""Steps in which the components are trained if Gaussians do not fit."""
FEWEST_TRAINED, MOST_TRAINED = 64, 256
"""Draws of each component in such a step: as many as half the gradients of an exploration allow."""
SMALLEST_VARIANCE = 1e-12
"""In coordinates in which the posterior has scale one."""
UNCOVERED = 0.02
"""A share of particles at which the mixture is far too small that calls for further components."""


def mixture_for(
    method: Method,
    density: Whitened,
    exploration: Exploration | None,
    assess: Callable[[State], Assessment],
    *,
    key: PRNGKeyArray,
) -> Candidate | None:
    """Train a mixture for a posterior in which several modes were found; None for any other, and if it fails."""
    if exploration is None or not exploration.labels.any() or not _may_become_mixture(method):
        return None
    began = time.perf_counter()
    gaussian_key, flexible_key = jax.random.split(key)
    fitted = gaussian_mixture(density, exploration, key=gaussian_key)
    if fitted is None:
        return None
    best = _candidate(method, fitted, density, assess, began)
    heavy = best.assessment.importance.k_hat > RELIABLE_K_HAT
    kinds = [FullRank(tails=True)] if heavy else []
    kinds.append(dataclasses.replace(method.generator, tails=heavy or method.generator.tails))
    for kind, own_key in zip(kinds, jax.random.split(flexible_key, len(kinds)), strict=True):
        if best.assessment.settled or not _affordable(density, fitted):
            break
        richer = enriched(method, density, fitted, kind, exploration, key=own_key)
        if richer is not None:
            other = _candidate(method, richer, density, assess, began)
            best = max(best, other, key=lambda each: each.assessment.rank)
    return best


def _may_become_mixture(method: Method) -> TypeGuard[GPVI]:
    """Whether the method's generator may be replaced by several: it trains one that can be inverted, by Eq. 3."""
    return (
        isinstance(method, GPVI)
        and isinstance(method.generator, Triangular)
        and method.gradient == "pathwise"
    )


def _candidate(
    method: GPVI,
    fitted: "Fitted",
    density: Whitened,
    assess: Callable[[State], Assessment],
    began: float,
) -> Candidate:
    """Have a mixture judged, and say what it is."""
    own = dataclasses.replace(method, generator=fitted.generator)
    steps = len(fitted.elbo)
    learner = Learner.start(fitted.model, own.default_optimizer(steps), density.dtype)
    state = State(learner, None)
    count = fitted.generator.components
    note = f"exploration found several modes: {count} components"
    if fitted.dropped:
        note += f"; {fitted.dropped} more were not needed"
    training = Training(
        steps,
        steps,
        time.perf_counter() - began,
        {"elbo": fitted.elbo, "gradients": fitted.gradients},
        notes=(note,),
        chosen=f"{type(own).__name__} ({fitted.generator.choices(density.dim)})",
    )
    return Candidate(assess(state), own, state, training)


class Gaussians(NamedTuple):
    """A Gaussian for every mode, as coordinates x = m + L v: stacked."""

    affines: Affine
    elbo: Float[np.ndarray, "steps k"]
    gradients: int


class Fitted(NamedTuple):
    """A mixture in the coordinates of training, and what it took."""

    generator: Mixture
    model: MixtureMap
    elbo: Float[np.ndarray, " steps"]
    """At every step the ELBO of the mixture with the best weights, if its components are apart."""
    gradients: Float[np.ndarray, " steps"]
    """The evaluations of log p and its gradient up to every step."""
    dropped: int
    """Components that turned out not to be needed."""


class Cloud(NamedTuple):
    """The islands' particles in the coordinates of training, with their weights in averages over the posterior."""

    points: Float[np.ndarray, "n d"]
    weights: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, exploration: Exploration, density: Whitened) -> "Cloud":
        """Take them from an exploration."""
        flat = exploration.points.reshape(-1, density.dim)
        u = jax.vmap(density.affine.inverse)(jnp.asarray(flat, density.dtype))
        each = exploration.labels.shape[1]
        weights = np.repeat(exploration.island_weights, each) / each
        log_density = exploration.log_density.ravel() + float(density.affine.log_det())
        return cls(np.asarray(u, np.float64), weights, log_density)


def gaussian_mixture(
    density: Whitened, exploration: Exploration, *, key: PRNGKeyArray
) -> Fitted | None:
    """Fit a Gaussian to every mode that was found, and weigh them; None if fewer than two are needed."""
    match_key, weigh_key, repair_key, again_key = jax.random.split(key, 4)
    cloud = Cloud.of(exploration, density)
    found = match(density, starts(cloud, exploration.labels.ravel()), key=match_key)
    model, dropped = weighed(density, of_gaussians(found.affines), cloud, key=weigh_key)
    lost = _uncovered(cloud, model, exploration.log_evidence)
    if cloud.weights[lost].sum() > UNCOVERED:
        labels = np.full(len(lost), -1)
        labels[lost] = labelled(density, cloud.points[lost])
        more = match(density, starts(cloud, labels), key=repair_key)
        affines = jax.tree.map(lambda *a: jnp.concatenate(a), model.affines, more.affines)
        found = found._replace(gradients=found.gradients + more.gradients)
        model, again = weighed(density, of_gaussians(affines), cloud, key=again_key)
        dropped += again
    count = len(model.log_weights)
    if count < 2:
        return None
    elbo = np.logaddexp.reduce(found.elbo, axis=1)
    gradients = np.linspace(0, found.gradients, len(elbo) + 1)[1:]
    return Fitted(Mixture(count, FullRank()), model, elbo, gradients, dropped)


def _affordable(density: Whitened, fitted: Fitted) -> bool:
    """Whether every component may be trained on its own within the budget of an exploration."""
    gradients = fitted.generator.components * FEWEST_TRAINED * RICHER_STEPS
    most = min(MOST_GRADIENTS, MOST_OPERATIONS / density.operations())
    return gradients <= most


def enriched(
    method: GPVI,
    density: Whitened,
    fitted: Fitted,
    kind: Generator,
    exploration: Exploration,
    *,
    key: PRNGKeyArray,
) -> Fitted | None:
    """Train a generator of this kind in the coordinates of each component, side by side, and weigh them again."""
    init_key, run_key, weigh_key = jax.random.split(key, 3)
    count = fitted.generator.components
    each = MOST_GRADIENTS // (2 * count * RICHER_STEPS)
    draws = int(np.clip(each, FEWEST_TRAINED, MOST_TRAINED))
    own = dataclasses.replace(method, generator=kind, particles=draws)
    optimizer = own.default_optimizer(RICHER_STEPS)
    densities = [_in_coordinates(density, fitted.model.affines, c) for c in range(count)]
    keys = jax.random.split(init_key, count)
    states = [own.init(each, optimizer, key=k) for each, k in zip(densities, keys, strict=True)]
    (together, shared), (state, _) = stacked(densities, share=True), stacked(states)
    plan = Plan(own, optimizer, RICHER_STEPS, seeds=count, shared=shared)
    program = compile_chunk(plan, together, state)
    state, training = train(plan, program, together, state, Watch(NullMeter()), key=run_key)
    if training.interrupted:
        signal.raise_signal(signal.SIGINT)
    if training.steps < training.planned:
        return None
    model = dataclasses.replace(fitted.model, generators=state.learner.model)
    model, dropped = weighed(density, model, Cloud.of(exploration, density), key=weigh_key)
    if len(model.log_weights) < 2:
        return None
    elbo = np.logaddexp.reduce(training.history["elbo"], axis=0)
    gradients = fitted.gradients[-1] + draws * count * np.arange(1.0, RICHER_STEPS + 1)
    return Fitted(
        Mixture(len(model.log_weights), kind),
        model,
        np.concatenate([fitted.elbo, elbo]),
        np.concatenate([fitted.gradients, gradients]),
        fitted.dropped + dropped,
    )


def _in_coordinates(density: Whitened, affines: Affine, c: int) -> Whitened:
    """Return the posterior in the coordinates of component c."""
    outer = density.affine
    scale = outer.scale if outer.scale.ndim == 2 else jnp.diag(outer.scale)
    own = Affine(outer(affines.location[c]), product(scale, affines.scale[c]))
    return Whitened(density.target, own)


def starts(cloud: Cloud, labels: Int[np.ndarray, " n"]) -> Affine:
    """Return mean and spread of the particles with each label, the heaviest first; −1 is none.

    Where particles are few for the dimension, the covariance is shrunk towards its diagonal.
    """
    shares = np.bincount(labels[labels >= 0], cloud.weights[labels >= 0])
    dim = cloud.points.shape[1]
    locations, scales = [], []
    for label in np.argsort(-shares, kind="stable")[:MOST_COMPONENTS]:
        own = cloud.points[labels == label]
        weights = cloud.weights[labels == label] / shares[label]
        mean = weights @ own
        covariance = (own - mean).T @ ((own - mean) * weights[:, None])
        variance = np.maximum(np.diag(covariance), SMALLEST_VARIANCE)
        kept = len(own) / (len(own) + dim)
        covariance = kept * covariance + (1 - kept) * np.diag(variance)
        locations.append(mean)
        scales.append(np.linalg.cholesky(covariance + 1e-3 * np.diag(variance)))
    return jax.vmap(Affine)(np.stack(locations), np.stack(scales))


def match(density: Whitened, begin: Affine, *, key: PRNGKeyArray) -> Gaussians:
    """Fit the Gaussians from where they begin, all side by side."""
    affines = jax.tree.map(lambda a: jnp.asarray(a, density.dtype), begin)
    draws = _even(max(FEWEST_DRAWS, DRAWS_PER_DIMENSION * (density.dim + 1)))
    affines, elbo = _match(density, affines, draws, key)
    count = len(affines.location)
    return Gaussians(affines, np.asarray(elbo, np.float64), MATCHING_STEPS * count * draws)


@eqx.filter_jit
def _match(
    density: Whitened, affines: Affine, draws: int, key: PRNGKeyArray
) -> tuple[Affine, Float[Array, "steps k"]]:
    late = jnp.maximum(jnp.arange(MATCHING_STEPS) - MATCHING_STEPS // 2, 0)
    together = max(1, at_once(density.dim) // draws)

    def step(affines: Affine, at: tuple[Scalar, PRNGKeyArray]) -> tuple[Affine, Array]:
        length, key = at
        keys = jax.random.split(key, len(affines.location))

        def one(each: tuple[Affine, PRNGKeyArray]) -> tuple[Affine, Scalar]:
            own, key = each
            return _matched(density, own, draws, length, key)

        return jax.lax.map(one, (affines, keys), batch_size=together)

    lengths = 1 / (2.0 + late).astype(density.dtype)
    return jax.lax.scan(step, affines, (lengths, jax.random.split(key, MATCHING_STEPS)))


def _matched(
    density: Whitened, affine: Affine, draws: int, length: Scalar, key: PRNGKeyArray
) -> tuple[Affine, Scalar]:
    """Take one step of natural gradient; return the ELBO, too. Draws come in pairs ±v."""
    half = normal(key, (draws // 2, density.dim), density.dtype)
    v = jnp.concatenate([half, -half])
    at = evaluate(density, jax.vmap(affine)(v))
    slope, curvature = _regressed(v, product(at.score, affine.scale), at.finite)
    curvatures, axes = jnp.linalg.eigh(curvature)
    precisions = 1 + length * (jnp.clip(curvatures, 1 / LARGEST_CHANGE, LARGEST_CHANGE) - 1)
    move = product(axes, product(axes.T, length * slope) / precisions)
    reach = 2 * math.sqrt(density.dim)
    move = move * jnp.minimum(1.0, reach / (jnp.linalg.norm(move) + jnp.finfo(v.dtype).tiny))
    factor = jnp.linalg.cholesky(product(axes / precisions, axes.T))
    log_q = jax.vmap(log_standard_normal)(v) - affine.log_det()
    elbo = jnp.where(at.finite, at.log_density - log_q, 0.0).sum() / at.finite.sum()
    return Affine(affine(move), jnp.tril(product(affine.scale, factor))), elbo


def _regressed(
    v: Float[Array, "n d"], score: Float[Array, "n d"], finite: Bool[Array, " n"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return g and the symmetric H of the least-squares fit s ≈ g − H v to the draws with a finite score."""
    n, dim = v.shape
    design = jnp.concatenate([jnp.ones((n, 1), v.dtype), v], 1) * finite[:, None]
    gram = product(design.T, design) + 1e-3 * jnp.eye(dim + 1, dtype=v.dtype)
    fitted = jnp.linalg.solve(gram, product(design.T, score))
    return fitted[0], -0.5 * (fitted[1:] + fitted[1:].T)


def of_gaussians(affines: Affine) -> MixtureMap:
    """Return the mixture of these Gaussians, with equal weights."""
    count, dim = affines.location.shape
    dtype = affines.location.dtype
    mixture = built(Mixture(count, FullRank()), dim, dtype, key=jax.random.key(0))
    assert isinstance(mixture, MixtureMap)
    return dataclasses.replace(mixture, affines=affines)


def weighed(
    density: Whitened, mixture: MixtureMap, cloud: Cloud, *, key: PRNGKeyArray
) -> tuple[MixtureMap, int]:
    """Return the mixture with the best weights, without the components that are not needed, and their number.

    The average over the posterior is over weighted draws of all components; if their weights cannot be relied on, over
    the islands' particles.
    """
    count = len(mixture.log_weights)
    x, log_q = _draws_of_all(mixture, max(FEWEST_WEIGHED, WEIGHED_DRAWS // count), key)
    log_proposal = logsumexp(log_q, axis=1) - math.log(count)
    log_weights, k_hat = smoothed_log_weights(log_densities(density, x) - log_proposal)
    if k_hat <= RELIABLE_K_HAT:
        average, ratios = np.exp(np.asarray(log_weights, np.float64)), log_q - log_proposal[:, None]
    else:
        log_q = _log_q(mixture, jnp.asarray(cloud.points, density.dtype))
        average, ratios = cloud.weights, log_q - log_q.max(1, keepdims=True)
    ratios = np.exp(np.asarray(ratios, np.float64))
    kept, weights = needed(ratios, average / average.sum())
    arrays, static = eqx.partition(mixture, eqx.is_array)
    fewer = eqx.combine(jax.tree.map(lambda leaf: leaf[kept], arrays), static)
    log_weights = jnp.asarray(np.log(weights), mixture.log_weights.dtype)
    return dataclasses.replace(fewer, log_weights=log_weights), count - len(kept)


def needed(
    ratios: Float[np.ndarray, "n k"], average: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return which components are needed, and their weights; `ratios` are the q_c(x) up to a factor for each x."""
    kept = np.arange(ratios.shape[1])
    weights = heaviest(ratios, average)
    some = slice(None, None, max(1, len(average) // WEIGHED_ON_TRIAL))
    ratios, average = ratios[some], average[some] / average[some].sum()
    for component in np.argsort(weights, kind="stable"):
        if len(kept) == 1:
            break
        others = kept != component
        fewer = heaviest(ratios[:, kept[others]], average, weights[others], FEW_EM_STEPS)
        before, after = ratios[:, kept] @ weights, ratios[:, kept[others]] @ fewer
        with np.errstate(divide="ignore"):
            worth = average @ np.maximum(np.log(before) - np.log(after), -1e6)
        if worth < LEAST_WORTH:
            kept, weights = kept[others], fewer
    return kept, weights


def heaviest(
    ratios: Float[np.ndarray, "n k"],
    average: Float[np.ndarray, " n"],
    begin: Float[np.ndarray, " k"] | None = None,
    steps: int = EM_STEPS,
) -> Float[np.ndarray, " k"]:
    """Maximise the mean of log Σ_c w_c q_c over the posterior by EM, which never lowers it."""
    weights = np.ones(ratios.shape[1]) if begin is None else np.maximum(begin, 1e-12)
    weights = weights / weights.sum()
    for _ in range(steps):
        total = np.maximum(ratios @ weights, np.finfo(float).tiny)
        after = weights * ((average / total) @ ratios)
        after = np.maximum(after / after.sum(), 1e-12)
        settled = np.abs(after - weights).max() < EM_TOLERANCE
        weights = after
        if settled:
            break
    return weights / weights.sum()


@eqx.filter_jit
def _draws_of_all(
    mixture: MixtureMap, draws: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, "n k"]]:
    """Return as many draws of each component, and log q_c of all components there."""
    count, dim = mixture.affines.location.shape
    z = normal(key, (count * draws, dim), mixture.log_weights.dtype).reshape(count, draws, dim)
    x = mixture.each(lambda component, z: jax.vmap(component)(z), z).reshape(-1, dim)
    return x, _log_q(mixture, x)


@eqx.filter_jit
def _log_q(mixture: MixtureMap, x: Float[Array, "n d"]) -> Float[Array, "n k"]:
    return jax.lax.map(mixture.component_log_probs, x, batch_size=at_once(x.shape[1]))


def _uncovered(cloud: Cloud, mixture: MixtureMap, log_evidence: float) -> Bool[np.ndarray, " n"]:
    """Which particles lie where the mixture is far too small."""
    log_q = _log_q(mixture, jnp.asarray(cloud.points, mixture.log_weights.dtype))
    log_q = np.asarray(logsumexp(log_q + mixture.normalised, axis=1), np.float64)
    return cloud.log_density - log_q - log_evidence > TOO_SMALL


def _even(number: int) -> int:
    return number + number % 2
