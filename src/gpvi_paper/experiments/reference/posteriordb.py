"""How reliable the defaults are: 17 posteriors of posteriordb with reference draws.

A method passes if the mean of every parameter is within 0.05 reference standard deviations of the reference, every
standard deviation within 5 %, and k̂ ≤ 0.7 if the density of the draws is known. The reference has 10,000 draws, so its
means are themselves uncertain by 0.01 standard deviations; the floors are the errors of the same number of exact draws.
Standard deviations that the reference does not determine to 2.5 % are not compared, such as those of K_m and V_m of the
elimination, whose posterior has tails of index 2 and hence no variance at all.
"""

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

import gpvi
from gpvi.diagnostics.importance import effective_share, smoothed_log_weights
from gpvi.errors import GPVIError, quietly
from gpvi_paper.data import posteriordb
from gpvi_paper.experiments.base import (
    Metric,
    ReadsData,
    Recipe,
    Results,
    RunsCases,
    Table,
    higher,
    lower,
    seconds,
)
from gpvi_paper.experiments.reference.peers import (
    ChainFit,
    Draws,
    Fitted,
    NumPyroGuide,
    NumPyroNUTS,
    Peer,
    Sites,
    require_numpyro,
)

if TYPE_CHECKING:
    from gpvi_paper.experiments.reference.posteriordb_models import PosteriorModel

CASES: dict[str, str] = {
    "eight_schools-eight_schools_centered": "Eight schools, centred",
    "eight_schools-eight_schools_noncentered": "Eight schools, non-centred",
    "kidiq-kidscore_momiq": "Kid's score, IQ",
    "kidiq-kidscore_momhsiq": "Kid's score, IQ and school",
    "kidiq-kidscore_interaction": "Kid's score, interaction",
    "earnings-earn_height": "Earnings, height",
    "earnings-logearn_height": "Log earnings, height",
    "arK-arK": "Autoregression",
    "gp_pois_regr-gp_pois_regr": "GP, Poisson",
    "gp_pois_regr-gp_regr": "GP, regression",
    "bball_drive_event_0-hmm_drive_0": "Hidden Markov",
    "nes1980-nes": "Party identification",
    "sblrc-blr": "Correlated regression",
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": "Michaelis-Menten elimination",
    "diamonds-diamonds": "Diamonds",
    "mesquite-logmesquite": "Mesquite",
    "kilpisjarvi_mod-kilpisjarvi": "Kilpisjärvi",
}
SMOKE_CASES = ("kilpisjarvi_mod-kilpisjarvi",)
DRAWS = {"best": 40_000, "smoke": 2_000}
"""The mean of n draws is uncertain by n^(−1/2) standard deviations."""
AT_ONCE = 10_000
FURTHER = 1_000
FLOOR_REPLICATES = 40

MEAN_TOLERANCE, SD_TOLERANCE, K_HAT_TOLERANCE = 0.05, 0.05, 0.7
MISLEADING = 0.2
"""A mean with a larger error, in standard deviations, should never be called good."""


