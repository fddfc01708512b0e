"""Networks on seven regression sets of the UCI repository, in fixed splits (beyond the paper)."""

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import gpvi
from gpvi import generators, specs
from gpvi.bnn import (
    FanIn,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    Network,
    Prior,
    Sparse,
    mlp,
    target,
)
from gpvi.bnn.standardisation import Standardisation
from gpvi.methods.carriers import Particles
from gpvi.progress import Meter
from gpvi_paper.data import uci
from gpvi_paper.experiments.base import (
    Metric,
    Published,
    ReadsData,
    Recipe,
    Results,
    Table,
    grouped,
    lower,
    seconds,
)

CASES: dict[str, str] = {
    "bostonHousing": "Boston housing",
    "concrete": "Concrete strength",
    "energy": "Energy efficiency",
    "power-plant": "Power plant",
    "protein-tertiary-structure": "Protein structure",
    "wine-quality-red": "Red wine quality",
    "yacht": "Yacht hydrodynamics",
}
LARGE = ("protein-tertiary-structure",)
UNITS, MORE_UNITS = 50, 100
SPLITS = {"best": None, "demo": 3, "smoke": 2}
STEPS = {"best": 10_000, "demo": 3_000, "smoke": 20}
"""Steps of particles and MF-VI; generators take `LONGER` times as many."""
LONGER = 3.2
SMOKE_CASES = ("yacht",)
DRAWS = {"best": 500, "demo": 200, "smoke": 20}
"""Networks that predictions average over, of all members together."""
FEW_DATA = 2_000
"""Largest data set for Markov chains, which use all data at once."""
BATCH, LARGE_BATCH = 128, 512
"""Batch sizes: of particles and MF-VI, and of generators."""
HELD_OUT, CHOOSING = 5, 5
"""A model is chosen on held-out data: a fifth of the training rows in each of the first five splits."""
LEVEL = 0.9
NARROW, WIDE, SPARSE = FanIn(1.0, 1.0), FanIn(2.0, 2.0), Sparse()
COLD = (1.0, 0.3, 0.1)
"""Temperatures: a factorised posterior pays so much for each precise weight that a colder one fits better."""
MEMBERS = 5

PUBLISHED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "PBP (Hernández-Lobato & Adams 2015)": (
        (3.01, 5.67, 1.80, 4.12, 4.73, 0.64, 1.02),
        (2.57, 3.16, 2.04, 2.84, 2.97, 0.97, 1.63),
    ),
    "MC dropout, rerun (Mukhoti et al. 2018)": (
        (2.90, 4.82, 0.54, 4.01, 4.27, 0.62, 0.67),
        (2.40, 2.93, 1.21, 2.80, 2.87, 0.93, 1.25),
    ),
    "Deep ensembles (Lakshminarayanan et al. 2017)": (
        (3.28, 6.03, 2.09, 4.11, 4.71, 0.64, 1.58),
        (2.41, 3.06, 1.38, 2.79, 2.83, 0.94, 1.18),
    ),
}
"""RMSE and test NLL on the same splits, in the order of `CASES`."""


@dataclasses.dataclass(frozen=True)
class NetworkRecipe(Recipe):
    """A method, the models to choose from on held-out data, and the number of fits in the mixture."""

    priors: tuple[Prior, ...] = (SPARSE,)
    likelihoods: tuple[Likelihood, ...] = (Gaussian(),)
    temperatures: tuple[float, ...] = (1.0,)
    members: int = 1
    """Fits from different starts, whose draws are joined in one mixture."""
    most_data: int | None = None
    """Sets with more data than this are left out."""

    @property
    def models(self) -> list["Model"]:
        """Every likelihood with every prior and temperature."""
        parts = itertools.product(self.likelihoods, self.priors, self.temperatures)
        return [Model(p, likelihood, t) for likelihood, p, t in parts]

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        more = {
            name: specs.to_json(getattr(self, name))
            for name in ("priors", "likelihoods", "temperatures", "members", "most_data")
        }
        return super().to_json() | more


