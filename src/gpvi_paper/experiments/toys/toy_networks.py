r"""Small networks with a reference posterior from long Markov chains, and the distance of predictions from it.

The posterior of a network has a mode for each order of its hidden units, and more; which of them a method finds does
not matter. So the predictions of the networks are compared, over a grid of inputs. With p̄ the mean over a posterior:

    classes      TV = mean over the grid of ½ Σ_c |p̄_q(c | x) − p̄_ref(c | x)|
    regression   W₁ = mean over the grid of ∫₀¹ |F_q^{-1}(u) − F_ref^{-1}(u)| du / sd_ref(x), of the network's output.

The reference is a long run of Hamiltonian Monte Carlo in many chains that start at the network's own initialisation.
The floor is the distance of the same number of networks from one half of the chains to the other half.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from gpvi import bnn, metrics, specs
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.priors import Prior, StandardNormal
from gpvi.diagnostics.folding import fold_fraction
from gpvi.diagnostics.importance import importance
from gpvi.directions import KSDDirection
from gpvi.errors import quietly
from gpvi.generators import AbstractGenerator, Residual
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.methods import (
    GFSF,
    GPVI,
    HMC,
    KSD,
    NUTS,
    SVGD,
    AmortizedGFSF,
    AmortizedKSD,
    AmortizedSVGD,
    DeepEnsemble,
    MeanFieldVI,
    Method,
    Pathfinder,
)
from gpvi.methods.carriers import Chains, Particles
from gpvi.posterior.posterior import Posterior, load
from gpvi.progress import Meter
from gpvi.solvers.helper import Helper
from gpvi.targets.density import at_once
from gpvi.targets.target import Target
from gpvi.training.fit import (
    fit,
    fit_seeds,
)
from gpvi_paper.experiments.base import FOLD, SECONDS, Labelled, Metric, Recipe
from gpvi_paper.experiments.unfinished import next_place

PARTICLES = 100
"""Draws in each step, and members of an ensemble."""
WIDE_DRAWS = 256
"""Draws per step of GPVI's exact gradients: on four classes 256 instead of 100 gain 3 nats of ELBO."""
GENERATORS = (5,)
"""How many a mixture has."""
FRESH = 2_000
"""New networks of a generator for its predictions."""
DENSITY_DRAWS = 4_000
"""Draws for the ELBO."""
LEVELS = (np.arange(100) + 0.5) / 100
"""Where quantile functions are compared."""
FLOOR_REPLICATES = 4
REFERENCE_SEED = 0
PAPER_LEARNING_RATE = 1e-3
DENSITY_METRICS = (
    Metric(
        "elbo",
        "ELBO",
        "the evidence lower bound at temperature 1, in nats",
        void_if="fold",
        better="higher",
    ),
    Metric(
        "k_hat",
        "k̂",
        "Pareto shape of the importance weights: usable below 0.7",
        void_if="fold",
        better="lower",
    ),
    FOLD,
    SECONDS,
)
"""Metrics of every network's posterior."""
_LONG = HMC(chains=128, leapfrogs=32, warmup=300, draws=60, thin=10, acceptance=0.8)
REFERENCES = {
    "paper": _LONG,
    "best": _LONG,
    "demo": HMC(chains=64, leapfrogs=32, warmup=200, draws=40, thin=10, acceptance=0.8),
    "smoke": HMC(chains=8, leapfrogs=8, warmup=0, draws=10, step_size=0.01),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A network, its data, new data from where they came from, and the inputs at which predictions are compared."""

    network: Network
    likelihood: Likelihood
    inputs: Float[np.ndarray, "n f"]
    outputs: Float[np.ndarray, " n"] | Int[np.ndarray, " n"]
    test_inputs: Float[np.ndarray, "m f"]
    test_outputs: Float[np.ndarray, " m"] | Int[np.ndarray, " m"]
    grid: Float[np.ndarray, "g f"]

    def target(self, prior: Prior | None = None, temperature: float = 1.0) -> Target:
        """The posterior of the weights, with prior N(0, 1) by default."""
        return bnn.target(
            self.network,
            self.likelihood,
            StandardNormal() if prior is None else prior,
            self.inputs,
            self.outputs,
            temperature=temperature,
        )

    def view(
        self, posterior: Posterior | Sequence[Posterior], seed: int, draws: int | None = None
    ) -> "View":
        """Predictions of a posterior, or an even mixture of several, from `FRESH` new networks or all held ones."""
        predictive = Predictive(posterior, self.network, self.likelihood)
        key, points = jax.random.key(seed), len(self.grid)
        inputs = np.concatenate([self.grid, self.test_inputs])
        if draws is None and not isinstance(predictive.posterior.model, Particles):
            draws = FRESH
        if self.likelihood.classifies:
            found = predictive.predict(inputs, key=key, draws=draws)
            mean = np.asarray(found.mean, np.float64)
            sd = np.sqrt(np.asarray(found.epistemic, np.float64)).mean(1)
            return View(mean[:points], sd[:points], self._loss_of_classes(mean[points:]))
        values = np.asarray(predictive.outputs(inputs, draws, key=key), np.float64)[..., 0]
        on_grid = values[:, :points]
        return View(
            on_grid.mean(0)[:, None],
            on_grid.std(0),
            self._loss_of_values(values[:, points:]),
            np.quantile(on_grid, LEVELS, axis=0),
        )

    def _loss_of_classes(self, probabilities: Float[np.ndarray, "m c"]) -> dict[str, float]:
        own = probabilities[np.arange(len(probabilities)), self.test_outputs]
        right = probabilities.argmax(1) == self.test_outputs
        nll = -np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean()
        return {"nll": float(nll), "accuracy": float(right.mean())}

    def _loss_of_values(self, values: Float[np.ndarray, "n m"]) -> dict[str, float]:
        assert isinstance(self.likelihood, bnn.Gaussian) and self.likelihood.noise is not None
        sd = np.full((1, 1), self.likelihood.noise)
        return {"nll": float(metrics.gaussian_mixture_nll(values, sd, self.test_outputs))}


def size(widths: Sequence[int]) -> int:
    """Σ (a + 1) b, the weights and biases of dense layers of these widths."""
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))


class View(NamedTuple):
    """Predictions on the grid, and how good they are on new data."""

    mean: Float[np.ndarray, "g c"]
    """Of the outputs, or the probabilities of the classes."""
    sd: Float[np.ndarray, " g"]
    """Between networks; for classes the sd of each probability, averaged over the classes."""
    loss: dict[str, float]
    """On the new data: the negative log-likelihood of the mixture, and for classes the accuracy."""
    quantiles: Float[np.ndarray, "l g"] | None = None
    """Of the output of a network, for regression."""


class Reference(NamedTuple):
    """Long chains, what they predict, and one half of them to compare with the other."""

    chains: Posterior
    view: View
    first: Posterior
    second: View


def reference(
    problem: Problem, method: HMC, progress: bool | Meter, directory: Path | None = None
) -> Reference:
    """Chains on the posterior at T = 1: those kept in the directory, or new ones, which are then kept there."""
    chains = _kept(problem, method, directory)
    if chains is None:
        with quietly():
            chains = fit(
                problem.target(),
                method,
                key=jax.random.key(REFERENCE_SEED),
                progress=Labelled(progress, "reference"),
            )
        if chains.training.steps < chains.training.planned:
            raise KeyboardInterrupt
        if directory is not None:
            chains.save(directory / _name(problem, method))
    first, second = halves(chains)
    view = problem.view(chains, REFERENCE_SEED)
    return Reference(chains, view, first, problem.view(second, REFERENCE_SEED))


def halves(chains: Posterior, seed: int | None = None) -> tuple[Posterior, Posterior]:
    """The first half of the chains and the others; in random order if a seed is given."""
    assert isinstance(chains.model, Chains)
    by_chain = np.asarray(chains.model.by_chain(chains.model.drawn))
    if seed is not None:
        by_chain = np.random.default_rng(seed).permutation(by_chain)
    half = len(by_chain) // 2
    first, second = (
        Posterior(
            chains.method,
            Particles(jax.numpy.asarray(part.reshape(-1, chains.dim))),
            chains.start,
            chains.names,
            chains.training,
            chains.target,
        )
        for part in (by_chain[:half], by_chain[half:])
    )
    return first, second


def _name(problem: Problem, method: HMC) -> str:
    """A hash of what the chains depend on but their draws do not show: settings, seed and data."""
    told = (specs.to_json(method), REFERENCE_SEED, problem.network.names)
    found = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for array in (problem.inputs, problem.outputs):
        found.update(np.ascontiguousarray(array).tobytes())
    return f"chains-{found.hexdigest()[:16]}"


def _kept(problem: Problem, method: HMC, directory: Path | None) -> Posterior | None:
    """Stored chains of the same name, if log p at their last draws shows that the posterior is the same."""
    if directory is None or not (directory / _name(problem, method)).exists():
        return None
    target = problem.target()
    found = load(directory / _name(problem, method)).with_target(target)
    last = jax.vmap(target.log_density)(found.particles[-method.chains :])
    known = found.training.history["log_density"][-1]
    return found if np.isclose(float(last.mean()), known, rtol=1e-3) else None


def total_variation(p: Float[np.ndarray, "g c"], q: Float[np.ndarray, "g c"]) -> float:
    """½ Σ_c |p − q|, the mean over the grid."""
    return float(0.5 * np.abs(p - q).sum(1).mean())


def wasserstein(
    p: Float[np.ndarray, "l g"], q: Float[np.ndarray, "l g"], scale: Float[np.ndarray, " g"]
) -> float:
    """∫ |F_p^{-1} − F_q^{-1}| / scale from quantiles at even levels, the mean over the grid."""
    return float((np.abs(p - q).mean(0) / scale).mean())


def correlation(a: Float[np.ndarray, " g"], b: Float[np.ndarray, " g"]) -> float:
    """Pearson's; 0 where one of them is constant."""
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def distance(view: View, known: View) -> float:
    """TV for classes, W₁ for a regression."""
    if view.quantiles is None or known.quantiles is None:
        return total_variation(view.mean, known.mean)
    return wasserstein(view.quantiles, known.quantiles, known.sd)


def floor(problem: Problem, known: Reference, networks: int) -> float:
    """The distance of that many networks from one half of the chains to the other half."""
    there = len(known.first.particles)
    count = min(networks, there)
    replicates = 1 if count == there else FLOOR_REPLICATES
    views = (problem.view(known.first, seed, count) for seed in range(replicates))
    return float(np.mean([distance(view, known.second) for view in views]))


def networks(posterior: Posterior) -> int:
    """How many networks a posterior predicts with."""
    if isinstance(posterior.model, Particles):
        return len(posterior.model.drawn)
    return FRESH


@dataclasses.dataclass(frozen=True)
class NetworkRecipe(Recipe):
    """A recipe with the posterior it is for: the prior of the weights, and the temperature."""

    prior: Prior = StandardNormal()
    temperature: float = 1.0
    members: int = 1
    """Fits from different starts, which predict as their even mixture."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        posterior = {"prior": specs.to_json(self.prior), "temperature": self.temperature}
        several = {"members": self.members} if self.members > 1 else {}
        return super().to_json() | posterior | several


def trained(
    problem: Problem, recipe: NetworkRecipe, seeds: Sequence[int], progress: Meter
) -> list[tuple[Posterior, ...]]:
    """The members of every seed, all side by side on the same data."""
    target = problem.target(recipe.prior, recipe.temperature)
    with quietly():
        found = fit_seeds(
            [target] * (len(seeds) * recipe.members),
            recipe.method,
            key=jax.random.key(seeds[0]),
            steps=recipe.steps,
            optimizer=recipe.optimizer(),
            progress=progress,
            checkpoint=next_place(),
        )
    starts = range(0, len(found), recipe.members)
    return [tuple(found[start : start + recipe.members]) for start in starts]


class Row(NamedTuple):
    """The posteriors of one seed, which predict as their mixture, and what they are compared with."""

    seed: int
    posteriors: tuple[Posterior, ...]
    known: View


def rows(
    problem: Problem,
    recipe: NetworkRecipe,
    long: Reference,
    seeds: Sequence[int],
    progress: Meter,
) -> Iterator[Row]:
    """Every seed beside the reference; of the reference itself, a random half of its chains beside the other half."""
    if recipe.method == long.chains.method:
        for seed in seeds:
            first, second = halves(long.chains, seed)
            yield Row(seed, (first,), problem.view(second, seed))
        return
    for seed, members in zip(seeds, trained(problem, recipe, seeds, progress), strict=True):
        yield Row(seed, members, long.view)


def with_density(posteriors: tuple[Posterior, ...], seed: int) -> dict[str, float]:
    """ELBO, k̂ and fold fraction if a method has a density; only for a single posterior."""
    posterior = posteriors[0]
    if len(posteriors) > 1 or not posterior.method.density:
        return {}
    assert posterior.target is not None
    log_ratios, signs = _log_ratios(
        posterior.generator, posterior.target, DENSITY_DRAWS, jax.random.key(seed)
    )
    found, _ = importance(log_ratios)
    return {"elbo": found.elbo, "k_hat": found.k_hat, "fold": float(fold_fraction(signs))}


@eqx.filter_jit
def _log_ratios(
    generator: AbstractGenerator, target: Target, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """log p − log q at draws of q, and the signs of det J."""

    def one(z: Float[Array, " d"]) -> tuple[Scalar, Scalar]:
        x, sign, log_det = generator.transform_and_log_det(z)
        return target.log_density(x) - log_standard_normal(z) + log_det, sign

    z = standard_normal(generator, n, key=key)
    return jax.lax.map(one, z, batch_size=at_once(target.dim))


CRITIC = KSDDirection(hidden_width=100, hidden_layers=2, penalty=10.0, learning_rate=1e-3)
REFERENCE = "HMC (reference)"
"""The label of the row that has one half of the reference beside the other."""


def methods(dim: int) -> dict[str, Method]:
    """What is compared on a network of `dim` weights, as this library recommends it; one line per row.

    The critic of KSD lags some steps behind the particles and spreads them far too widely on the regression; the row is
    kept as measured.
    """
    wide = bnn.generator(dim)
    functional = bnn.method(dim, gradient="functional")
    plain = functional.generator
    return {
        "GPVI (pathwise)": GPVI(generator=wide, particles=WIDE_DRAWS, learning_rate=5e-3),
        "GPVI (l2)": GPVI(generator=wide, gradient="l2", particles=WIDE_DRAWS, learning_rate=5e-3),
        "GPVI (functional, exact Jacobian)": functional,
        "Amortized SVGD": AmortizedSVGD(generator=plain, particles=PARTICLES),
        "Amortized GFSF": AmortizedGFSF(generator=plain, particles=PARTICLES),
        "Amortized KSD": AmortizedKSD(generator=plain, particles=PARTICLES, critic=CRITIC),
        "SVGD": SVGD(particles=PARTICLES, learning_rate=0.01),
        "GFSF": GFSF(particles=PARTICLES, learning_rate=0.01),
        "KSD": KSD(particles=PARTICLES, learning_rate=0.01, critic=CRITIC),
        "MF-VI": MeanFieldVI(particles=PARTICLES),
        "Pathfinder": Pathfinder(paths=16),
        "Deep ensemble": DeepEnsemble(members=PARTICLES),
        "NUTS": NUTS(chains=8, warmup=500, draws=250, max_doublings=7),
    }


def variants(dim: int) -> dict[str, Method]:
    """The row "GPVI (pathwise)" with one choice changed; a spline head costs so much that it has fewer draws."""
    full = partial(GPVI, particles=WIDE_DRAWS, learning_rate=5e-3)
    few = partial(full, particles=PARTICLES)
    return {
        f"GPVI (pathwise, {PARTICLES} draws)": few(bnn.generator(dim)),
        "GPVI (pathwise, layers of 64)": full(bnn.generator(dim, hidden=(64, 64))),
        "GPVI (pathwise, k = 32)": full(bnn.generator(dim, latent=32)),
        "GPVI (pathwise, k = 128)": full(bnn.generator(dim, latent=128)),
        "GPVI (pathwise, constant σ)": full(bnn.generator(dim, scale_form="constant")),
        f"GPVI (pathwise, spline head, {PARTICLES} draws)": few(bnn.generator(dim, head="spline")),
    }


def mixtures(dim: int, steps: int, preset: str) -> dict[str, NetworkRecipe]:
    """The row "GPVI (pathwise)" as a mixture of generators from different starts, which share out its draws."""
    return {
        f"GPVI (pathwise, {members} generators)": dataclasses.replace(
            recommended(
                GPVI(bnn.generator(dim), particles=WIDE_DRAWS // members, learning_rate=5e-3),
                steps,
                preset,
            ),
            members=members,
        )
        for members in GENERATORS
    }


def published_methods(
    *,
    latent: int,
    hidden: tuple[int, ...],
    helper: Helper,
) -> dict[str, Method]:
    """The appendix' methods: λ = 1 in every generator, learning rate 1e-3, 100 particles."""
    generator = Residual(latent=latent, hidden=hidden, scale=1.0)
    amortised: dict[str, Any] = {
        "generator": generator,
        "particles": PARTICLES,
        "learning_rate": PAPER_LEARNING_RATE,
    }
    fixed: dict[str, Any] = {"particles": PARTICLES, "learning_rate": PAPER_LEARNING_RATE}
    return {
        "GPVI (functional, helper)": GPVI(gradient="functional", solver=helper, **amortised),
        "GPVI (functional, exact Jacobian)": GPVI(
            gradient="functional", solver="block", **amortised
        ),
        "Amortized SVGD": AmortizedSVGD(**amortised),
        "Amortized GFSF": AmortizedGFSF(**amortised),
        "Amortized KSD": AmortizedKSD(critic=CRITIC, **amortised),
        "SVGD": SVGD(**fixed),
        "GFSF": GFSF(**fixed),
        "KSD": KSD(critic=CRITIC, **fixed),
        "MF-VI": MeanFieldVI(gradient="pathwise", **fixed),
        "Deep ensemble": DeepEnsemble(members=PARTICLES, learning_rate=PAPER_LEARNING_RATE),
        "HMC": HMC(leapfrogs=25, step_size=5e-4, jitter=0.0, warmup=20_000, draws=5_000),
    }


def recommended(method: Method, steps: int, preset: str) -> NetworkRecipe:
    """A recipe on the posterior itself with decaying learning rate; chains and paths set their own steps."""
    if preset == "smoke":
        method = _short(method)
    return NetworkRecipe(method, None if method.full_data else steps)


def _short(method: Method) -> Method:
    """The same with fewer draws, to keep smoke runs short."""
    shorter = {
        NUTS: {"chains": 2, "warmup": 20, "draws": 10, "max_doublings": 4},
        HMC: {"chains": 2, "warmup": 20, "draws": 10},
        Pathfinder: {"paths": 2, "draws": 20},
    }
    return dataclasses.replace(method, **shorter.get(type(method), {}))  # pyright: ignore[reportArgumentType, reportCallIssue]


def as_published(
    method: Method, steps: int, *, prior: Prior | None = None, temperature: float = 1.0
) -> NetworkRecipe:
    """Adam at a constant rate; chains set their own steps."""
    prior = StandardNormal() if prior is None else prior
    if method.full_data:
        return NetworkRecipe(method, prior=prior, temperature=temperature)
    return NetworkRecipe(method, steps, "constant", prior=prior, temperature=temperature)
