r"""Small networks with a reference posterior from long Markov chains, and the distance of predictions from it.

The posterior of a network has a mode for each order of its hidden units, and more; which of them a method finds does
not matter. So the predictions of the networks are compared, over a grid of inputs. With p̄ the mean over a posterior:

    classes      TV = mean over the grid of ½ Σ_c |p̄_q(c | x) − p̄_ref(c | x)|
    regression   W₁ = mean over the grid of ∫₀¹ |F_q^{-1}(u) − F_ref^{-1}(u)| du / sd_ref(x), of the network's output.

The reference is a long run of Hamiltonian Monte Carlo in many chains that start at the network's own initialisation.
The floor is the distance of the same number of networks from one half of the chains to the other half.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

import gpvi
from gpvi import bnn, metrics, specs
from gpvi.bnn import Likelihood, Network, Predictive, Prior, StandardNormal
from gpvi.diagnostics.folding import fold_fraction
from gpvi.diagnostics.importance import importance
from gpvi.errors import quietly
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.methods import HMC
from gpvi.methods.carriers import Chains, Particles
from gpvi.progress import Meter
from gpvi.targets.density import at_once
from gpvi_paper.experiments.base import (
    FOLD,
    SECONDS,
    KeepsReference,
    Results,
    grouped,
    higher,
    lower,
)
from gpvi_paper.experiments.toys.recipes import REFERENCE, NetworkRecipe

FRESH = 2_000
"""New networks of a generator for its predictions."""
DENSITY_DRAWS = 4_000
"""Draws for the ELBO."""
LEVELS = (np.arange(100) + 0.5) / 100
"""Where quantile functions are compared."""
FLOOR_REPLICATES = 4
REFERENCE_SEED = 0
DENSITY_METRICS = (
    higher("elbo", "ELBO", "the evidence lower bound at temperature 1, in nats", void_if="fold"),
    lower("k_hat", "k̂", "Pareto shape of the importance weights: usable below 0.7", void_if="fold"),
    FOLD,
    SECONDS,
)
"""Metrics of a posterior with a density."""
_LONG = HMC(chains=128, leapfrogs=32, warmup=300, draws=60, thin=10, acceptance=0.8)
REFERENCES = {
    "paper": _LONG,
    "authors": _LONG,
    "best": _LONG,
    "demo": HMC(chains=64, leapfrogs=32, warmup=200, draws=40, thin=10, acceptance=0.8),
    "smoke": HMC(chains=8, leapfrogs=8, warmup=0, draws=10, step_size=0.01),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A network, training data, test data, and the inputs at which predictions are compared."""

    network: Network
    likelihood: Likelihood
    inputs: Float[np.ndarray, "n f"]
    outputs: Float[np.ndarray, " n"] | Int[np.ndarray, " n"]
    test_inputs: Float[np.ndarray, "m f"]
    test_outputs: Float[np.ndarray, " m"] | Int[np.ndarray, " m"]
    grid: Float[np.ndarray, "g f"]

    def target(self, prior: Prior | None = None, temperature: float = 1.0) -> gpvi.Target:
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
        self,
        posterior: gpvi.Posterior | Sequence[gpvi.Posterior],
        seed: int,
        draws: int | None = None,
    ) -> "View":
        """Predictions of a posterior, or of an even mixture: from `FRESH` new networks, or all of its particles."""
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
    """The mean output, or the mean probabilities of the classes."""
    sd: Float[np.ndarray, " g"]
    """The sd between networks; for classes that of each probability, averaged over the classes."""
    loss: dict[str, float]
    """On the new data: the negative log-likelihood of the mixture, and for classes the accuracy."""
    quantiles: Float[np.ndarray, "l g"] | None = None
    """Quantiles of the networks' outputs, for a regression."""


class Reference(NamedTuple):
    """Long chains, their predictions, and the same of one half, to compare with the other half."""

    chains: gpvi.Posterior
    view: View
    first: gpvi.Posterior
    second: View


