"""Where the time of a first fit goes: a profile of a cold process, stage by stage, on six targets from d = 2 to 1,600.

Each target has a process of its own. The stages are those that `gpvi.fit` tells its progress meter, then the first
draws and the diagnosis. Every stage has its processor time, which other processes do not lengthen, and the number of
programs that were compiled in it; JAX reports the elapsed time of tracing and compiling them. At the end the gradients
of log p are counted, and the gradients of a step alone are timed beside the whole step.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

import gpvi
from gpvi.methods.reverse_kl import default_draws
from gpvi.posterior.posterior import Posterior
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import evaluate
from gpvi_paper.bench import process
from gpvi_paper.bench.results import Result, Setting

PROGRAM = """
import json, sys, time

began = time.process_time(), time.perf_counter()
import gpvi

imported = time.process_time() - began[0]
from gpvi_paper.bench.cases.cold import profile

print(json.dumps(profile(sys.argv[1], int(sys.argv[2]) or None, imported)))
"""
COMPILING = "/jax/core/compile/"
"""What the events begin with by which JAX reports that it has traced, lowered or compiled a program."""
COMPILED = f"{COMPILING}backend_compile_duration"
REPEATS = 20
"""Evaluations of log p at the draws of a step, to time them."""

LogDensity = Callable[[Float[Array, " d"]], Scalar]


class Stages:
    """A meter for `gpvi.fit` that books processor time, and the programs that JAX reports, to the stage at work."""

    def __init__(self, imported: float):
        self.seconds: dict[str, float] = defaultdict(float, {"import": imported})
        self.programs: dict[str, int] = defaultdict(int)
        self.compiling = 0.0
        self._now, self._since = "setup", time.process_time()
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def enter(self, stage: str) -> None:
        """Book what has passed, and begin a stage."""
        now = time.process_time()
        self.seconds[self._now] += now - self._since
        self._now, self._since = stage, now

    def start(self, total: int, label: str) -> None:
        """Do nothing: the first stage begins with its first message."""

    def update(self, done: int, message: str) -> None:
        """Begin the stage that the message announces."""
        starts = {
            "searching": "search",
            "compiling": "program",
            "beginning": "program",
            "exploring": "exploration and judging",
            "judging": "exploration and judging",
            "done:": "end",
        }
        self.enter(starts.get(message.partition(" ")[0], "training"))

    def close(self) -> None:
        """Book the last stage."""
        self.enter("end")

    def values(self) -> dict[str, float]:
        """The processor seconds of each stage, the programs compiled in it, and the totals."""
        seconds = {f"{stage} s": spent for stage, spent in self.seconds.items()}
        counts = {f"{stage} programs": count for stage, count in self.programs.items()}
        total = {
            "total s": sum(self.seconds.values()),
            "programs": sum(self.programs.values()),
            "tracing and compiling, elapsed s": self.compiling,
        }
        return total | seconds | counts

    def _note(self, event: str, duration: float, **_: Any) -> None:
        if event.startswith(COMPILING):
            self.compiling += duration
            self.programs[self._now] += event == COMPILED


class Example(NamedTuple):
    """A target of the profile."""

    dim: int
    make: Callable[[], LogDensity]


def results(setting: Setting) -> Iterator[Result]:
    """Profile one fit of each target in a process of its own."""
    for name, example in EXAMPLES.items():
        row = f"{name}, d = {example.dim:,}"
        if setting.wants(row) and not (setting.quick and example.dim > QUICK):
            steps = "50" if setting.quick else "0"
            (values,) = process.documents(f"the fit of {row}", PROGRAM, name, steps)
            yield setting.result(row, "cold", values)


def profile(name: str, steps: int | None, imported: float) -> dict[str, float]:
    """Fit one of the examples in this process, draw from it and diagnose it; return the profile."""
    stages = Stages(imported)
    example = EXAMPLES[name]
    target = gpvi.Target(example.make(), dim=example.dim)
    posterior = gpvi.fit(target, key=0, steps=steps, progress=stages)
    stages.enter("draws")
    posterior.sample(10_000, key=1).block_until_ready()
    stages.enter("diagnosis")
    diagnosis = posterior.diagnose(key=2)
    stages.enter("end")
    booked = stages.values()
    outcome = {"elbo": diagnosis.elbo, "effective share": diagnosis.effective_share}
    return booked | outcome | _gradients(posterior, stages.seconds["training"])


def _gradients(posterior: Posterior, training: float) -> dict[str, float]:
    """The gradients of log p that search, training and exploration took, and their share of the time of training."""
    target, steps = posterior.target, posterior.training.steps
    assert target is not None
    draws = default_draws(target.dim)
    search = 0
    if target.dim <= 3_000:
        start_key = jax.random.split(jax.random.key(0), 3)[0]
        found = gpvi.initialization.automatic(target.log_density, target.initial, key=start_key)
        search = found.report.scores
    explored = posterior._explored() if posterior._explored else None
    density = Whitened(target, posterior.affine)
    scores = eqx.filter_jit(lambda u: evaluate(density, u).score)
    u = jax.random.normal(jax.random.key(0), (draws, target.dim), target.dtype)
    scores(u).block_until_ready()
    began = time.process_time()
    for _ in range(REPEATS):
        scores(u).block_until_ready()
    alone = (time.process_time() - began) / REPEATS * steps
    return {
        "gradients of the search": search,
        "gradients of training": steps * draws,
        "gradients of exploration": 0 if explored is None else explored.gradients,
        "log p, share of training": alone / training if steps else 0.0,
    }


def _banana() -> LogDensity:
    return lambda x: -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - 0.25 * x[0] ** 2) / 0.5) ** 2


def _eight_schools() -> LogDensity:
    """The effects of coaching in eight schools (Rubin 1981), non-centred."""
    effect = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_density(x: Float[Array, " d"]) -> Scalar:
        mean, tau, school = x[0], jnp.exp(x[1]), x[2:]
        prior = -0.5 * (mean / 5) ** 2 + x[1] - jnp.log1p((tau / 5) ** 2) - 0.5 * school @ school
        return prior - 0.5 * (((effect - mean - tau * school) / error) ** 2).sum()

    return log_density


def _seeds() -> LogDensity:
    """A logistic regression with random effects on the germination of seeds (Crowder 1978)."""
    r = "10 23 23 26 17 5 53 55 32 46 10 8 10 8 23 0 3 22 15 32 3"
    n = "39 62 81 51 39 6 74 72 51 79 13 16 30 28 45 4 12 41 30 51 7"
    germinated, sown = (jnp.asarray(np.fromstring(each, sep=" "), jnp.float32) for each in (r, n))
    seed = jnp.repeat(jnp.array([0.0, 1.0]), jnp.array([11, 10]), total_repeat_length=21)
    root = jnp.repeat(jnp.array([0.0, 1, 0, 1]), jnp.array([5, 6, 5, 5]), total_repeat_length=21)

    def log_density(x: Float[Array, " d"]) -> Scalar:
        log_tau, a, b = x[0], x[1:5], x[5:]
        logit = a[0] + a[1] * seed + a[2] * root + a[3] * seed * root + b
        prior = 0.01 * log_tau - 0.01 * jnp.exp(log_tau) - 0.5 * (a / 10) @ (a / 10)
        effects = 10.5 * log_tau - 0.5 * jnp.exp(log_tau) * (b @ b)
        return prior + effects + (germinated * logit - sown * jax.nn.softplus(logit)).sum()

    return log_density


def _logistic() -> LogDensity:
    """A logistic regression on 208 simulated data, as correlated as the echoes of a sonar."""
    rng = np.random.default_rng(0)
    apart = np.abs(np.subtract.outer(np.arange(60), np.arange(60)))
    inputs = rng.standard_normal((208, 60)) @ np.linalg.cholesky(np.exp(-apart / 8)).T
    inputs = np.concatenate([np.ones((208, 1)), inputs], 1)
    labels = np.sign(inputs @ rng.standard_normal(61) + rng.logistic(size=208))
    signed = jnp.asarray(inputs * labels[:, None], jnp.float32)
    return lambda w: -0.5 * w @ w - jax.nn.softplus(-signed @ w).sum()


def _gaussian() -> LogDensity:
    """A Gaussian of 300 dimensions whose covariance has the condition number 10⁶."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    whitening = jnp.asarray(rotation.T * np.geomspace(1e-1, 1e2, 300)[:, None], jnp.float32)

    def log_density(x: Float[Array, " d"]) -> Scalar:
        u = jnp.matmul(whitening, x - 3.0, precision="highest")
        return -0.5 * u @ u

    return log_density


def _cox_process() -> LogDensity:
    """A log-Gaussian Cox process (Møller et al. 1998) on a grid of 40 × 40 cells, with simulated counts."""
    side, rng = 40, np.random.default_rng(0)
    cells = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2)
    distance = np.linalg.norm(cells[:, None] - cells, axis=-1)
    factor = np.linalg.cholesky(1.91 * np.exp(-33 * distance / side))
    mean, area = math.log(126) - 0.5 * 1.91, 1 / side**2
    counts = rng.poisson(area * np.exp(mean + factor @ rng.standard_normal(side**2)))
    inverse, counts = jnp.asarray(np.linalg.inv(factor), jnp.float32), jnp.asarray(counts)

    def log_density(f: Float[Array, " d"]) -> Scalar:
        u = inverse @ (f - mean)
        return -0.5 * u @ u + (counts * f - area * jnp.exp(f)).sum()

    return log_density


EXAMPLES = {
    "banana": Example(2, _banana),
    "eight schools": Example(10, _eight_schools),
    "seeds": Example(26, _seeds),
    "logistic regression": Example(61, _logistic),
    "Gaussian": Example(300, _gaussian),
    "Cox process": Example(1_600, _cox_process),
}
QUICK = 10
"""The largest dimension of a quick run."""
