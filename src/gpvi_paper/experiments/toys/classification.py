"""Networks of ten and ten hidden units on Gaussian classes in the plane (the paper's Fig. 2 and its appendix)."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from gpvi import bnn
from gpvi.progress import Meter
from gpvi.solvers.helper import Helper
from gpvi_paper.experiments.base import Labelled, Measurements, Metric, Published, Table
from gpvi_paper.experiments.toys import toy_networks as toys
from gpvi_paper.experiments.toys.toy_networks import NetworkRecipe, Problem, Reference, View
from gpvi_paper.records import Record

CENTRES = {
    2: ((-2.0, -2.0), (2.0, 2.0)),
    4: ((-2.0, -2.0), (-2.0, 2.0), (2.0, -2.0), (2.0, 2.0)),
}
VARIANCE = 0.3
TRAINING, TEST = 100, 200
HIDDEN = (10, 10)
HALF_WIDTH, SIDE = 10.0, 40
"""Predictions are compared on a grid of 40 × 40 points over [−10, 10]²."""
STEPS = {"paper": 20_000, "best": 12_000, "demo": 3_000, "smoke": 20}
PUBLISHED_STEPS = 500_000
PAPER_TEMPERATURE = 1e4
"""The authors' losses are means over 100 data and 100 particles."""
BLUNDELL = bnn.ScaleMixture(share=0.5, wide=1.0, narrow=math.exp(-6))
"""The published prior of MF-VI."""
HELPER = Helper(width=544, learning_rate=1e-4)
AT_TEMPERATURE_ONE = ("MF-VI", "HMC")
"""Of the published rows, those whose objective has no such mean."""


def grid() -> np.ndarray:
    """The points of the grid; the first coordinate runs fastest."""
    axis = np.linspace(-HALF_WIDTH, HALF_WIDTH, SIDE)
    return np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)


@functools.cache
def problem(classes: int, seed: int = 0) -> Problem:
    """Each class a Gaussian of variance 0.3 around its centre, and a network 2-10-10-classes."""
    rng = np.random.default_rng(seed)
    centres = np.array(CENTRES[classes])

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, classes, n)
        return centres[labels] + math.sqrt(VARIANCE) * rng.standard_normal((n, 2)), labels

    network = bnn.mlp((2, *HIDDEN, classes))
    return Problem(network, bnn.Categorical(), *drawn(TRAINING), *drawn(TEST), grid())


@functools.cache
def known(classes: int, preset: str, directory: Path | None) -> Reference:
    """The reference, once for each process, and once for all that keep it in one directory."""
    return toys.reference(problem(classes), toys.REFERENCES[preset], False, directory)