class Model(NamedTuple):
    """The prior of the weights, and the likelihood of y given the outputs of a network."""

    prior: Prior
    likelihood: Likelihood
    temperature: float = 1.0

    def network(self, features: int, units: int) -> Network:
        """One hidden layer of ReLU."""
        outputs = 2 if isinstance(self.likelihood, Heteroscedastic) else 1
        return mlp((features, units, outputs))


@dataclasses.dataclass(frozen=True)
class Problem:
    """A split in standardised units, with the scales to convert back."""

    X: Float[np.ndarray, "n f"]
    y: Float[np.ndarray, "n 1"]
    X_test: Float[np.ndarray, "m f"]
    y_test: Float[np.ndarray, "m 1"]
    scale: float

    @classmethod
    def of(cls, split: uci.Split) -> "Problem":
        """The units are those of the training part."""
        columns, values = Standardisation.of(split.X), Standardisation.of(split.y[:, None])
        return cls(
            columns.transform(split.X),
            values.transform(split.y[:, None]),
            columns.transform(split.X_test),
            values.transform(split.y_test[:, None]),
            float(values.scale[0]),
        )

    def target(self, network: Network, model: Model) -> gpvi.Target:
        """The posterior of the weights."""
        return target(
            network, model.likelihood, model.prior, self.X, self.y, temperature=model.temperature
        )


