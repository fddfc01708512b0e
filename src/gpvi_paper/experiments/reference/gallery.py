"""PyMC models as they are: ten of them by `gpvi.fit`, against long runs of `pm.sample`.

A fit passes if every mean, of variables and deterministics, is within 0.05 reference standard deviations of that of
`pm.sample`, or within 3.5 Monte-Carlo standard errors of the two together where these are larger.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

import gpvi
from gpvi.errors import GPVIError, quietly
from gpvi_paper.experiments.base import (
    KeepsReference,
    Metric,
    Recipe,
    Results,
    RunsCases,
    Table,
    higher,
    lower,
    seconds,
)
from gpvi_paper.experiments.reference.gallery_models import MODELS, build

DRAWS = {"best": 10_000, "smoke": 1_000}
CHAINS = 4
SAMPLES = {"best": 2_500, "smoke": 200}
"""The draws of each chain of the reference."""
TUNING = {"best": 1_000, "smoke": 200}
SMOKE_CASES = ("linear",)
MEAN_TOLERANCE, ERRORS_TOLERATED = 0.05, 3.5


class PyMCGallery(KeepsReference[Recipe], RunsCases[Recipe]):
    """Every model of `gallery_models` by each recipe."""

    name = "gallery"
    title = "Ten PyMC models against pm.sample"
    source = "models in the style of PyMC's example gallery, beyond the experiments"
    summary = (
        "gpvi.Target.from_pymc(model) of ten unchanged models on simulated data, and gpvi.fit(target) with default "
        "settings. The reference is pm.sample with four chains of 1,000 + 2,500 draws and target_accept=0.95. A fit "
        "passes if every mean is within 0.05 standard deviations of the reference, or within 3.5 Monte-Carlo errors "
        "of the two together."
    )
    cases = MappingProxyType({name: title for name, (title, _) in MODELS.items()})
    metrics = (
        higher("passed", "passed", "every mean within its tolerance", "yes or no"),
        higher("labelled", "labelled", "variables, dims and coords as PyMC has them", "yes or no"),
        higher("good", "said good", "whether the verdict of diagnose is good", "yes or no"),
        lower("k_hat", "k̂", "Pareto shape of the importance ratios"),
        lower("mean_error", "mean error", "the largest |mean − reference|, in standard deviations"),
        lower("excess", "of tolerance", "the largest error of a mean as a share of its tolerance"),
        lower("sd_error", "sd error", "the largest |log(sd / reference sd)|"),
        seconds("from the model to the fit, including compilation"),
        Metric("reference_seconds", "s, pm.sample", "the reference's, including compilation"),
        Metric("reference_rhat", "R̂, pm.sample", "the largest R̂ of the reference"),
    )
    tables = (
        Table(
            "Agreement with pm.sample",
            ("passed", "labelled", "good", "mean_error", "excess", "sd_error", "seconds"),
            "Errors are the largest over all variables and deterministics. Seconds count compilation.",
        ),
    )

    def recipes(self, preset: str) -> dict[str, Recipe]:
        """The default and chains, and for `smoke` short ones; the paper has none."""
        if preset not in DRAWS:
            return {}
        steps = 200 if preset == "smoke" else None
        chains = gpvi.NUTS(warmup=100, draws=100) if preset == "smoke" else gpvi.NUTS()
        return {"GPVI (default)": Recipe(gpvi.GPVI(), steps=steps), "NUTS": Recipe(chains)}

    def problems(self, label: str, preset: str) -> Sequence[str]:
        """The models; one of them under `smoke`."""
        every = SMOKE_CASES if preset == "smoke" else tuple(MODELS)
        return tuple(case for case in every if case in self.cases)

    def measure(self, results: Results[Recipe]) -> None:
        """Fit every model with every seed from a cold start, and compare with the reference."""
        blank = {metric.key: np.nan for metric in self.metrics}
        for case in self.problems(results.label, results.preset):
            reference = Reference.of(case, results.preset, self.directory)
            for seed in results.seeds:
                key = jax.random.fold_in(jax.random.key(seed), list(MODELS).index(case))
                try:
                    values = compared(results, case, reference, key=key)
                except GPVIError as error:
                    results.note(f"{case}, seed {seed}: {error}")
                    values = {"passed": 0.0}
                results.add(blank | values, case)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A long run of `pm.sample`."""

    posterior: Any
    """An xarray Dataset."""
    seconds: float

    @classmethod
    def of(cls, case: str, preset: str, directory: Path | None) -> "Reference":
        """Read from the directory if it is there, else sampled and kept."""
        import arviz
        import pymc as pm

        place = None if directory is None else directory / f"gallery.{preset}.{case}.nc"
        if place is not None and place.exists():
            posterior = arviz.from_netcdf(place)["posterior"]
            return cls(posterior, float(posterior.attrs["seconds"]))
        model, began = build(case), time.perf_counter()
        data = pm.sample(
            SAMPLES[preset],
            tune=TUNING[preset],
            chains=CHAINS,
            cores=1,
            target_accept=0.95,
            random_seed=1,
            progressbar=False,
            model=model,
        )
        elapsed = time.perf_counter() - began
        data["posterior"].attrs["seconds"] = elapsed
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            arviz.InferenceData(posterior=data["posterior"]).to_netcdf(str(place))
        return cls(data["posterior"], elapsed)


