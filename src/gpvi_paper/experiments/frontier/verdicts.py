"""The verdict against the truth, on densities whose answers are known.

A fit is right if log Z is within .1 nats, no mode of 2 % or more is missing, every median is within .2 interquartile
ranges, and every interquartile range within 20 %. A verdict is wrong if it says "good" of a fit that is not right.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

import gpvi
from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.errors import GPVIError
from gpvi_paper.experiments.base import (
    Metric,
    Recipe,
    Results,
    Table,
    higher,
    lower,
    seconds,
)
from gpvi_paper.experiments.frontier.base import DENSITIES, OnDensities
from gpvi_paper.experiments.frontier.densities import Known

LOG_EVIDENCE_TOLERANCE = 0.1
MEDIAN_TOLERANCE, RANGE_TOLERANCE = 0.2, 0.2
QUARTILES, SLACK = np.array([0.25, 0.5, 0.75]), 0.02
"""Of two modes with equal shares the median lies anywhere between: quantiles may belong to levels this much apart."""
LARGE_MODE, LOST = 0.02, 0.1
"""A mode of at least this share is missing if the draws have less than this part of it."""
DRAWS, EXACT_DRAWS = 20_000, 40_000


class Comparison(NamedTuple):
    """How far draws are from the truth."""

    log_evidence: float
    """The error of log Z; NaN for a method that does not estimate it."""
    median: float
    """The largest |error of a median|, in interquartile ranges."""
    spread: float
    """The largest |relative error of an interquartile range|."""
    lost: float
    """The share of the posterior in modes that are missing."""
    shares: float
    """The total variation between the shares of the modes."""

    @property
    def right(self) -> bool:
        """Whether all errors are within the tolerances; an error of log Z that is unknown does not count."""
        evidence = np.isnan(self.log_evidence) or abs(self.log_evidence) <= LOG_EVIDENCE_TOLERANCE
        moments = self.median <= MEDIAN_TOLERANCE and self.spread <= RANGE_TOLERANCE
        return bool(evidence and moments and self.lost == 0)


def compared(
    known: Known, draws: Float[np.ndarray, "n d"], log_evidence: float | None, seed: int
) -> Comparison:
    """Compare draws, and log Z, with exact draws."""
    exact = known.draw(np.random.default_rng(seed), EXACT_DRAWS)
    own = np.quantile(draws, QUARTILES, axis=0)
    low, true, high = (np.quantile(exact, QUARTILES + by, axis=0) for by in (-SLACK, 0, SLACK))
    width, spread = true[2] - true[0], own[2] - own[0]
    shift = np.maximum(low[1] - own[1], own[1] - high[1])
    stretch = np.maximum(low[2] - high[0] - spread, spread - (high[2] - low[0]))
    own_modes, modes = known.modes(draws), known.modes(exact)
    count = int(max(own_modes.max(), modes.max())) + 1
    own_share, share = (np.bincount(m, minlength=count) / len(m) for m in (own_modes, modes))
    missing = (share >= LARGE_MODE) & (own_share < LOST * share)
    return Comparison(
        np.nan if log_evidence is None else log_evidence - known.log_evidence,
        float(np.max(np.maximum(shift, 0) / width)),
        float(np.max(np.maximum(stretch, 0) / width)),
        float(share[missing].sum()),
        float(0.5 * np.abs(own_share - share).sum()),
    )


class Frontier(OnDensities[Recipe]):
    """Every density by GPVI, by tempered particles and by NUTS."""

    name = "frontier"
    title = "The verdict against the truth"
    source = "public benchmark densities, and our own; beyond the experiments"
    summary = (
        "Densities with known answers, most of them hard: several modes, heavy tails, necks, filaments, walls. Each "
        "method is gpvi.fit(target, method) with default settings in float32. A fit is right if log Z is within .1 "
        "nats, no mode of 2 % or more is missing, medians are within .2 interquartile ranges and these within 20 %. "
        "A verdict misleads if it says good of a fit that is not right."
    )
    metrics = (
        higher("right", "right", "log Z, modes, medians and ranges within tolerances", "yes or no"),
        higher("good", "said good", "whether the verdict is good", "yes or no"),
        lower("misled", "misled", "whether it is good and the fit is not right", "yes or no"),
        lower("doubted", "doubted", "whether the fit is right and not called good", "yes or no"),
        Metric("log_evidence_error", "log Z", "log Z less the truth"),
        lower("median_error", "median error", "the largest, in interquartile ranges"),
        lower("range_error", "range error", "the largest of an interquartile range", "share"),
        lower("lost", "lost", "the share of the posterior in modes that are missing", "share"),
        lower("mode_distance", "TV of modes", "total variation between shares of modes"),
        higher("ess", "ESS", "effective share of the draws by importance weights", "share"),
        Metric("explored_error", "explored log Z", "log Z by the islands, less the truth"),
        Metric("explored_se", "its s.e.", "its standard error"),
        lower("explored_gradients", "explored gradients", "gradients that exploration took"),
        lower("gradients", "gradients", "gradients that the method itself took"),
        seconds("from the density to the verdict, including compilation"),
        lower("cpu_seconds", "CPU s", "processor time of the same, over all cores", "seconds"),
    )
    tables = (
        Table(
            "Verdict and truth",
            ("right", "good", "misled", "doubted", "log_evidence_error", "median_error", "lost"),
            "Shares over the seeds; errors are the largest over the coordinates.",
        ),
        Table(
            "What the islands found, and what it cost",
            ("explored_error", "explored_se", "ess", "explored_gradients", "gradients", "seconds"),
            "Gradients are evaluations of log p and its gradient at one point.",
        ),
    )

    def recipes(self, preset: str) -> dict[str, Recipe]:
        """The same rows under `best` and, shortened, under `smoke`; the paper has none."""
        if preset == "best":
            return {
                "GPVI (default)": Recipe(gpvi.GPVI()),
                "SMC": Recipe(gpvi.SMC()),
                "NUTS": Recipe(gpvi.NUTS()),
            }
        if preset == "smoke":
            chains = gpvi.NUTS(chains=4, warmup=100, draws=100)
            return {
                "GPVI (default)": Recipe(gpvi.GPVI(), steps=200),
                "SMC": Recipe(gpvi.SMC(particles=64)),
                "NUTS": Recipe(chains),
            }
        return {}

    def measured(self, results: Results[Recipe], case: str, seed: int) -> dict[str, float]:
        """Fit once, and compare verdict and draws with the truth."""
        try:
            return fitted(results, case, seed)
        except GPVIError as error:
            results.note(f"{case}, seed {seed}: {error}")
            return {"right": 0.0, "good": 0.0, "misled": 0.0, "doubted": 0.0}


def fitted(results: Results[Recipe], case: str, seed: int) -> dict[str, float]:
    """Fit once, and measure."""
    known = DENSITIES[case][1]()
    key = jax.random.fold_in(jax.random.key(seed), list(DENSITIES).index(case))
    fit_key, verdict_key, draw_key = jax.random.split(key, 3)
    jax.clear_caches()
    began, busy = time.perf_counter(), time.process_time()
    posterior = results.recipe.fit(known.target(), key=fit_key, progress=False, checkpoint=None)
    diagnosis = posterior.diagnose(key=verdict_key)
    spent = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - busy,
        "gradients": gradients(posterior),
    }
    results.follow(posterior.training, case)
    results.note(f"{case}, seed {seed}: {diagnosis.verdict.level}: {diagnosis.verdict.reason}")
    truth = compared(known, _draws(posterior, key=draw_key), diagnosis.log_evidence, seed)
    return spent | _values(truth, diagnosis, known)


def _values(truth: Comparison, diagnosis: Diagnosis, known: Known) -> dict[str, float]:
    good, right = diagnosis.verdict.level == "good", truth.right
    values: dict[str, Any] = {
        "right": right,
        "good": good,
        "misled": good and not right,
        "doubted": right and not good,
        "log_evidence_error": truth.log_evidence,
        "median_error": truth.median,
        "range_error": truth.spread,
        "lost": truth.lost,
        "mode_distance": truth.shares,
    }
    if diagnosis.effective_share is not None:
        values["ess"] = diagnosis.effective_share
    explored = diagnosis.explored
    if explored is not None:
        values |= {
            "explored_error": explored.log_evidence - known.log_evidence,
            "explored_se": explored.se,
            "explored_gradients": explored.gradients,
        }
    return {name: float(value) for name, value in values.items()}


def _draws(posterior: gpvi.Posterior, *, key: PRNGKeyArray) -> Float[np.ndarray, "n d"]:
    """Draws of a generator; all that there are of particles and chains."""
    generative = posterior.method.generative
    return np.asarray(
        posterior.sample(DRAWS, key=key) if generative else posterior.particles, float
    )


def gradients(posterior: gpvi.Posterior) -> float:
    """The gradients of log p that training took, the search for a start and exploration aside."""
    training = posterior.training
    counted = training.gradients
    return float(training.history["gradients"][-1] if counted is None else counted)