def reference(
    problem: Problem, method: HMC, progress: bool | Meter = False, directory: Path | None = None
) -> Reference:
    """Long chains on the posterior at T = 1: those in the directory, or new ones, which are then stored there."""
    chains = _stored(problem, method, directory)
    if chains is None:
        with quietly():
            chains = gpvi.fit(
                problem.target(),
                method,
                key=jax.random.key(REFERENCE_SEED),
                progress=progress,
            )
        if chains.training.steps < chains.training.planned:
            raise KeyboardInterrupt
        if directory is not None:
            chains.save(directory / _name(problem, method))
    first, second = halves(chains)
    view = problem.view(chains, REFERENCE_SEED)
    return Reference(chains, view, first, problem.view(second, REFERENCE_SEED))


@functools.cache
def shared_reference(problem: Problem, method: HMC, directory: Path | None) -> Reference:
    """The reference, made once in this process, and once by all processes that name one directory."""
    return reference(problem, method, directory=directory)


def halves(
    chains: gpvi.Posterior, seed: int | None = None
) -> tuple[gpvi.Posterior, gpvi.Posterior]:
    """The first half of the chains and the others; in random order if a seed is given."""
    assert isinstance(chains.model, Chains)
    by_chain = np.asarray(chains.model.by_chain(chains.model.drawn))
    if seed is not None:
        by_chain = np.random.default_rng(seed).permutation(by_chain)
    half = len(by_chain) // 2
    first, second = (
        gpvi.Posterior(
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
    settings = (specs.to_json(method), REFERENCE_SEED, problem.network.names)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for array in (problem.inputs, problem.outputs):
        digest.update(np.ascontiguousarray(array).tobytes())
    return f"chains-{digest.hexdigest()[:16]}"


def _stored(problem: Problem, method: HMC, directory: Path | None) -> gpvi.Posterior | None:
    """Stored chains of the same name, if log p at their last draws shows that the posterior is the same."""
    if directory is None or not (directory / _name(problem, method)).exists():
        return None
    target = problem.target()
    chains = gpvi.load(directory / _name(problem, method)).with_target(target)
    last = jax.vmap(target.log_density)(chains.particles[-method.chains :])
    before = chains.training.history["log_density"][-1]
    return chains if np.isclose(float(last.mean()), before, rtol=1e-3) else None


def total_variation(p: Float[np.ndarray, "g c"], q: Float[np.ndarray, "g c"]) -> float:
    """½ Σ_c |p − q|, the mean over the grid."""
    return float(0.5 * np.abs(p - q).sum(1).mean())


def wasserstein(
    p: Float[np.ndarray, "l g"], q: Float[np.ndarray, "l g"], scale: Float[np.ndarray, " g"]
) -> float:
    """∫ |F_p^{-1} − F_q^{-1}| / scale from quantiles at even levels, the mean over the grid."""
    return float((np.abs(p - q).mean(0) / scale).mean())


def correlation(a: Float[np.ndarray, " g"], b: Float[np.ndarray, " g"]) -> float:
    """Pearson's correlation; 0 if one of them is constant."""
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def distance(view: View, reference: View) -> float:
    """TV for classes, W₁ for a regression."""
    if view.quantiles is None or reference.quantiles is None:
        return total_variation(view.mean, reference.mean)
    return wasserstein(view.quantiles, reference.quantiles, reference.sd)


def floor(problem: Problem, long: Reference, networks: int) -> float:
    """The distance of that many networks from one half of the chains to the other half."""
    available = len(long.first.particles)
    count = min(networks, available)
    replicates = 1 if count == available else FLOOR_REPLICATES
    views = (problem.view(long.first, seed, count) for seed in range(replicates))
    return float(np.mean([distance(view, long.second) for view in views]))


def networks(posterior: gpvi.Posterior) -> int:
    """How many networks a posterior predicts with."""
    if isinstance(posterior.model, Particles):
        return len(posterior.model.drawn)
    return FRESH


def trained(
    problem: Problem, recipe: NetworkRecipe, seeds: Sequence[int], progress: Meter
) -> list[list[gpvi.Posterior]]:
    """The members of every seed, all side by side on the same data."""
    target = problem.target(recipe.prior, recipe.temperature)
    targets = [target] * (len(seeds) * recipe.members)
    posteriors = recipe.fit_seeds(targets, key=jax.random.key(seeds[0]), progress=progress)
    return grouped(posteriors, recipe.members)


class Row(NamedTuple):
    """The posteriors of one seed, which predict as their mixture, and what they are compared with."""

    seed: int
    posteriors: Sequence[gpvi.Posterior]
    reference: View


def rows(
    problem: Problem,
    recipe: NetworkRecipe,
    long: Reference,
    seeds: Sequence[int],
    progress: Meter,
) -> Iterator[Row]:
    """Each seed and the reference; for the reference's own row, a random half of its chains and the other half."""
    if recipe.method == long.chains.method:
        for seed in seeds:
            first, second = halves(long.chains, seed)
            yield Row(seed, [first], problem.view(second, seed))
        return
    for seed, members in zip(seeds, trained(problem, recipe, seeds, progress), strict=True):
        yield Row(seed, members, long.view)


def with_density(posteriors: Sequence[gpvi.Posterior], seed: int) -> dict[str, float]:
    """ELBO, k̂ and fold fraction if a method has a density; only for a single posterior."""
    posterior = posteriors[0]
    if len(posteriors) > 1 or not posterior.method.density:
        return {}
    assert posterior.target is not None
    log_ratios, signs = _log_ratios(
        posterior.generator, posterior.target, DENSITY_DRAWS, jax.random.key(seed)
    )
    weights, _ = importance(log_ratios)
    return {"elbo": weights.elbo, "k_hat": weights.k_hat, "fold": float(fold_fraction(signs))}


@eqx.filter_jit
def _log_ratios(
    generator: AbstractGenerator, target: gpvi.Target, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """log p − log q at draws of q, and the signs of det J."""

    def one(z: Float[Array, " d"]) -> tuple[Scalar, Scalar]:
        x, sign, log_det = generator.transform_and_log_det(z)
        return target.log_density(x) - log_standard_normal(z) + log_det, sign

    z = standard_normal(generator, n, key=key)
    return jax.lax.map(one, z, batch_size=at_once(target.dim))


class ToyNetworks(KeepsReference[NetworkRecipe]):
    """What the toy experiments have in common: every row is compared with long chains."""

    cases = MappingProxyType({"": "posterior of the network"})
    references: Mapping[str, HMC] = MappingProxyType(REFERENCES)
    """Preset → the long chains that its rows are compared with."""

    @abstractmethod
    def problem(self) -> Problem:
        """The network and the data, the same object at every call."""

    @abstractmethod
    def compared(self, view: View, reference: View) -> dict[str, float]:
        """The distances of one seed's predictions from the reference's."""

    @abstractmethod
    def pictured(self, view: View, reference: View) -> dict[str, np.ndarray]:
        """The arrays that a picture of the predictions needs."""

    def measure(self, results: Results[NetworkRecipe]) -> None:
        """Train all seeds side by side, and compare with the reference."""
        problem, recipe = self.problem(), results.recipe
        long = shared_reference(problem, self.references[results.preset], self.directory)
        for seed, posteriors, reference in rows(
            problem, recipe, long, results.seeds, results.meter()
        ):
            training, view = posteriors[0].training, problem.view(posteriors, seed)
            results.follow(training)
            exact = floor(problem, long, networks(posteriors[0]))
            results.add(self.compared(view, reference))
            results.add({f"{self.headline[0]}_floor": exact, "seconds": training.seconds})
            if recipe.temperature == 1.0:
                results.add(with_density(posteriors, seed))
            if seed == results.seeds[0] and results.label != REFERENCE:
                results.arrays.update(self.pictured(view, reference))