class Moments(NamedTuple):
    """Means with their Monte-Carlo standard errors, and standard deviations, of all numbers of a draw."""

    mean: Float[np.ndarray, " q"]
    error: Float[np.ndarray, " q"]
    sd: Float[np.ndarray, " q"]


def compared(
    results: Results[Recipe], case: str, reference: Reference, *, key: PRNGKeyArray
) -> dict[str, float]:
    """Fit once, and measure."""
    fit_key, draw_key, verdict_key = jax.random.split(key, 3)
    model = build(case)
    jax.clear_caches()
    began = time.perf_counter()
    with quietly():
        target = gpvi.Target.from_pymc(model)
    posterior = results.recipe.fit(target, key=fit_key, progress=False, checkpoint=None)
    elapsed = time.perf_counter() - began
    results.follow(posterior.training, case)
    diagnosis = posterior.diagnose(key=verdict_key)
    draws = posterior.to_arviz(
        key=draw_key, draws=DRAWS[results.preset], predictive=False, log_likelihood=False
    )["posterior"]
    names = sorted(reference.posterior.data_vars)
    ours, theirs = moments(draws, names), moments(reference.posterior, names)
    distance = np.abs(ours.mean - theirs.mean)
    tolerance = np.maximum(
        MEAN_TOLERANCE * theirs.sd, ERRORS_TOLERATED * np.hypot(ours.error, theirs.error)
    )
    varies = theirs.sd > 0
    return {
        "passed": float((distance <= tolerance).all()),
        "labelled": float(labels(draws) == labels(reference.posterior)),
        "good": float(diagnosis.verdict.level == "good"),
        "k_hat": float("nan" if diagnosis.k_hat is None else diagnosis.k_hat),
        "mean_error": float((distance / theirs.sd)[varies].max()),
        "excess": float((distance / tolerance)[varies].max()),
        "sd_error": float(np.abs(np.log(ours.sd / theirs.sd))[varies].max()),
        "seconds": elapsed,
        "reference_seconds": reference.seconds,
        "reference_rhat": largest_rhat(reference.posterior),
    }


def moments(posterior: Any, names: list[str]) -> Moments:
    """Of these variables."""
    import arviz

    parts = [posterior[name].values for name in names]
    flat = np.concatenate([each.reshape(*each.shape[:2], -1) for each in parts], axis=2)
    sd = flat.std((0, 1))
    ess = np.array([arviz.ess(flat[:, :, i], method="mean") for i in range(flat.shape[2])])
    return Moments(flat.mean((0, 1)), sd / np.sqrt(ess), sd)


def largest_rhat(posterior: Any) -> float:
    """Over all numbers of a draw."""
    import arviz

    found: Any = arviz.rhat(posterior)
    return max(float(values.max()) for values in found.values())


def labels(posterior: Any) -> dict[str, dict[str, list[str]]]:
    """Variable → axis → labels, without those of chains and draws."""
    return {
        name: {
            axis: [str(label) for label in values[axis].values]
            for axis in values.dims
            if axis not in ("chain", "draw")
        }
        for name, values in posterior.data_vars.items()
    }
