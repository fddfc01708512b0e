r"""The second witness against the truth: what exploration alone finds, and how narrow a spike it can find.

Nothing is trained. `Witnesses` hears the islands on exact draws, of which they must not complain, and on exact draws of
the largest mode alone, of which they must. `Spikes` asks how often a spike is seen, against its width.
"""

import dataclasses
import math
import time
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

import gpvi
from gpvi.diagnostics.importance import Importance
from gpvi.diagnostics.missing_mass import missing_mass
from gpvi.diagnostics.witness import Witness, evidence_of, hear_points
from gpvi.exploration.search import Exploration, explore, log_mean, pilot
from gpvi.targets.coordinates import Affine, Whitened
from gpvi_paper.experiments.base import (
    Experiment,
    Metric,
    Results,
    Table,
    higher,
    lower,
    seconds,
)
from gpvi_paper.experiments.frontier.base import DENSITIES, OnDensities
from gpvi_paper.experiments.frontier.densities import LOG_2PI, Known

EXACT_DRAWS = 20_000
LEAST_LOST = 0.02
"""A smaller share outside the largest mode need not be heard."""


@dataclasses.dataclass(frozen=True)
class Islands:
    """Exploration as `gpvi.fit` does it; there is nothing to choose."""

    def to_json(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class Witnesses(OnDensities[Islands]):
    """Exploration of every density, heard on right and on wrong draws."""

    name = "witness"
    title = "What exploration finds"
    source = "the densities of the frontier; beyond the experiments"
    summary = (
        "Islands of particles explore densities with known answers, in coordinates in which the largest mode has scale "
        "one, as if a search had found nothing else. Exact draws and the true log Z must raise no alarm; draws of the "
        "largest mode alone, and its log Z, must."
    )
    metrics = (
        Metric("log_evidence_error", "log Z", "log Z by the islands, less the truth"),
        Metric("se", "its s.e.", "the standard error that they state"),
        higher("modes", "modes met", "modes of at least 1 % in which some particle lies", "share"),
        lower("alarm", "false alarm", "the share of exact draws said to be missing", "share"),
        Metric("lost", "outside the largest", "the share outside the largest mode", "share"),
        higher("heard", "heard", "whether its loss is noticed, if it is 2 % or more", "yes or no"),
        lower("gradients", "gradients", "evaluations of log p and its gradient"),
        seconds("of exploration, including compilation"),
        lower("cpu_seconds", "CPU s", "processor time of the same, over all cores", "seconds"),
    )
    tables = (
        Table(
            "Exploration and truth",
            ("log_evidence_error", "se", "modes", "alarm", "lost", "heard", "gradients"),
            "Gradients are evaluations of log p and its gradient at one point.",
        ),
    )

    def recipes(self, preset: str) -> dict[str, Islands]:
        """One row."""
        return {"Islands": Islands()} if preset in {"best", "smoke"} else {}

    def measured(self, results: Results[Islands], case: str, seed: int) -> dict[str, float]:
        """Explore once, and hear the islands."""
        return heard(DENSITIES[case][1](), seed)


def heard(known: Known, seed: int) -> dict[str, float]:
    """Explore once, and hear the islands on right and on wrong draws."""
    jax.clear_caches()
    exact = known.draw(np.random.default_rng(seed), EXACT_DRAWS)
    modes = known.modes(exact)
    shares = np.bincount(modes) / len(modes)
    largest = exact[modes == shares.argmax()]
    middle = np.median(largest, 0)
    scale = 1.4826 * np.median(np.abs(largest - middle), 0)
    target = gpvi.Target(known.log_density, dim=known.dim, initial=np.asarray(middle, np.float32))
    affine = Affine(jnp.asarray(middle, target.dtype), jnp.asarray(scale, target.dtype))
    began, busy = time.perf_counter(), time.process_time()
    found = explore(Whitened(target, affine), key=jax.random.key(seed))
    spent = time.perf_counter() - began, time.process_time() - busy
    if found is None:
        return {}
    lost = 1 - float(shares.max())
    met = np.bincount(known.modes(found.points.reshape(-1, known.dim)), minlength=len(shares))
    values = {
        "log_evidence_error": found.log_evidence - known.log_evidence,
        "se": found.log_evidence_se,
        "modes": float((met[: len(shares)][shares >= 0.01] > 0).mean()),
        "alarm": _said_missing(found, exact, known.log_evidence),
        "lost": lost,
        "gradients": float(found.gradients),
        "seconds": spent[0],
        "cpu_seconds": spent[1],
    }
    if lost >= LEAST_LOST:
        own = known.log_evidence + math.log(shares.max())
        values["heard"] = float(_said_missing(found, largest, own) > 0)
    return values


def _said_missing(
    found: Exploration, draws: Float[np.ndarray, "n d"], log_evidence: float
) -> float:
    """The share of the posterior that draws with this log Z are said to miss."""
    witness: Witness = hear_points(found, draws)
    own = Importance(log_evidence, 0.0, log_evidence, 0.0, 1.0, 0.0, 0.0, len(draws))
    missing = missing_mass(own, evidence_of(found), dtype=np.dtype("float32"))
    return max(witness.unseen, missing or 0.0)


def away(dim: int) -> Float[np.ndarray, " d"]:
    """A place 3√d from the origin, in a direction that no rule would think of."""
    direction = np.random.default_rng(dim).normal(size=dim)
    return 3 * math.sqrt(dim) * direction / np.linalg.norm(direction)


class Spike(eqx.Module):
    """log p of ½ N(0, I) + ½ N(c, sd² I), one program for all widths; c is 3√d away."""

    sd: Float[Array, ""]
    dim: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Scalar:
        far = -0.5 * ((x - away(self.dim)) ** 2).sum() / self.sd**2 - self.dim * jnp.log(self.sd)
        return jnp.logaddexp(-0.5 * x @ x, far) - 0.5 * self.dim * LOG_2PI - math.log(2)


class Spikes(Experiment[Islands]):
    """How often a spike beside a Gaussian is seen, against its width."""

    name = "spikes"
    title = "How narrow a mode can be seen"
    source = "beyond the experiments"
    summary = (
        "Half of the posterior is N(0, I), the other half N(c, sd² I) with |c| = 3√d. The first, small islands of "
        "exploration begin from the first half alone. A spike is seen if they, or the draws around summits, say that "
        "it holds more than a tenth; larger islands would follow."
    )
    cases = MappingProxyType(
        {
            f"{dim}-{sd}": f"d = {dim}, sd {sd}"
            for dim in (2, 5, 10)
            for sd in (1.0, 0.5, 0.3, 0.1, 0.03, 0.01)
        }
    )
    metrics = (
        higher("seen", "seen", "whether the spike is seen", "yes or no"),
        Metric("log_evidence_error", "log Z", "log Z by the islands; the truth is 0"),
        lower("gradients", "gradients", "evaluations of log p and its gradient"),
    )
    tables = (Table("Spikes", ("seen", "log_evidence_error", "gradients"), "Means over seeds."),)

    def recipes(self, preset: str) -> dict[str, Islands]:
        """One row."""
        return {"Islands": Islands()} if preset in {"best", "smoke"} else {}

    def measure(self, results: Results[Islands]) -> None:
        """Explore with every width."""
        chosen = list(self.cases)[:1] if results.preset == "smoke" else list(self.cases)
        for case in chosen:
            dim, sd = case.split("-")
            for seed in results.seeds:
                results.add(seen(int(dim), float(sd), seed), case)


def seen(dim: int, sd: float, seed: int) -> dict[str, float]:
    """Look for a spike once."""
    target = gpvi.Target(Spike(jnp.asarray(sd), dim), dim=dim)
    density = Whitened(target, Affine.identity(dim, target.dtype))
    found = pilot(density, key=jax.random.key(seed))

    centre = away(dim)

    def inside(x: np.ndarray) -> np.ndarray:
        nearer = ((x - centre) ** 2).sum(-1) < (x**2).sum(-1)
        return (np.abs(x - centre) < 6 * sd).all(-1) & nearer

    shares = [float(inside(np.asarray(found.islands.points)).mean())]
    if found.around is not None:
        log_mass, _ = found.around.masses(inside(found.around.points))
        shares += np.exp(log_mass).tolist()
    return {
        "seen": float(max(shares) > 0.1),
        "log_evidence_error": log_mean(np.asarray(found.islands.log_evidence, np.float64))[0],
        "gradients": float(found.gradients),
    }
