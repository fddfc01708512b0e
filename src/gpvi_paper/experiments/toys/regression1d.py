"""One-dimensional regression with a gap in the data (the paper's Fig. 1)."""

import functools
import math
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from gpvi import bnn
from gpvi.methods import HMC
from gpvi.solvers import Helper
from gpvi_paper.experiments.base import Metric, Table, higher, lower
from gpvi_paper.experiments.toys import recipes, toy_networks
from gpvi_paper.experiments.toys.recipes import NetworkRecipe
from gpvi_paper.experiments.toys.toy_networks import Problem, ToyNetworks, View

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
    "authors": _LONG,
    "best": _LONG,
    "demo": HMC(chains=32, leapfrogs=128, warmup=400, draws=60, thin=10, acceptance=0.8),
    "smoke": toy_networks.REFERENCES["smoke"],
}
"""The noise is a thirtieth of the signal, so that steps are small and trajectories long."""
HELPER = Helper(width=100, learning_rate=1e-4)


def truth(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """−(1 + x) sin(1.2 x)."""
    return -(1 + x) * np.sin(1.2 * x)


def drawn(outer: int, inner: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, `outer` of them beside the gap and `inner` in it, and noisy outputs."""
    sides = rng.uniform(GAP, EDGE, outer) * rng.choice([-1.0, 1.0], outer)
    x = np.concatenate([sides, rng.uniform(-GAP, GAP, inner)])
    return x[:, None], truth(x) + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(len(x))


@functools.cache
def problem(seed: int = 0) -> Problem:
    """The data, test data from the two outer intervals, and a network."""
    rng = np.random.default_rng(seed)
    return Problem(
        bnn.mlp(SIZES, ACTIVATION),
        bnn.Gaussian(noise=math.sqrt(NOISE_VARIANCE)),
        *drawn(OUTER, INNER, rng),
        *drawn(TEST, 0, rng),
        GRID[:, None],
    )


def in_gap(x: np.ndarray) -> np.ndarray:
    """Where x is in the gap, with only four data."""
    return np.abs(x) < GAP


def in_range(x: np.ndarray) -> np.ndarray:
    """Where x is in the range of the other 76 data."""
    return (np.abs(x) >= GAP) & (np.abs(x) <= EDGE)


class GappedRegression(ToyNetworks):
    """Figure 1."""

    name = "regression1d"
    title = "One-dimensional regression with a gap"
    source = "Figure 1"
    summary = (
        f"{OUTER} data in [−6, −2] ∪ [2, 6] and {INNER} in [−2, 2] of y = −(1 + x) sin(1.2 x) with noise of variance "
        f"{NOISE_VARIANCE}, known to the likelihood, with the same data for every seed. The text does not say which "
        f"network is fitted: here {'-'.join(map(str, SIZES))} with {ACTIVATION}, weights N(0, 1) a priori, temperature "
        "1 under every preset. The paper shows only pictures; here predictions are compared with long Hamiltonian "
        "Monte Carlo in many chains. paper has the published generator, layers of 32 and 32, and Adam at a "
        f"constant {recipes.PAPER_LEARNING_RATE:g} for {STEPS['paper']:,} steps, "
        f"with λ = {recipes.SCALE}: with the printed λ = 1 no weight is known better than ±1, too coarse for any "
        "network that fits these data (W₁ = 19). authors has noise of the dimension of the weights and no term λz. "
        "Bands are for the network's output, without noise."
    )
    references = MappingProxyType(REFERENCES)
    metrics = (
        lower(
            "w1",
            "W₁",
            "Wasserstein distance of the network's output from the reference's, in its sd, mean over [−7, 7]",
            floor="w1_floor",
        ),
        Metric(
            "w1_floor",
            "W₁ floor",
            "distance of the same number of networks from one half of the reference's chains to the other half",
        ),
        lower("mean_error", "mean", "|mean − reference's| in its sd, mean over [−7, 7]"),
        higher(
            "sd_correlation",
            "corr of sd",
            "correlation over [−7, 7] of the sd with the reference's",
        ),
        Metric("sd_range", "sd in range", "mean sd where 2 ≤ |x| ≤ 6", floor="sd_range_reference"),
        Metric("sd_gap", "sd in gap", "mean sd where |x| < 2", floor="sd_gap_reference"),
        Metric("sd_range_reference", "sd in range", "that of the reference"),
        Metric("sd_gap_reference", "sd in gap", "that of the reference"),
        lower(
            "nll",
            "test NLL",
            f"negative log-likelihood of {TEST} new data in [−6, −2] ∪ [2, 6]",
            floor="nll_reference",
        ),
        Metric("nll_reference", "NLL of reference", "that of the reference"),
        *toy_networks.DENSITY_METRICS,
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

    def problem(self) -> Problem:
        """The same data for every seed."""
        return problem()

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """The published ones for `paper`; those of `best` for the others, with only a few steps for `smoke`."""
        if preset == "paper":
            methods = recipes.published_methods(latent=32, hidden=(32, 32), helper=HELPER)
            return {
                label: recipes.as_published(method, STEPS["paper"])
                for label, method in methods.items()
            }
        if preset == "authors":
            authors = recipes.authors_methods(hidden=(32, 32), helper=HELPER)
            return {
                label: recipes.as_published(method, STEPS["paper"])
                for label, method in authors.items()
            }
        dim, steps = toy_networks.size(SIZES), STEPS[preset]
        rows = recipes.recommended(recipes.methods(dim), steps, preset)
        reference = {recipes.REFERENCE: NetworkRecipe(self.references[preset])}
        return rows | recipes.mixture(dim, steps, preset) | reference

    def compared(self, view: View, reference: View) -> dict[str, float]:
        """W₁, the errors of mean and sd, and the loss on new data."""
        return {
            "w1": toy_networks.distance(view, reference),
            "mean_error": float((np.abs(view.mean - reference.mean)[:, 0] / reference.sd).mean()),
            "sd_correlation": toy_networks.correlation(view.sd, reference.sd),
            "sd_range": float(view.sd[in_range(GRID)].mean()),
            "sd_gap": float(view.sd[in_gap(GRID)].mean()),
            "sd_range_reference": float(reference.sd[in_range(GRID)].mean()),
            "sd_gap_reference": float(reference.sd[in_gap(GRID)].mean()),
            "nll_reference": reference.loss["nll"],
            **view.loss,
        }

    def pictured(self, view: View, reference: View) -> dict[str, np.ndarray]:
        """What a band needs: the grid, mean and sd of the method and of the reference, the truth and the data."""
        data = self.problem()
        return {
            "grid": GRID,
            "mean": np.round(view.mean[:, 0], 3),
            "sd": np.round(view.sd, 3),
            "reference_mean": np.round(reference.mean[:, 0], 3),
            "reference_sd": np.round(reference.sd, 3),
            "truth": np.round(truth(GRID), 3),
            "data": np.round(np.stack([data.inputs[:, 0], data.outputs], 1), 3),
        }
