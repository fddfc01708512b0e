"""The contract of every method, tested on a posterior with a closed form; a method joins by adding a row.

Two runs of each method answer for all of it: one of d = 2 in single precision on all the data, whose program three keys
share, and one of d = 10 in double precision (in a session that computes in single) on mini-batches where it takes them.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from cases import DATA, regression
from gpvi.directions import KSDDirection
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator, Linear, Planar
from gpvi.methods import METHODS, Method
from selection import some_slow

pytestmark = pytest.mark.usefixtures("unexplored")


class Bounds(NamedTuple):
    """How far the moments may be off in units of the posterior: see `Regression.errors`."""

    mean: float
    covariance: float


class Row(NamedTuple):
    """A method, small enough for a test, and what it reaches.

    `covariance` maps that of the posterior to the one that the method finds, where it is another. `steps` is None where
    the method has a number of its own.
    """

    method: Any
    two: Bounds
    ten: Bounds
    steps: int | None = 400
    covariance: Callable[[np.ndarray], np.ndarray] = lambda posterior: posterior


def through(**options) -> dict[str, Any]:
    """A Gaussian by a linear generator."""
    return {"generator": Linear(), "particles": 32, "learning_rate": 0.03} | options


def inverse_diagonal_of_the_precision(posterior: np.ndarray) -> np.ndarray:
    return np.diag(1 / np.diag(np.linalg.inv(posterior)))


CRITIC = KSDDirection(hidden_width=16, penalty=0.5, learning_rate=3e-3, critic_steps=5)
CHAINS: dict[str, Any] = {"chains": 4, "draws": 500, "warmup": 200}
ROWS = {
    "gpvi": Row(gpvi.GPVI(**through()), Bounds(0.1, 0.15), Bounds(0.4, 0.35)),
    "gpvi-functional": Row(
        gpvi.GPVI(**through(gradient="functional")), Bounds(0.15, 0.3), Bounds(0.4, 0.5)
    ),
    "gpvi-l2": Row(gpvi.GPVI(**through(gradient="l2")), Bounds(0.05, 0.1), Bounds(0.4, 0.25)),
    "normalizing-flow": Row(
        gpvi.NormalizingFlow(Planar(depth=4), particles=64, learning_rate=0.03),
        Bounds(0.1, 0.3),
        Bounds(0.4, 1.0),
    ),
    "full-rank-vi": Row(
        gpvi.FullRankVI(particles=32, learning_rate=0.03), Bounds(0.05, 0.1), Bounds(0.4, 0.25)
    ),
    "mean-field-vi": Row(
        gpvi.MeanFieldVI(particles=32, learning_rate=0.03),
        Bounds(0.05, 0.1),
        Bounds(0.4, 0.2),
        covariance=inverse_diagonal_of_the_precision,
    ),
    "pathfinder": Row(
        gpvi.Pathfinder(paths=4, iterations=30, draws=100),
        Bounds(0.1, 0.1),
        Bounds(0.2, 1.0),
        steps=None,
    ),
    "svgd": Row(gpvi.SVGD(particles=32), Bounds(0.05, 0.4), Bounds(0.2, 2.6)),
    "gfsd": Row(gpvi.GFSD(particles=32), Bounds(0.05, 0.9), Bounds(0.2, 2.9)),
    "gfsf": Row(gpvi.GFSF(particles=32), Bounds(0.05, 0.4), Bounds(0.2, 2.6)),
    "ksd": Row(
        gpvi.KSD(particles=32, critic=CRITIC), Bounds(0.15, 0.6), Bounds(0.2, 2.6), steps=800
    ),
    "amortized-svgd": Row(gpvi.AmortizedSVGD(**through()), Bounds(0.15, 0.3), Bounds(0.4, 0.7)),
    "amortized-gfsd": Row(gpvi.AmortizedGFSD(**through()), Bounds(0.15, 0.9), Bounds(0.4, 2.9)),
    "amortized-gfsf": Row(gpvi.AmortizedGFSF(**through()), Bounds(0.15, 0.4), Bounds(0.4, 2.6)),
    "amortized-ksd": Row(
        gpvi.AmortizedKSD(**through(critic=CRITIC)),
        Bounds(0.15, 0.6),
        Bounds(0.2, 2.8),
        steps=800,
    ),
    "deep-ensemble": Row(
        gpvi.DeepEnsemble(members=8, learning_rate=0.05),
        Bounds(0.01, 0.01),
        Bounds(0.25, 0.08),
        covariance=np.zeros_like,
    ),
    "hmc": Row(gpvi.HMC(**CHAINS, leapfrogs=8), Bounds(0.15, 0.2), Bounds(0.15, 0.7), steps=None),
    "nuts": Row(gpvi.NUTS(**CHAINS), Bounds(0.15, 0.2), Bounds(0.15, 0.5), steps=None),
    "smc": Row(
        gpvi.SMC(islands=4, particles=250), Bounds(0.15, 0.3), Bounds(0.25, 0.6), steps=None
    ),
}
every_method = pytest.mark.parametrize("name", ROWS)
PROMPT = ("gpvi", "mean-field-vi", "svgd")
"""One of each kind, for what takes a second program; the others are slow tests."""
one_of_each_kind_at_once = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in PROMPT)) for n in ROWS]
)


class Runs(NamedTuple):
    """Two fits with one key, one with another, and how often the first had traced and compiled after each chunk."""

    first: gpvi.Posterior
    again: gpvi.Posterior
    other: gpvi.Posterior
    seen: list[tuple[int, int]]


@functools.cache
def runs(name: str) -> Runs:
    """Three fits of d = 2 that share one program: they differ in its arguments alone."""
    module = importlib.import_module("gpvi.training.fit")
    compile_chunk, programs = module.compile_chunk, []

    def compile_once(*args):
        programs[:] = programs or [compile_chunk(*args)]
        return programs[0]

    traced, compiled, seen = [], [], []
    target, row = regression(2).target(traced=traced), ROWS[name]

    def fit(seed, **options):
        key = jax.random.key(seed)
        return gpvi.fit(
            target, row.method, key=key, steps=row.steps, progress=False, init=None, **options
        )

    def on_compile(event, duration_secs, **_):
        if "backend_compile" in event:
            compiled.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compile_chunk", compile_once)
        jax.monitoring.register_event_duration_secs_listener(on_compile)
        try:
            watch = lambda event: seen.append((len(traced), len(compiled)))  # noqa: E731
            first = fit(0, callbacks=[watch])
        finally:
            jax.monitoring.unregister_event_duration_listener(on_compile)
        return Runs(first, fit(0), fit(1), seen)


def draws(posterior: gpvi.Posterior, seed: int = 1) -> np.ndarray:
    """Many new draws, or all there are."""
    if not posterior.method.generative:
        return np.asarray(posterior.particles)
    return np.asarray(posterior.sample(20_000, key=jax.random.key(seed)))


def takes_batches(method: Method) -> bool:
    return not method.full_data


def check_moments(x: np.ndarray, row: Row, bounds: Bounds) -> None:
    case = regression(x.shape[1])
    mean, covariance = case.errors(x, row.covariance(case.covariance))
    assert mean < bounds.mean
    assert covariance < bounds.covariance


def test_every_method_has_a_row():
    assert {type(row.method) for row in ROWS.values()} == set(METHODS)
    assert all(method.about.citation for method in METHODS)


@every_method
@pytest.mark.parametrize("dim", [2, 10])
def test_training_starts_outside_the_bounds(name, dim):
    row, case = ROWS[name], regression(dim)
    bounds = row.two if dim == 2 else row.ten
    start = np.random.default_rng(0).standard_normal((20_000, dim))
    mean, covariance = case.errors(start, row.covariance(case.covariance))
    assert mean > 2 * bounds.mean
    assert covariance > 1.2 * bounds.covariance


@every_method
def test_two_dimensions_in_single_precision(name):
    row, posterior = ROWS[name], runs(name).first
    x = draws(posterior)
    assert x.shape[1:] == (2,)
    assert x.dtype == posterior.dtype == np.dtype("float32")
    check_moments(x, row, row.two)
    assert posterior.training.notes == ()
    history, steps = posterior.training.history, posterior.training.planned
    assert steps == (row.steps or row.method.default_steps())
    assert row.method.headline in history or "direction" in history
    for values in history.values():
        assert values.shape == (steps,)
        assert np.isfinite(values).all()


@one_of_each_kind_at_once
def test_ten_dimensions_in_double_precision_by_mini_batches(name):
    """Half of the data in each step reach the posterior of all, to the same bounds."""
    assert jnp.zeros(()).dtype == np.dtype("float32")
    row = ROWS[name]
    posterior = gpvi.fit(
        regression(10).target("float64"),
        row.method,
        key=jax.random.key(0),
        steps=row.steps and 2 * row.steps,
        batch_size=DATA // 2 if takes_batches(row.method) else None,
        progress=False,
        init=None,
    )
    x = draws(posterior)
    assert x.dtype == posterior.dtype == np.dtype("float64")
    floats = jax.tree.leaves(eqx.filter(posterior.model, eqx.is_inexact_array))
    assert floats and all(leaf.dtype == "float64" for leaf in floats)
    check_moments(x, row, row.ten)


@every_method
def test_keys(name):
    key, (first, again, other, _) = jax.random.key(3), runs(name)
    x = first.sample(8, key=key)
    np.testing.assert_array_equal(x, again.sample(8, key=key))
    assert not np.allclose(x, first.sample(8, key=jax.random.key(4)), atol=1e-4)
    terms = ([v[:4].tobytes() for v in p.training.history.values()] for p in (first, other))
    assert next(terms) != next(terms)
    for part in ("model", "auxiliary"):
        a, b = (jax.tree.leaves(getattr(p, part)) for p in (first, again))
        for one, two in zip(a, b, strict=True):
            np.testing.assert_array_equal(one, two)


@every_method
def test_one_program_serves_every_chunk(name):
    seen = runs(name).seen
    assert len(seen) >= 4
    assert min(seen[0]) > 0
    assert seen[-1] == seen[1]
    assert seen[-1][0] == seen[0][0]


@every_method
def test_files_hold_it_bit_for_bit(name, tmp_path):
    posterior, key = runs(name).first, jax.random.key(5)
    posterior.save(tmp_path / "saved")
    loaded = gpvi.load(tmp_path / "saved")
    assert loaded.method == posterior.method
    x = np.asarray(posterior.sample(8, key=key))
    assert x.tobytes() == np.asarray(loaded.sample(8, key=key)).tobytes()


@pytest.mark.parametrize("name", some_slow(("svgd", "gpvi"), fast=()))
def test_a_batch_of_all_data_is_the_full_batch(name):
    """The same sums in another order, so the same posterior up to rounding."""
    target = regression(2).target("float64")
    options = {"key": jax.random.key(0), "steps": 20, "progress": False, "init": None}
    full = gpvi.fit(target, ROWS[name].method, **options)
    batched = gpvi.fit(target, ROWS[name].method, batch_size=DATA, **options)
    x, y = (np.asarray(p.sample(8, key=jax.random.key(1))) for p in (full, batched))
    np.testing.assert_allclose(x, y, atol=1e-8)
    assert np.abs(x).max() > 0.3


# ------------------------------------------------------------------------- what a method cannot do

WITH_DENSITY = {
    "sample_and_log_prob": lambda p, key: p.sample_and_log_prob(3, key=key),
    "log_prob": lambda p, key: p.log_prob(jnp.zeros((3, 2))),
    "resample": lambda p, key: p.resample(3, key=key),
}


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if not row.method.density])
def test_methods_without_density_name_one_with(name, getkey):
    posterior = runs(name).first
    for what, ask in WITH_DENSITY.items():
        with pytest.raises(NotAvailableError, match="GPVI") as caught:
            ask(posterior, getkey())
        assert what in str(caught.value)
        assert type(posterior.method).__name__ in str(caught.value)


@every_method
def test_new_draws_or_a_word_on_who_makes_them(name, getkey):
    posterior = runs(name).first
    if posterior.method.generative:
        assert isinstance(posterior.generator, AbstractGenerator)
        assert posterior.sample(20_000, key=getkey()).shape == (20_000, 2)
        with pytest.raises(NotAvailableError, match="sample"):
            _ = posterior.particles
        return
    held = len(posterior.particles)
    assert posterior.sample(held, key=getkey()).shape == (held, 2)
    with pytest.raises(
        NotAvailableError,
        match=rf"{held + 1} draws are not available.*at most {held}.*GPVI",
    ):
        posterior.sample(held + 1, key=getkey())
    with pytest.raises(NotAvailableError, match="GPVI"):
        _ = posterior.generator


@every_method
def test_mini_batches_or_a_word_on_who_takes_them(name, getkey):
    method, target = ROWS[name].method, regression(2).target()
    if takes_batches(method):
        return  # it has trained on them in ten dimensions
    with pytest.raises(NotAvailableError, match=r"batch_size is 8.*mini-batches"):
        gpvi.fit(target, method, key=getkey(), batch_size=8, progress=False)


@every_method
def test_given_starting_points_or_a_word_on_who_takes_them(name, getkey):
    method, target = ROWS[name].method, regression(2).target()
    points = jnp.ones((getattr(method, "particles", None) or 4, 2))
    if method.generative or not hasattr(method, "particles"):
        with pytest.raises(NotAvailableError, match="SVGD"):
            gpvi.fit(target, method, key=getkey(), steps=None, progress=False, init=points)
    else:
        with pytest.raises(InputError, match="particles"):
            gpvi.fit(target, method, key=getkey(), steps=1, progress=False, init=points[1:])


@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_chains_count_their_own_steps(name, getkey):
    method = ROWS[name].method
    with pytest.raises(InputError, match=r"steps is 100.*200 of warm-up.*Omit steps"):
        gpvi.fit(regression(2).target(), method, key=getkey(), steps=100, progress=False)


@pytest.mark.parametrize(
    "name",
    ["full-rank-vi", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpvi", "pathfinder"))],
)
def test_the_diagnosis_knows_the_evidence(name, getkey):
    posterior, evidence = runs(name).first, regression(2).log_evidence
    x, log_q = posterior.sample_and_log_prob(50, key=getkey())
    np.testing.assert_allclose(posterior.log_prob(x), log_q, atol=1e-3)
    found = posterior.diagnose(key=getkey())
    assert found.density == "exact"
    assert found.elbo is not None and found.elbo_se is not None
    assert evidence - 0.2 < found.elbo < evidence + 4 * found.elbo_se + 1e-3
