"""Networks of ten and ten hidden units on Gaussian classes in the plane (the paper's Fig. 2 and its appendix)."""

import functools
import math

import numpy as np

from gpvi import bnn
from gpvi.solvers import Helper
from gpvi_paper.experiments.base import Metric, Table, higher, lower
from gpvi_paper.experiments.toys import recipes, toy_networks
from gpvi_paper.experiments.toys.recipes import NetworkRecipe
from gpvi_paper.experiments.toys.toy_networks import Problem, ToyNetworks, View

CENTRES = {
    2: ((-2.0, -2.0), (2.0, 2.0)),
    4: ((-2.0, -2.0), (-2.0, 2.0), (2.0, -2.0), (2.0, 2.0)),
}
VARIANCE = 0.3
TRAINING, TEST = 100, 200
HIDDEN = (10, 10)
HALF_WIDTH, SIDE = 10.0, 40
"""Predictions are compared on a grid of 40 × 40 points over [−10, 10]²."""
STEPS = {"paper": 20_000, "authors": 20_000, "best": 12_000, "demo": 3_000, "smoke": 20}
PUBLISHED_STEPS = 500_000
AUTHORS_TEMPERATURE = 1e4
"""Their losses are means over 100 data and 100 particles."""
BLUNDELL = bnn.ScaleMixture(share=0.5, wide=1.0, narrow=math.exp(-6))
"""The published prior of MF-VI."""
HELPER = Helper(width=544, learning_rate=1e-4)


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


class Classification(ToyNetworks):
    """Gaussian classes in the plane, as many as `classes`."""

    metrics = (
        lower(
            "tv",
            "TV",
            "total variation between the predictive distribution and the reference's, mean over the grid",
            floor="tv_floor",
        ),
        Metric(
            "tv_floor",
            "TV floor",
            "distance of the same number of networks from one half of the reference's chains to the other half",
        ),
        higher(
            "sd_correlation",
            "corr of sd",
            "correlation over the grid of the predictive sd with the reference's",
        ),
        Metric("sd", "sd", "predictive sd between networks, mean over the grid and the classes"),
        Metric("sd_reference", "sd of reference", "that of the reference"),
        lower(
            "nll",
            "test NLL",
            f"negative log-likelihood of {TEST} new data, in nats",
            floor="nll_reference",
        ),
        Metric("nll_reference", "NLL of reference", "that of the reference"),
        higher("accuracy", "accuracy", f"on {TEST} new data", "share"),
        *toy_networks.DENSITY_METRICS,
    )
    tables = (
        Table(
            "Predictions compared with long chains",
            ("tv", "sd_correlation", "sd", "nll", "accuracy", "seconds"),
            f"Over a grid of {SIDE} × {SIDE} points of [−10, 10]², most of it far from any datum. Generators predict "
            f"with {toy_networks.FRESH:,} new networks, particle methods with their {recipes.PARTICLES}.",
        ),
        Table(
            "The bound, for methods with a density",
            ("elbo", "k_hat", "fold"),
            "All of these cover one of very many symmetric modes, which is why no k̂ is small; ELBOs are comparable on "
            "one data set. It is omitted if the temperature is not 1: it would bound another evidence.",
        ),
    )
    headline = ("tv", "nll")

    def __init__(self, classes: int):
        self.classes = classes
        self.name = f"classification{classes}"
        self.title = f"{'Four' if classes == 4 else 'Two'} Gaussian classes in the plane"
        self.source = "Figure 2" if classes == 4 else "Appendix, two-class figure"
        self.size = toy_networks.size((2, *HIDDEN, classes))
        self.summary = (
            f"{TRAINING} data of {classes} Gaussian classes of variance {VARIANCE}, the same for every seed, and "
            f"a 2-10-10-{classes} network with ReLU, {self.size} weights. The paper only shows pictures of the "
            "predictive sd, from which no number can be read; here predictions are compared with a long run of "
            "Hamiltonian Monte Carlo in 128 chains. best, demo and that reference use the posterior itself, "
            "temperature 1 and an N(0, 1) prior, and so does paper: the published recipe, Adam at a constant "
            f"{recipes.PAPER_LEARNING_RATE:g}, with λ = {recipes.SCALE} in place of 1, which no network that tells the "
            f"classes apart can have, {STEPS['paper']:,} steps instead of {PUBLISHED_STEPS:,}, and MF-VI with its "
            "published scale mixture as prior. authors is what their code does: noise of the dimension of the "
            f"weights, no term λz, and a temperature of {AUTHORS_TEMPERATURE:g}, since their losses are means over "
            "data and particles; its rows are compared with the posterior at temperature 1 as well."
        )

    def problem(self) -> Problem:
        """The problem with this number of classes."""
        return problem(self.classes)

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """The published ones for `paper` and `authors`; those of `best` for the others, few steps for `smoke`."""
        if preset == "paper":
            methods = recipes.published_methods(latent=64, hidden=(64, 64), helper=HELPER)
            return {
                label: recipes.as_published(
                    method,
                    STEPS["paper"],
                    prior=BLUNDELL if label == "MF-VI" else bnn.StandardNormal(),
                )
                for label, method in methods.items()
            }
        if preset == "authors":
            return {
                label: recipes.as_published(
                    method, STEPS["authors"], temperature=AUTHORS_TEMPERATURE
                )
                for label, method in recipes.authors_methods(hidden=(64, 64), helper=HELPER).items()
            }
        methods, steps, mixture = recipes.methods(self.size), STEPS[preset], {}
        if self.classes == 4:
            methods |= recipes.variants(self.size)
            mixture = recipes.mixture(self.size, steps, preset)
        reference = {recipes.REFERENCE: NetworkRecipe(self.references[preset])}
        return recipes.recommended(methods, steps, preset) | mixture | reference

    def compared(self, view: View, reference: View) -> dict[str, float]:
        """TV, the predictive sd, and the losses on new data."""
        return {
            "tv": toy_networks.distance(view, reference),
            "sd_correlation": toy_networks.correlation(view.sd, reference.sd),
            "sd": float(view.sd.mean()),
            "sd_reference": float(reference.sd.mean()),
            "nll_reference": reference.loss["nll"],
            **view.loss,
        }

    def pictured(self, view: View, reference: View) -> dict[str, np.ndarray]:
        """The maps of the predictive sd, rows along the second coordinate, and the data."""
        data = self.problem()
        return {
            "map": np.round(view.sd.reshape(SIDE, SIDE), 3),
            "reference_map": np.round(reference.sd.reshape(SIDE, SIDE), 3),
            "inputs": np.round(data.inputs, 2),
            "labels": data.outputs,
            "half_width": np.array(HALF_WIDTH),
        }


class FourClasses(Classification):
    """Figure 2."""

    def __init__(self):
        super().__init__(4)


class TwoClasses(Classification):
    """The easier figure of the appendix."""

    def __init__(self):
        super().__init__(2)