class Classification:
    """Figure 2 (four classes) and its easier variant (two)."""

    cases: Mapping[str, str] = MappingProxyType({"": "posterior of the network"})
    metrics = (
        Metric(
            "tv",
            "TV",
            "total variation between the predictive distribution and the reference's, mean over the grid",
            floor="tv_floor",
            better="lower",
        ),
        Metric(
            "tv_floor",
            "TV floor",
            "distance of the same number of networks from one half of the reference's chains to the other half",
        ),
        Metric(
            "sd_correlation",
            "corr of sd",
            "correlation over the grid of the predictive sd with the reference's",
            better="higher",
        ),
        Metric("sd", "sd", "predictive sd between networks, mean over the grid and the classes"),
        Metric("sd_reference", "sd of reference", "that of the reference"),
        Metric(
            "nll",
            "test NLL",
            f"negative log-likelihood of {TEST} new data, in nats",
            floor="nll_reference",
            better="lower",
        ),
        Metric("nll_reference", "NLL of reference", "that of the reference"),
        Metric("accuracy", "accuracy", f"on {TEST} new data", "share", better="higher"),
        *toys.DENSITY_METRICS,
    )
    tables = (
        Table(
            "Predictions compared with long chains",
            ("tv", "sd_correlation", "sd", "nll", "accuracy", "seconds"),
            f"Over a grid of {SIDE} × {SIDE} points of [−10, 10]², most of it far from any datum. Generators predict "
            f"with {toys.FRESH:,} new networks, particle methods with their {toys.PARTICLES}.",
        ),
        Table(
            "The bound, for methods with a density",
            ("elbo", "k_hat", "fold"),
            "All of these cover one of very many symmetric modes, which is why no k̂ is small; ELBOs are comparable on "
            "one data set. It is omitted if the temperature is not 1: it would bound another evidence.",
        ),
    )
    headline = ("tv", "nll")
    published: Mapping[str, Mapping[str, Published]] = MappingProxyType({})

    def __init__(self, classes: int, directory: Path | None = None):
        self.classes = classes
        self.directory = directory
        self.name = f"classification{classes}"
        self.title = f"{'Four' if classes == 4 else 'Two'} Gaussian classes in the plane"
        self.source = "Figure 2" if classes == 4 else "Appendix, two-class figure"
        self.size = toys.size((2, *HIDDEN, classes))
        self.summary = (
            f"{TRAINING} data of {classes} Gaussian classes of variance {VARIANCE}, the same for every seed, and "
            f"a 2-10-10-{classes} network with ReLU, {self.size} weights. The paper only shows pictures of the "
            "predictive sd, from which no number can be read; here predictions are compared with a long run of "
            "Hamiltonian Monte Carlo in 128 chains. best, demo and that reference use the posterior itself, "
            "temperature 1 and an N(0, 1) prior. paper is the published recipe: λ = 1, Adam at a constant "
            f"{toys.PAPER_LEARNING_RATE:g}, except for {STEPS['paper']:,} steps instead of {PUBLISHED_STEPS:,}, which "
            "would take an exact Jacobian six hours on a CPU core; the authors' temperature of "
            f"{PAPER_TEMPERATURE:g} (their losses are means over data and particles) for all but MF-VI, which "
            "has its published scale mixture as prior, and HMC; its rows are compared with the posterior at "
            "temperature 1 as well."
        )

    def keeping(self, directory: Path) -> "Classification":
        """With a directory for the reference."""
        return Classification(self.classes, directory)

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """The published ones for `paper`; those of `best` for the others, with only a few steps for `smoke`."""
        if preset != "paper":
            variants = toys.variants(self.size) if self.classes == 4 else {}
            recipes = {
                label: toys.recommended(method, STEPS[preset], preset)
                for label, method in (toys.methods(self.size) | variants).items()
            }
            mixtures = toys.mixtures(self.size, STEPS[preset], preset) if self.classes == 4 else {}
            return recipes | mixtures | {toys.REFERENCE: NetworkRecipe(toys.REFERENCES[preset])}
        methods = toys.published_methods(latent=64, hidden=(64, 64), helper=HELPER)
        return {
            label: toys.as_published(
                method,
                STEPS["paper"],
                prior=BLUNDELL if label == "MF-VI" else bnn.StandardNormal(),
                temperature=1.0 if label in AT_TEMPERATURE_ONE else PAPER_TEMPERATURE,
            )
            for label, method in methods.items()
        }

    def run(
        self, label: str, preset: str, seeds: Sequence[int], progress: bool | Meter = True
    ) -> Record:
        """Train all seeds side by side, and compare with the reference."""
        found = Measurements(self, label, preset, seeds)
        given, recipe = problem(self.classes), found.recipe
        long = known(self.classes, preset, self.directory)
        meter = Labelled(progress, f"{self.name} · {label}")
        for seed, posteriors, reference in toys.rows(given, recipe, long, seeds, meter):
            found.follow(posteriors[0].training)
            view = given.view(posteriors, seed)
            floor = toys.floor(given, long, toys.networks(posteriors[0]))
            seconds = posteriors[0].training.seconds
            found.add(measured(view, reference) | {"tv_floor": floor, "seconds": seconds})
            if recipe.temperature == 1.0:
                found.add(toys.with_density(posteriors, seed))
            if seed == seeds[0] and label != toys.REFERENCE:
                found.arrays.update(pictured(given, reference, view))
        return found.record()


def measured(view: View, reference: View) -> dict[str, float]:
    """All distances of one seed."""
    return {
        "tv": toys.distance(view, reference),
        "sd_correlation": toys.correlation(view.sd, reference.sd),
        "sd": float(view.sd.mean()),
        "sd_reference": float(reference.sd.mean()),
        "nll_reference": reference.loss["nll"],
        **view.loss,
    }


def pictured(given: Problem, reference: View, view: View) -> dict[str, np.ndarray]:
    """The maps of the predictive sd, rows along the second coordinate, and the data."""
    return {
        "map": np.round(view.sd.reshape(SIDE, SIDE), 3),
        "reference_map": np.round(reference.sd.reshape(SIDE, SIDE), 3),
        "inputs": np.round(given.inputs, 2),
        "labels": given.outputs,
        "half_width": np.array(HALF_WIDTH),
    }
