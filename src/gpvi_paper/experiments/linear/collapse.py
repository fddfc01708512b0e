r"""How SVGD's particles lose their variance as the dimension grows (beyond the paper).

With the median rule h = D / log n, D the median of the squared distances, the kernel between two particles that far
apart is exp(−D/h) = 1/n. Where all distances are equal, as they come to be in many dimensions, SVGD on N(0, I) stands
still when (2/h) x_i = (1 − 1/n) x_i for each particle, so that

    h = 2n/(n − 1),   D = h log n,   and the marginal variance is D/(2d) = n log n / ((n − 1) d):

the repulsion holds log n coordinates open, however many there are (Ba et al. 2022 study the same limit). The fixed
point is exact for a regular simplex, which has room where d ≥ n − 1; below log n dimensions it would exceed 1.
"""

import math
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

import gpvi
from gpvi_paper.experiments.base import Experiment, Metric, Recipe, Results, Table, seconds

DIMENSIONS = (2, 5, 10, 20, 50, 100, 200)
PARTICLES = (50, 200, 1_000)
FEW = {"demo": ((2, 10, 50), (50, 200)), "smoke": ((2, 10), (50,))}
"""The dimensions and numbers of particles of the short presets."""
STEPS = {"best": 600, "demo": 300, "smoke": 20}
CENTRE, SD = 1.0, 0.5
FRESH = 2_000
"""Draws of a generator for its variance."""


def log_density(x: Float[Array, " d"]) -> Scalar:
    """log N(x; 1, I/4): training starts from N(0, I), elsewhere and four times as wide."""
    return -0.5 * (((x - CENTRE) / SD) ** 2).sum()


def collapsed_variance(particles: int, dim: int) -> float:
    """The marginal variance of n particles at equal distances under the median rule, as a share of the true one."""
    return min(1.0, particles * math.log(particles) / ((particles - 1) * dim))


def recipe(label: str, preset: str, particles: int) -> Recipe:
    """The recipe for n particles; GPVI's gradient has no noise at the optimum, so it converges soon."""
    steps = STEPS[preset]
    if label == "SVGD":
        return Recipe(gpvi.SVGD(particles=particles), steps, start=None)
    method = gpvi.GPVI(
        generator=gpvi.generators.FullRank(), gradient="l2", particles=particles, learning_rate=0.02
    )
    return Recipe(method, max(1, steps * 2 // 5), start=None)


LABELS = ("SVGD", "GPVI (full-rank generator)")


class VarianceCollapse(Experiment[Recipe]):
    """Beyond the paper."""

    name = "collapse"
    title = "Variance collapse of SVGD with dimension"
    source = "beyond the paper"
    summary = (
        "The estimated marginal variance on N(1, I/4), averaged over the coordinates and divided by the true one: 1 is "
        "correct. Particle methods keep n particles; GPVI takes n draws per step and is measured on new ones. "
        "Training starts from N(0, I), a ratio of 4. The theory is the fixed point of SVGD with the median rule when "
        "all distances are equal, n log n / ((n − 1) d)."
    )
    cases = MappingProxyType({f"n{n}": f"n = {n:,}" for n in PARTICLES})
    metrics = (
        *(
            Metric(
                f"variance_d{d}", f"d = {d}", f"mean marginal variance over the true one, d = {d}"
            )
            for d in DIMENSIONS
        ),
        *(
            Metric(f"theory_d{d}", f"d = {d}", f"SVGD's fixed point at equal distances, d = {d}")
            for d in DIMENSIONS
        ),
        seconds("training time of all seeds and dimensions"),
    )
    tables = (
        Table(
            "Variance ratio by dimension",
            tuple(f"variance_d{d}" for d in DIMENSIONS),
            "1 is the true variance.",
        ),
        Table(
            "The theory's",
            tuple(f"theory_d{d}" for d in DIMENSIONS),
            "n log n / ((n − 1) d), if below 1; for the RBF kernel with the median rule.",
        ),
    )
    headline = (f"variance_d{DIMENSIONS[-1]}",)

    def recipes(self, preset: str) -> dict[str, Recipe]:
        """The methods with the most particles; `measure` goes through all numbers. The paper has none."""
        if preset in ("paper", "authors"):
            return {}
        return {label: recipe(label, preset, PARTICLES[-1]) for label in LABELS}

    def measure(self, results: Results[Recipe]) -> None:
        """Train all seeds side by side for each dimension and each number of particles."""
        seeds = results.seeds
        dimensions, numbers = FEW.get(results.preset, (DIMENSIONS, PARTICLES))
        for n in numbers:
            rows: list[dict[str, float]] = [{"seconds": 0.0} for _ in seeds]
            for dim in dimensions:
                posteriors = recipe(results.label, results.preset, n).fit_seeds(
                    [gpvi.Target(log_density, dim=dim)] * len(seeds),
                    key=jax.random.fold_in(jax.random.key(seeds[0]), dim),
                    progress=results.meter(f"d = {dim}, n = {n}"),
                )
                for row, seed, posterior in zip(rows, seeds, posteriors, strict=True):
                    count = FRESH if posterior.method.generative else n
                    draws = posterior.sample(count, key=jax.random.key(seed))
                    ratio = jnp.var(draws, axis=0, ddof=1).mean() / SD**2
                    row[f"variance_d{dim}"] = float(np.asarray(ratio))
                    row[f"theory_d{dim}"] = collapsed_variance(n, dim)
                    row["seconds"] += posterior.training.seconds
            for row in rows:
                results.add(row, f"n{n}")
