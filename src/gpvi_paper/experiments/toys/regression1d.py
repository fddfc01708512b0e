"""One-dimensional regression with a gap in the data (the paper's Fig. 1)."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from gpvi import bnn
from gpvi.methods import HMC
from gpvi.progress import Meter
from gpvi.solvers.helper import Helper
from gpvi_paper.experiments.base import Labelled, Measurements, Metric, Published, Table
from gpvi_paper.experiments.toys import toy_networks as toys
from gpvi_paper.experiments.toys.toy_networks import NetworkRecipe, Problem, Reference, View
from gpvi_paper.records import Record

NOISE_VARIANCE = 0.04
OUTER, INNER = 76, 4
"""Data in [−6, −2] ∪ [2, 6], and in [−2, 2]."""
GAP, EDGE = 2.0, 6.0
TEST = 200
SIZES, ACTIVATION = (1, 50, 1), "relu"
GRID = np.linspace(-7.0, 7.0, 71)
STEPS = {"paper": 50_000, "best": 12_000, "demo": 3_000, "smoke": 20}
_LONG = HMC(chains=96, leapfrogs=256, warmup=400, draws=80, thin=10, acceptance=0.8)
REFERENCES = {
    "paper": _LONG,
    "best": _LONG,
    "demo": HMC(chains=32, leapfrogs=128, warmup=400, draws=60, thin=10, acceptance=0.8),
    "smoke": toys.REFERENCES["smoke"],
}
"""The noise is a thirtieth of the signal, so that steps are small and trajectories long."""
HELPER = Helper(width=100, learning_rate=1e-4)


def truth(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """−(1 + x) sin(1.2 x)."""
    return -(1 + x) * np.sin(1.2 * x)


def drawn(outer: int, inner: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, as many as asked on either side of the gap and in it, and noisy outputs."""
    sides = rng.uniform(GAP, EDGE, outer) * rng.choice([-1.0, 1.0], outer)
    x = np.concatenate([sides, rng.uniform(-GAP, GAP, inner)])
    return x[:, None], truth(x) + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(len(x))


@functools.cache
def problem(seed: int = 0) -> Problem:
    """The data, as many new ones from where most of them lie, and a network."""
    rng = np.random.default_rng(seed)
    return Problem(
        bnn.mlp(SIZES, ACTIVATION),
        bnn.Gaussian(noise=math.sqrt(NOISE_VARIANCE)),
        *drawn(OUTER, INNER, rng),
        *drawn(TEST, 0, rng),
        GRID[:, None],
    )


@functools.cache
def known(preset: str, directory: Path | None) -> Reference:
    """The reference, once for each process, and once for all that keep it in one directory."""
    return toys.reference(problem(), REFERENCES[preset], False, directory)


def in_gap(x: np.ndarray) -> np.ndarray:
    """The gap, with only four data."""
    return np.abs(x) < GAP


def in_range(x: np.ndarray) -> np.ndarray:
    """The range of the other 76."""
    return (np.abs(x) >= GAP) & (np.abs(x) <= EDGE)