class PosteriorDB(RunsCases[Recipe | Peer], ReadsData[Recipe | Peer]):
    """Every posterior of `CASES` by every method."""

    name = "posteriordb"
    title = "Seventeen posteriors with reference draws"
    source = "posteriordb, beyond the experiments"
    summary = (
        "Models and data of posteriordb (Magnusson et al.), each in the parametrisation given there, in float64. GPVI "
        "is gpvi.fit(target) with default settings; NUTS is NumPyro's with four chains of 1,000 + 1,000 draws; the "
        "guides are NumPyro's, with one setting for all models. Errors are the largest over the parameters, in "
        "standard deviations of the reference; a method passes if means are within 0.05, standard deviations "
        "within 5 %, and k̂ ≤ 0.7. Weighted figures use Pareto-smoothed importance weights."
    )
    cases = MappingProxyType(CASES)
    metrics = (
        higher(
            "passed",
            "passed",
            "means, standard deviations and k̂ within their tolerances",
            "yes or no",
        ),
        higher(
            "passed_weighted", "passed, weighted", "the same for the weighted draws", "yes or no"
        ),
        lower("k_hat", "k̂", "Pareto shape of the importance ratios; above 0.7 do not trust them"),
        higher(
            "ess",
            "ESS",
            "effective share of the draws: by importance ratios; for chains the smallest by autocorrelation",
            "share",
        ),
        lower(
            "mean_error",
            "mean error",
            "the largest |mean − reference|, in standard deviations",
            floor="mean_floor",
        ),
        lower("sd_error", "sd error", "the largest |log(sd / reference sd)|", floor="sd_floor"),
        lower("mean_error_weighted", "weighted mean error", "the same for the weighted draws"),
        lower("sd_error_weighted", "weighted sd error", "the same for the weighted draws"),
        Metric("mean_floor", "mean floor", "the mean error of the same number of exact draws"),
        Metric("sd_floor", "sd floor", "the sd error of the same number of exact draws"),
        higher("good", "said good", "whether the verdict of diagnose is good", "yes or no"),
        lower(
            "misled",
            "misled",
            "whether it is good although a mean is off by more than 0.2 sd",
            "yes or no",
        ),
        seconds("from the model to the fit, including compilation"),
        lower("cpu_seconds", "CPU s", "processor time of the same, over all cores", "seconds"),
        lower(
            "draw_seconds",
            "s / 1,000",
            "1,000 further draws, after a first call for the same number",
        ),
    )
    tables = (
        Table(
            "Agreement with the reference draws",
            ("passed", "good", "k_hat", "ess", "mean_error", "sd_error", "seconds", "draw_seconds"),
            "Errors are the largest over the parameters; exact draws have the floor. Seconds count compilation.",
        ),
        Table(
            "After importance weighting",
            ("passed_weighted", "k_hat", "ess", "mean_error_weighted", "sd_error_weighted"),
            "Pareto-smoothed importance weights, for the methods whose draws have a density.",
        ),
    )

    def find(self, directory: Path | None) -> Path:
        """The database at or below this directory."""
        return posteriordb.find(directory)

    def recipes(self, preset: str) -> dict[str, Recipe | Peer]:
        """The same rows under `best` and, shortened, under `smoke`; the paper has none."""
        if preset not in DRAWS:
            return {}
        guides = ("AutoNormal", "AutoMultivariateNormal", "AutoIAFNormal", "AutoBNAFNormal")
        if preset == "best":
            return {
                "GPVI (default)": Recipe(gpvi.GPVI()),
                "NUTS": NumPyroNUTS(),
                **{guide: NumPyroGuide(guide) for guide in guides},
            }
        return {
            "GPVI (default)": Recipe(gpvi.GPVI(), steps=200),
            "NUTS": NumPyroNUTS(warmup=100, samples=100),
            **{guide: NumPyroGuide(guide, steps=200, particles=1) for guide in guides},
        }

    def problems(self, label: str, preset: str) -> Sequence[str]:
        """The posteriors; one of them under `smoke`."""
        every = SMOKE_CASES if preset == "smoke" else tuple(CASES)
        return tuple(case for case in every if case in self.cases)

    def measure(self, results: Results[Recipe | Peer]) -> None:
        """Fit every posterior with every seed from a cold start, and compare with the reference."""
        directory, preset, meter = self.find(self.directory), results.preset, results.meter()
        blank = {metric.key: np.nan for metric in self.metrics}
        cases = self.problems(results.label, preset)
        jobs = [(case, seed) for case in cases for seed in results.seeds]
        meter.start(len(jobs), self.name)
        try:
            for done, (case, seed) in enumerate(jobs):
                meter.update(done, f"{self.cases[case]}, seed {seed}")
                problem = Problem.read(directory, case)
                key = jax.random.fold_in(jax.random.key(seed), list(CASES).index(case))
                try:
                    values = measured(results, problem, DRAWS[preset], key=key)
                except GPVIError as error:
                    results.note(f"{case}, seed {seed}: {error}")
                    values = {"passed": 0.0}
                results.add(blank | values, case)
        finally:
            meter.close()