def held_out(split: uci.Split, number: int) -> uci.Split:
    """A split of the training part alone."""
    order = np.random.default_rng(number).permutation(len(split.y))
    test, train = np.split(order, [len(order) // HELD_OUT])
    return uci.Split(split.X[train], split.y[train], split.X[test], split.y[test])


class Scores(NamedTuple):
    """The scores on one split, in the units of y."""

    rmse: float
    nll: float
    coverage: float
    """The share of y within the central interval of 90 %."""


@partial(jax.jit, static_argnums=(0, 1))
def predictions(
    network: Network,
    likelihood: Likelihood,
    draws: Float[Array, "n d"],
    X: Float[Array, "m f"],
    y: Float[Array, "m 1"],
) -> tuple[Float[Array, " m"], Float[Array, " m"], Float[Array, " m"]]:
    """Mean, log-density and distribution function at y of the mixture over the drawn networks."""

    def one(flat: Float[Array, " d"]) -> tuple[Array, Array, Array]:
        outputs, extra = network.apply(flat[: network.size], X), flat[network.size :]
        mean = likelihood.moments(outputs, extra)[0][:, 0]
        below = likelihood.cdf(outputs, extra, y)[:, 0]
        return mean, likelihood.log_prob(outputs, extra, y), below

    mean, log_prob, below = jax.lax.map(one, draws, batch_size=max(1, min(64, 2**17 // len(y))))
    mixture = jax.nn.logsumexp(log_prob, 0) - math.log(len(draws))
    return mean.mean(0), mixture, below.mean(0)


def scores(
    network: Network, likelihood: Likelihood, draws: Float[Array, "n d"], problem: Problem
) -> Scores:
    """How well the mixture of drawn networks predicts the test part.

    y lies in the central interval of the mixture where the distribution function there is between 0.05 and 0.95.
    """
    test = (jnp.asarray(part, draws.dtype) for part in (problem.X_test, problem.y_test))
    found = predictions(network, likelihood, draws, *test)
    mean, log_prob, below = (np.asarray(part, np.float64) for part in found)
    errors = problem.scale * (mean - problem.y_test[:, 0])
    edge = (1 - LEVEL) / 2
    return Scores(
        float(np.sqrt((errors**2).mean())),
        float(math.log(problem.scale) - log_prob.mean()),
        float(((below >= edge) & (below <= 1 - edge)).mean()),
    )


def drawn(posteriors: Sequence[gpvi.Posterior], number: int, *, key: PRNGKeyArray) -> Array:
    """Networks of all members: all particles of a member, or its share of `number` new ones."""
    each = -(-number // len(posteriors))
    tables = [
        posterior.particles
        if isinstance(posterior.model, Particles)
        else posterior.sample(each, key=key)
        for posterior, key in zip(posteriors, jax.random.split(key, len(posteriors)), strict=True)
    ]
    return jnp.concatenate(tables)


class UCI(ReadsData[NetworkRecipe]):
    """Every set of `CASES` by every method."""

    name = "uci"
    title = "Networks on seven regression sets"
    source = "UCI repository, beyond the experiments"
    summary = (
        "One hidden layer of 50 ReLU units (100 for protein), 20 fixed splits (protein 5), X and y standardised by the "
        "training part, the noise learned with the weights. Variational rows are mixtures of five fits from different "
        "starts under the prior Sparse(). A value is the mean over the splits, and ± se its standard error over them; "
        "RMSE and NLL are in the units of the data. If a row has several models (priors, or temperatures for the "
        "cold one), one is chosen per set by likelihood on held-out fifths of the first five training parts, and the "
        "networks are retrained on all training data. The published rows used the same splits."
    )
    cases = MappingProxyType(CASES)
    metrics = (
        lower("rmse", "RMSE", "root mean squared error of the predictive mean"),
        Metric("rmse_se", "± se", "standard error of the RMSE over the splits"),
        lower("nll", "NLL", "mean negative log predictive density"),
        Metric("nll_se", "± se", "standard error of the NLL over the splits"),
        Metric("coverage", "in 90 %", "the share of y within the central 90 % interval", "share"),
        lower("rmse_one", "RMSE of one", "RMSE of the first generator alone"),
        lower("nll_one", "NLL of one", "NLL of the first generator alone"),
        Metric("chosen", "model", "the number of the model chosen on held-out data, from 1"),
        seconds("training of all splits and members together"),
    )
    tables = (
        Table(
            "Test error and likelihood",
            ("rmse", "rmse_se", "nll", "nll_se", "coverage", "seconds"),
            "Means over the splits with their standard errors. Published figures are printed without theirs.",
        ),
        Table(
            "One generator of a mixture, and the model chosen",
            ("rmse_one", "nll_one", "chosen"),
            "What the first generator of a mixture predicts alone, and which model was chosen on held-out data.",
        ),
    )
    headline = ("rmse", "nll")

    def find(self, directory: Path | None) -> Path:
        """The sets at or below this directory."""
        return uci.find(directory)

    @property
    def published(self) -> dict[str, dict[str, Published]]:
        """Three methods on the same splits."""
        return {
            label: {
                f"{case}/{metric}": Published(value, math.nan)
                for case, *pair in zip(CASES, *figures, strict=True)
                for metric, value in zip(("rmse", "nll"), pair, strict=True)
            }
            for label, figures in PUBLISHED.items()
        }

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """The same rows at different lengths; the paper has none."""
        return {} if preset not in STEPS else _recipes(preset)

    def measure(self, results: Results[NetworkRecipe]) -> None:
        """For each set choose the model, train all splits side by side, and score the test parts."""
        root, preset = self.find(self.directory), results.preset
        for case in SMOKE_CASES if preset == "smoke" else CASES:
            splits = uci.read(root, case, SPLITS[preset])
            most = results.recipe.most_data
            if most is not None and len(splits[0].y) > most:
                results.note(f"{self.cases[case]} has more than {most:,} data and is omitted")
                continue
            for seed in results.seeds:
                meter = results.meter(self.cases[case])
                results.add(measured(results, case, splits, meter, key=jax.random.key(seed)), case)


def measured(
    results: Results[NetworkRecipe],
    case: str,
    splits: Sequence[uci.Split],
    progress: Meter,
    *,
    key: PRNGKeyArray,
) -> dict[str, float]:
    """All measurements on one set."""
    recipe, units = results.recipe, MORE_UNITS if case in LARGE else UNITS
    began, models, choice = time.perf_counter(), recipe.models, 0
    choose_key, final_key, draw_key = jax.random.split(key, 3)
    fitted = partial(_fitted, recipe, units=units, progress=progress)
    number = DRAWS[results.preset]
    if len(models) > 1:
        parts = [held_out(split, number) for number, split in enumerate(splits[:CHOOSING])]
        losses = []
        for model in models:
            tried = fitted(parts, model, key=choose_key)
            losses.append(np.mean([fit.scores(number, key=draw_key).nll for fit in tried]))
        choice = int(np.nanargmin(losses))
    final = fitted(splits, models[choice], key=final_key)
    results.follow(final[0].posteriors[0].training, case)
    seconds = time.perf_counter() - began
    table = np.array([fit.scores(number, key=draw_key) for fit in final])
    mean, error = table.mean(0), table.std(0, ddof=1) / math.sqrt(len(table))
    values = {
        "rmse": mean[0],
        "rmse_se": error[0],
        "nll": mean[1],
        "nll_se": error[1],
        "coverage": mean[2],
        "chosen": choice + 1.0,
        "seconds": seconds,
    }
    if recipe.members > 1:
        alone = np.array([fit.first.scores(number, key=draw_key) for fit in final]).mean(0)
        values |= {"rmse_one": alone[0], "nll_one": alone[1]}
    return values


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The posteriors found for one split."""

    problem: Problem
    network: Network
    likelihood: Likelihood
    posteriors: Sequence[gpvi.Posterior]

    @property
    def first(self) -> "Fitted":
        """The first posterior alone."""
        return dataclasses.replace(self, posteriors=self.posteriors[:1])

    def scores(self, number: int, *, key: PRNGKeyArray) -> Scores:
        """The scores of the mixture of all posteriors."""
        draws = drawn(self.posteriors, number, key=key)
        return scores(self.network, self.likelihood, draws, self.problem)


def _fitted(
    recipe: NetworkRecipe,
    splits: Sequence[uci.Split],
    model: Model,
    *,
    units: int,
    progress: Meter,
    key: PRNGKeyArray,
) -> list[Fitted]:
    """Train all members of every split in one program."""
    problems = [Problem.of(split) for split in splits]
    data, features = problems[0].X.shape
    network = model.network(features, units)
    targets = [problem.target(network, model) for problem in problems]
    posteriors = recipe.fit_seeds(
        [target for target in targets for _ in range(recipe.members)],
        key=key,
        batch_size=None if recipe.batch_size is None else min(recipe.batch_size, data),
        progress=progress,
    )
    groups = grouped(posteriors, recipe.members)
    return [
        Fitted(problem, network, model.likelihood, group)
        for problem, group in zip(problems, groups, strict=True)
    ]


def _recipes(preset: str) -> dict[str, NetworkRecipe]:
    """GPVI and its relatives, then those it is compared with."""
    steps, few = STEPS[preset], preset == "smoke"
    tail = generators.Triangular(
        latent=8, head=generators.AffineFlow(0.01), scale=0.01, scale_form="constant"
    )
    draws = 4 if few else 8
    pathwise = gpvi.GPVI(generator=tail, particles=draws, learning_rate=1e-2)
    functional = dataclasses.replace(pathwise, gradient="functional")
    nuts = (
        gpvi.NUTS(draws=10, warmup=20, max_doublings=3)
        if few
        else gpvi.NUTS(draws=250, max_doublings=7)
    )
    generative = partial(
        NetworkRecipe,
        steps=round(LONGER * steps),
        batch_size=LARGE_BATCH,
        priors=(SPARSE,),
        members=2 if few else MEMBERS,
    )
    particles = partial(NetworkRecipe, steps=steps, batch_size=BATCH, priors=(NARROW, WIDE, SPARSE))
    return {
        "GPVI (pathwise)": generative(pathwise),
        "GPVI (pathwise, cold)": generative(pathwise, temperatures=COLD[1:] if few else COLD),
        "GPVI (pathwise, heteroscedastic)": generative(pathwise, likelihoods=(Heteroscedastic(),)),
        "GPVI (functional)": generative(functional),
        "MF-VI": generative(gpvi.MeanFieldVI(particles=draws), steps=steps, batch_size=BATCH),
        "SVGD": particles(gpvi.SVGD(particles=4 if few else 32, learning_rate=1e-2)),
        "Deep ensemble": particles(gpvi.DeepEnsemble(members=2 if few else 10)),
        "NUTS": NetworkRecipe(nuts, priors=(WIDE,), most_data=FEW_DATA),
    }