class GappedRegression:
    """Figure 1."""

    name = "regression1d"
    title = "One-dimensional regression with a gap"
    source = "Figure 1"
    summary = (
        f"{OUTER} data in [−6, −2] ∪ [2, 6] and {INNER} in [−2, 2] of y = −(1 + x) sin(1.2 x) with noise of variance "
        f"{NOISE_VARIANCE}, known to the likelihood, with the same data for every seed. The text does not say which "
        f"network is fitted: here {'-'.join(map(str, SIZES))} with {ACTIVATION}, weights N(0, 1) a priori, temperature "
        "1 under every preset. The paper shows only pictures; here predictions are compared with long Hamiltonian "
        f"Monte Carlo in many chains. paper has the published generator, λ = 1 and layers of 32 and 32, and Adam at a "
        f"constant {toys.PAPER_LEARNING_RATE:g} for {STEPS['paper']:,} steps; with λ = 1 no weight is known better "
        "than ±1, too coarse for any network that fits these data. Bands are for the network's output, without noise."
    )
    cases: Mapping[str, str] = MappingProxyType({"": "posterior of the network"})
    metrics = (
        Metric(
            "w1",
            "W₁",
            "Wasserstein distance of the network's output from the reference's, in its sd, mean over [−7, 7]",
            floor="w1_floor",
            better="lower",
        ),
        Metric(
            "w1_floor",
            "W₁ floor",
            "distance of the same number of networks from one half of the reference's chains to the other half",
        ),
        Metric(
            "mean_error",
            "mean",
            "|mean − reference's| in its sd, mean over [−7, 7]",
            better="lower",
        ),
        Metric(
            "sd_correlation",
            "corr of sd",
            "correlation over [−7, 7] of the sd with the reference's",
            better="higher",
        ),
        Metric("sd_range", "sd in range", "mean sd where 2 ≤ |x| ≤ 6", floor="sd_range_reference"),
        Metric("sd_gap", "sd in gap", "mean sd where |x| < 2", floor="sd_gap_reference"),
        Metric("sd_range_reference", "sd in range", "that of the reference"),
        Metric("sd_gap_reference", "sd in gap", "that of the reference"),
        Metric(
            "nll",
            "test NLL",
            f"negative log-likelihood of {TEST} new data in [−6, −2] ∪ [2, 6]",
            floor="nll_reference",
            better="lower",
        ),
        Metric("nll_reference", "NLL of reference", "that of the reference"),
        *toys.DENSITY_METRICS,
    )
    tables = (
        Table(
            "Predictions compared with long chains",
            ("w1", "mean_error", "sd_correlation", "sd_range", "sd_gap", "nll", "seconds"),
            "In a row of exact draws, W₁ is the floor, and sd and NLL are those of the reference.",
        ),
        Table(
            "The bound, for methods with a density",
            ("elbo", "k_hat", "fold"),
            "All of these cover one of very many symmetric modes, which is why no k̂ is small.",
        ),
    )
    headline = ("w1", "nll")
    published: Mapping[str, Mapping[str, Published]] = MappingProxyType({})

    def __init__(self, directory: Path | None = None):
        self.directory = directory

    def keeping(self, directory: Path) -> "GappedRegression":
        """With a directory for the reference."""
        return GappedRegression(directory)

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """`paper` has the published ones; `smoke` those of best with hardly a step."""
        if preset != "paper":
            recipes = {
                label: toys.recommended(method, STEPS[preset], preset)
                for label, method in toys.methods(toys.size(SIZES)).items()
            }
            mixtures = toys.mixtures(toys.size(SIZES), STEPS[preset], preset)
            return recipes | mixtures | {toys.REFERENCE: NetworkRecipe(REFERENCES[preset])}
        methods = toys.published_methods(latent=32, hidden=(32, 32), helper=HELPER)
        return {
            label: toys.as_published(method, STEPS["paper"]) for label, method in methods.items()
        }

    def run(
        self, label: str, preset: str, seeds: Sequence[int], progress: bool | Meter = True
    ) -> Record:
        """Train all seeds side by side, and compare with the reference."""
        found = Measurements(self, label, preset, seeds)
        given, long = problem(), known(preset, self.directory)
        meter = Labelled(progress, f"{self.name} · {label}")
        for seed, posteriors, reference in toys.rows(given, found.recipe, long, seeds, meter):
            found.follow(posteriors[0].training)
            view = given.view(posteriors, seed)
            floor = toys.floor(given, long, toys.networks(posteriors[0]))
            seconds = posteriors[0].training.seconds
            found.add(measured(view, reference) | {"w1_floor": floor, "seconds": seconds})
            found.add(toys.with_density(posteriors, seed))
            if seed == seeds[0] and label != toys.REFERENCE:
                found.arrays.update(pictured(given, reference, view))
        return found.record()


def measured(view: View, known: View) -> dict[str, float]:
    """All distances of one seed."""
    return {
        "w1": toys.distance(view, known),
        "mean_error": float((np.abs(view.mean - known.mean)[:, 0] / known.sd).mean()),
        "sd_correlation": toys.correlation(view.sd, known.sd),
        "sd_range": float(view.sd[in_range(GRID)].mean()),
        "sd_gap": float(view.sd[in_gap(GRID)].mean()),
        "sd_range_reference": float(known.sd[in_range(GRID)].mean()),
        "sd_gap_reference": float(known.sd[in_gap(GRID)].mean()),
        "nll_reference": known.loss["nll"],
        **view.loss,
    }


def pictured(given: Problem, reference: View, view: View) -> dict[str, np.ndarray]:
    """What a band needs: the grid, mean and sd of the method and of the reference, the truth and the data."""
    return {
        "grid": GRID,
        "mean": np.round(view.mean[:, 0], 3),
        "sd": np.round(view.sd, 3),
        "reference_mean": np.round(reference.mean[:, 0], 3),
        "reference_sd": np.round(reference.sd, 3),
        "truth": np.round(truth(GRID), 3),
        "data": np.round(np.stack([given.inputs[:, 0], given.outputs], 1), 3),
    }