@dataclasses.dataclass(frozen=True)
class Problem:
    """A posterior of the database: a model, its arguments, and the reference draws."""

    case: str
    model: "PosteriorModel"
    arguments: dict[str, np.ndarray]
    parameters: tuple[str, ...]
    reference: Float[np.ndarray, "n q"]

    @classmethod
    def read(cls, directory: Path, case: str) -> "Problem":
        """From the database."""
        require_numpyro()
        from gpvi_paper.experiments.reference.posteriordb_models import MODELS

        stored, model = posteriordb.read(directory, case), MODELS[case]
        return cls(case, model, model.arguments(stored.data), stored.parameters, stored.draws)

    def target(self) -> gpvi.Target:
        """The posterior in unconstrained coordinates."""
        return gpvi.Target.from_numpyro(
            partial(self.model.model, **self.arguments), dtype="float64"
        )

    def quantities(self, sites: Sites) -> Float[np.ndarray, "n q"]:
        """Draws of the sites in the order of the reference."""
        return np.asarray(jax.vmap(self.model.flatten)(sites))


def measured(
    results: Results[Recipe | Peer], problem: Problem, n: int, *, key: PRNGKeyArray
) -> dict[str, float]:
    """Fit once, and measure."""
    fit_key, draw_key, floor_key, verdict_key = jax.random.split(key, 4)
    with jax.enable_x64(True):
        jax.clear_caches()
        began, busy = time.perf_counter(), time.process_time()
        fitted = trained(results.recipe, problem, key=fit_key)
        values = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - busy,
        }
        results.note(*(f"{problem.case}: {note}" for note in fitted.notes))
        if isinstance(fitted, PosteriorFit):
            results.follow(fitted.posterior.training, problem.case)
            verdict = fitted.posterior.diagnose(key=verdict_key).verdict
            values["good"] = float(verdict.level == "good")
        draws = fitted.draws or fitted.weighed(n, key=draw_key)
        x, ratios = problem.quantities(draws.sites), draws.log_ratios
        values["draw_seconds"] = further_seconds(fitted, key=draw_key)
        if isinstance(fitted, ChainFit):
            values["ess"] = fitted.effective_share()
        weights = None
        if ratios is not None:
            log_weights, k_hat = smoothed_log_weights(ratios)
            values |= {"k_hat": float(k_hat), "ess": float(effective_share(ratios))}
            weights = np.exp(log_weights)
    reference, k_hat = Reference.of(problem.reference), values.get("k_hat", 0.0)
    if not reference.known.all():
        unknown = [p for p, k in zip(problem.parameters, reference.known, strict=True) if not k]
        results.note(
            f"{problem.case}: the standard deviations of {', '.join(unknown)} are not compared"
        )
    values |= compared(x, reference, None, k_hat)
    if "good" in values:
        values["misled"] = float(values["good"] and values["mean_error"] > MISLEADING)
    if weights is not None:
        values |= compared(x, reference, weights, k_hat, "_weighted")
    return values | floors(problem.reference, len(x), key=floor_key)


def trained(recipe: Recipe | Peer, problem: Problem, *, key: PRNGKeyArray) -> Fitted:
    """Fit one method to the posterior."""
    if not isinstance(recipe, Recipe):
        return recipe.fit(problem.model.model, problem.arguments, key=key)
    with quietly():
        target = problem.target()
    return PosteriorFit(recipe.fit(target, key=key, progress=False, checkpoint=None), target)


