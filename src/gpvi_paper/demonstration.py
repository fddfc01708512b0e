"""What `gpvi demo` trains: five densities in the plane with the defaults of `gpvi.fit`, and the banana by NUTS as well.

The banana is that of the README. Its moments are known, so that both methods can be held against them.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Scalar

import gpvi
from gpvi.diagnostics import Diagnosis
from gpvi.progress import Meter
from gpvi_paper.experiments.energy import POTENTIALS, EnergyPotentials

LogDensity = Callable[[Float[jax.Array, " 2"]], Scalar]
DRAWS = 100_000
"""New draws of a generator for moments; chains have what they have. The pictures show `SHOWN` of them."""
SHOWN = 2_000
CELLS = 80
"""Points of a picture of a density along each axis."""


class Moments(NamedTuple):
    """Mean and standard deviation of each coordinate."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]


class Frame(NamedTuple):
    """The part of the plane that a picture shows: a square."""

    centre: tuple[float, float]
    half_width: float


class Case(NamedTuple):
    """A density to train on."""

    title: str
    log_density: LogDensity
    frame: Frame
    methods: tuple[gpvi.methods.Method | None, ...] = (None,)
    """What is trained on it; None is `gpvi.fit` with nothing chosen."""
    exact: Moments | None = None


class Shown(NamedTuple):
    """What a method made of a case."""

    case: Case
    method: str
    diagnosis: Diagnosis
    draws: Float[np.ndarray, "n 2"]
    seconds: float


def banana(x: Float[jax.Array, " 2"]) -> Scalar:
    """The banana of the README: x₀ ~ N(0, 4), x₁ ~ N(x₀²/4, 1/4)."""
    return -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - 0.25 * x[0] ** 2) / 0.5) ** 2


BANANA = Moments((0.0, 1.0), (2.0, 1.5))
"""E x₁ = 4/4; its variance is 1/4 for the noise and 2 · 4²/16 for x₀²/4."""
CASES = (
    Case("Banana", banana, Frame((0.0, 3.5), 6.5), (None, gpvi.NUTS()), BANANA),
    *(
        Case(title, POTENTIALS[name], Frame((0.0, 0.0), 5.5))
        for name, title in EnergyPotentials.cases.items()
    ),
)


def trained(meter: Callable[[str], Meter | bool]) -> Iterator[Shown]:
    """Yield what each method makes of each case, as soon as it is trained.

    Parameters
    ----------
    meter
        Returns what shows the progress of a job, for a prefix such as "2/6".
    """
    jobs = [(case, method) for case in CASES for method in case.methods]
    for number, (case, method) in enumerate(jobs):
        fit_key, diagnosis_key, draw_key = jax.random.split(jax.random.key(number), 3)
        target = gpvi.Target(case.log_density, dim=2)
        progress = meter(f"{number + 1}/{len(jobs)} {case.title}:")
        posterior = gpvi.fit(target, method, key=fit_key, progress=progress)
        yield Shown(
            case,
            type(posterior.method).__name__,
            posterior.diagnose(key=diagnosis_key),
            np.asarray(posterior.sample(posterior.size or DRAWS, key=draw_key)),
            posterior.training.seconds,
        )


def moments(draws: Float[np.ndarray, "n d"]) -> Moments:
    """The mean and standard deviation of draws."""
    return Moments(tuple(map(float, draws.mean(0))), tuple(map(float, draws.std(0))))


def largest_error(found: Moments, exact: Moments) -> tuple[float, float]:
    """The largest error of a mean, in standard deviations, and of a standard deviation, as a ratio less one."""
    means = (abs(a - b) / sd for a, b, sd in zip(found.mean, exact.mean, exact.sd, strict=True))
    spreads = (a / b - 1 for a, b in zip(found.sd, exact.sd, strict=True))
    return max(means), max(spreads, key=abs)


def picture(case: Case) -> np.ndarray:
    """The density on a grid over the frame, 1 at its highest; rows run along the second coordinate."""
    (x, y), half = case.frame
    line = np.linspace(-half, half, CELLS)
    points = jnp.asarray(np.stack(np.meshgrid(x + line, y + line), -1).reshape(-1, 2))
    log_p = np.asarray(jax.jit(jax.vmap(case.log_density))(points)).reshape(CELLS, CELLS)
    return np.exp(log_p - log_p.max())


def in_words(shown: Shown) -> str:
    """The figures behind a verdict, in a few words."""
    found = shown.diagnosis
    if found.effective_share is not None and found.k_hat is not None:
        return f"effective share {found.effective_share:.2f}, k̂ {found.k_hat:.2f}"
    if found.rhat is not None:
        return (
            f"R̂ {found.rhat:.3f}, {found.divergences} divergences, ESS {math.floor(found.ess or 0)}"
        )
    return ""