class PosteriorFit:
    """A posterior of this library, with the interface of the other libraries' fits."""

    draws = None

    def __init__(self, posterior: gpvi.Posterior, target: gpvi.Target):
        self.posterior, self._target = posterior, target
        self.notes = posterior.training.notes

    def sample(self, n: int, *, key: PRNGKeyArray) -> Sites:
        """Draws by name."""
        return self.posterior.draws(n, key=key)

    def weighed(self, n: int, *, key: PRNGKeyArray) -> Draws:
        """Draws by name with log p − log q, some at a time."""
        log_density = jax.jit(lambda x: jax.lax.map(self._target.log_density, x, batch_size=1_000))
        constrain = jax.jit(jax.vmap(self._model.constrain))
        parts = []
        for part in jax.random.split(key, -(-n // AT_ONCE)):
            x, log_q = self.posterior.sample_and_log_prob(min(n, AT_ONCE), key=part)
            parts.append(Draws(constrain(x), log_density(x) - log_q))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    @property
    def _model(self) -> Any:
        assert self._target.model is not None
        return self._target.model


def further_seconds(fitted: Fitted, *, key: PRNGKeyArray) -> float:
    """The time of 1,000 draws after the first 1,000; NumPyro recompiles its chains each time they continue."""
    keys = jax.random.split(key)
    jax.block_until_ready(fitted.sample(FURTHER, key=keys[0]))
    began = time.perf_counter()
    jax.block_until_ready(fitted.sample(FURTHER, key=keys[1]))
    return time.perf_counter() - began


class Errors(NamedTuple):
    """Largest errors of draws against a reference, over their columns."""

    mean: float
    """|difference of means|, in standard deviations of the reference."""
    narrowest: float
    widest: float
    """The smallest and largest ratio of a standard deviation to the reference's."""

    @property
    def sd(self) -> float:
        """The largest |log of a ratio|."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.abs(np.log([self.narrowest, self.widest])).max())

    @property
    def tolerable(self) -> bool:
        """Whether all errors are within the tolerances; NaN is not."""
        return (
            self.mean <= MEAN_TOLERANCE
            and self.narrowest >= 1 - SD_TOLERANCE
            and self.widest <= 1 + SD_TOLERANCE
        )


class Reference(NamedTuple):
    """Mean and standard deviation of each parameter by the reference draws."""

    mean: Float[np.ndarray, " q"]
    sd: Float[np.ndarray, " q"]
    known: Bool[np.ndarray, " q"]
    """Whether the draws determine the standard deviation well enough to compare it."""

    @classmethod
    def of(cls, draws: Float[np.ndarray, "m q"]) -> "Reference":
        """From draws: a standard deviation has the relative error √((kurtosis − 1) / 4m)."""
        mean, sd = draws.mean(0), draws.std(0)
        kurtosis = (((draws - mean) / sd) ** 4).mean(0)
        return cls(mean, sd, (kurtosis - 1) / (4 * len(draws)) <= (SD_TOLERANCE / 2) ** 2)


def errors(
    x: Float[np.ndarray, "n q"],
    reference: Reference,
    weights: Float[np.ndarray, " n"] | None = None,
) -> Errors:
    """How far the (weighted) draws are from the reference."""
    mean = np.average(x, 0, weights)
    ratio = np.sqrt(np.average((x - mean) ** 2, 0, weights)) / reference.sd
    ratio = np.where(reference.known, ratio, 1.0)
    distance = np.abs(mean - reference.mean) / reference.sd
    return Errors(float(distance.max()), float(ratio.min()), float(ratio.max()))


def compared(
    x: Float[np.ndarray, "n q"],
    reference: Reference,
    weights: Float[np.ndarray, " n"] | None,
    k_hat: float,
    suffix: str = "",
) -> dict[str, float]:
    """The errors, and whether they and k̂ are within tolerance."""
    found = errors(x, reference, weights)
    passed = found.tolerable and k_hat <= K_HAT_TOLERANCE
    values = {"mean_error": found.mean, "sd_error": found.sd, "passed": float(passed)}
    return {f"{name}{suffix}": value for name, value in values.items()}


def floors(draws: Float[np.ndarray, "m q"], n: int, *, key: PRNGKeyArray) -> dict[str, float]:
    """The mean errors of n exact draws against a reference of its size, by resampling the reference."""
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    known = Reference.of(draws).known
    found = []
    for _ in range(FLOOR_REPLICATES):
        reference = Reference.of(rng.choice(draws, len(draws)))._replace(known=known)
        found.append(errors(rng.choice(draws, n), reference))
    return {
        "mean_floor": float(np.mean([f.mean for f in found])),
        "sd_floor": float(np.mean([f.sd for f in found])),
    }
