"""A mixture in place of a generator that misses modes: its Gaussians, its weights, and the fit that chooses it."""

import dataclasses
import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info

import gpvi
from gpvi.diagnostics.importance import draw_weighted, importance
from gpvi.errors import DivergenceError, InputError, TrainingWarning
from gpvi.exploration.search import Exploration
from gpvi.exploration.summits import Surroundings
from gpvi.generators import FullRank, Mixture, SplineFlow, Triangular
from gpvi.methods.base import built
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training import fit as fitting
from gpvi.training.modes import particles, rival
from gpvi.training.modes.gaussians import (
    around_summits,
    match,
    of_gaussians,
    stacked_affines,
    starts,
    together,
)
from gpvi.training.modes.rival import Rivalry, alone, enriched
from gpvi.training.modes.weights import Cloud, heaviest, needed, weighed, weighted_draws

SMALL = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=64)
CENTRES, SHARES = np.array([[-6.0, 0.0], [6.0, 3.0]]), np.array([0.3, 0.7])
FACTOR = np.array([[1.0, 0.0], [0.8, 0.5]])


def two_modes(x):
    """.3 N(c₁, FFᵀ) + .7 N(c₂, FFᵀ)."""
    v = jnp.linalg.solve(FACTOR, (x - CENTRES).T)
    log_norm = -jnp.log(2 * jnp.pi) - np.log(0.5)
    return jax.nn.logsumexp(jnp.log(SHARES) - 0.5 * (v**2).sum(0)) + log_norm


def draws(n, seed=0):
    rng = np.random.default_rng(seed)
    which = (rng.uniform(size=n) < 0.7).astype(int)
    return CENTRES[which] + rng.normal(size=(n, 2)) @ FACTOR.T, which


def explored(target=None) -> Exploration:
    """What eight perfect islands would find."""
    x, labels = draws(8 * 128)
    log_density = np.asarray(jax.vmap(two_modes)(jnp.asarray(x)), float)
    shape = (8, 128)
    evidence = 0.01 * np.random.default_rng(1).normal(size=8)
    return Exploration(
        x.reshape(*shape, 2),
        log_density.reshape(shape),
        labels.reshape(shape),
        evidence,
        8.0,
        0,
        True,
    )


@pytest.fixture
def quick(monkeypatch):
    """Exploration without its cost, and short rounds."""
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: explored)
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (30, 60))


def test_a_gaussian_mode_is_matched_exactly():
    """From another place and width, with a random covariance in ten dimensions."""
    rng = np.random.default_rng(0)
    factor = np.tril(rng.normal(size=(10, 10)), -1) + np.diag(rng.uniform(0.3, 3, 10))
    precision, mean = np.linalg.inv(factor @ factor.T), rng.normal(size=10)
    target = gpvi.Target(lambda x: -0.5 * (x - mean) @ precision @ (x - mean), dim=10)
    density = Whitened(target, Affine.identity(10, "float32"))
    factors = np.stack([np.eye(10), 0.2 * np.eye(10)])
    begin = stacked_affines(np.stack([mean + 3, mean - 1]), factors, "float32")
    found = match(density, begin, key=jax.random.key(0))
    for location, scale in zip(
        *map(np.asarray, (found.affines.location, found.affines.scale)), strict=True
    ):
        np.testing.assert_allclose(location, mean, atol=2e-2)
        np.testing.assert_allclose(scale @ scale.T, factor @ factor.T, rtol=0.02, atol=0.05)
    log_z = 5 * np.log(2 * np.pi) + np.log(np.diag(factor)).sum()
    np.testing.assert_allclose(found.elbo[-1], log_z, atol=1e-2)


def test_em_maximises_the_mean_of_log_q():
    rng = np.random.default_rng(0)
    ratios, average = rng.gamma(1, size=(500, 4)), rng.dirichlet(np.ones(500))
    weights = heaviest(ratios, average)

    def value(w):
        return average @ np.log(ratios @ w)

    assert weights.sum() == pytest.approx(1)
    for other in rng.dirichlet(np.ones(4), size=200):
        assert value(weights) >= value(0.9 * weights + 0.1 * other) - 1e-9


def test_copies_and_components_elsewhere_are_not_needed():
    """Columns: a mode, the same again, another mode, and one where the posterior is not."""
    x = np.random.default_rng(0).normal(size=4_000)
    x[:1_000] += 20
    ratios = np.exp(-0.5 * (x[:, None] - np.array([0, 0, 20, -30])) ** 2)
    kept, weights = needed(ratios, np.full(4_000, 1 / 4_000))
    assert len(kept) == 2 and 2 in kept and 3 not in kept
    np.testing.assert_allclose(sorted(weights), [0.25, 0.75], atol=1e-3)


def test_where_no_draw_has_a_weight_the_particles_count():
    """Gaussians far from everything, outside of whose reach log p is −∞."""
    affines = stacked_affines(CENTRES + 1e3, np.stack([FACTOR, FACTOR]), "float32")
    walled = gpvi.Target(lambda x: jnp.where(x @ x < 1e4, two_modes(x), -jnp.inf), dim=2)
    density = Whitened(walled, Affine.identity(2, "float32"))
    cloud = Cloud.of(explored(), density)
    model, _ = weighed(density, of_gaussians(affines), cloud, key=jax.random.key(0))
    assert np.isfinite(model.log_weights).all()


def test_small_matrices_are_left_to_one_thread(monkeypatch):
    """On cores that others use, BLAS spends most of its time waiting for its own threads."""
    threads = []

    def noted(method):
        threads.extend(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")
        return False

    monkeypatch.setattr(rival, "learns_from_particles", noted)
    density = Whitened(gpvi.Target(two_modes, dim=2), Affine.identity(2, "float32"))
    nothing: Any = object.__new__(Exploration)
    assess: Any = noted
    key = jax.random.key(0)
    assert rival.mixture_for(gpvi.GPVI(), density, nothing, assess, key=key) is None
    assert threads and set(threads) == {1}


def test_particles_become_coordinates():
    x, labels = draws(4_000)
    cloud = Cloud(x, np.full(len(x), 1 / len(x)), np.zeros(len(x)), np.dtype("float32"), 1.0)
    affines: Any = starts(cloud, np.where(labels == 0, -1, 0))
    np.testing.assert_allclose(affines.location, CENTRES[1:], atol=0.1)
    np.testing.assert_allclose(affines.scale[0] @ affines.scale[0].T, FACTOR @ FACTOR.T, atol=0.1)


def test_summits_become_gaussians_in_the_coordinates_of_training():
    scale = np.array([[2.0, 0.0], [0.5, 0.4]])
    affine = Affine(jnp.array([1.0, -1.0]), jnp.asarray(scale, jnp.float32))
    density = Whitened(gpvi.Target(two_modes, dim=2), affine)
    turned = FACTOR @ np.array([[0.6, -0.8], [0.8, 0.6]])
    nothing = np.zeros((2, 1))
    around = Surroundings(
        CENTRES,
        np.stack([FACTOR, turned]),
        np.zeros((2, 1, 2)),
        nothing,
        nothing,
        np.zeros(2, bool),
        0,
    )
    found: Any = around_summits(around, density)
    for centre, location, factor in zip(CENTRES, found.location, found.scale, strict=True):
        np.testing.assert_allclose(affine(location), centre, atol=1e-5)
        placed = scale @ np.asarray(factor)
        np.testing.assert_allclose(placed @ placed.T, FACTOR @ FACTOR.T, atol=1e-5)


def rivalry(log_density, exploration):
    density = Whitened(gpvi.Target(log_density, dim=2), Affine.identity(2, "float32"))
    return Rivalry(SMALL, density, exploration, lambda state: pytest.fail("not asked"), 0.0)


@pytest.mark.slow
def test_a_mode_that_the_labels_leave_out_is_added():
    """All particles bear one label; the Gaussian that they begin from ends in one of the modes."""
    found = explored()
    lumped = dataclasses.replace(found, labels=np.zeros_like(found.labels))
    fitted = alone(rivalry(two_modes, lumped), key=jax.random.key(0))
    assert fitted is not None and fitted.components == 2
    np.testing.assert_allclose(np.sort(np.exp(fitted.model.normalised)), SHARES, atol=0.01)


@pytest.fixture(scope="module")
def posterior():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "once_explored", lambda density, key: explored)
        patch.setattr("gpvi.methods.gpvi.ROUNDS", (30, 60))
        return gpvi.fit(gpvi.Target(two_modes, dim=2), SMALL, key=0, progress=False)


def test_fit_returns_a_mixture_with_the_right_shares(posterior):
    assert posterior.method == dataclasses.replace(SMALL, generator=Mixture(2, FullRank()))
    assert "2 components" in " ".join(posterior.training.notes)
    x, log_q = posterior.sample_and_log_prob(4_000, key=1)
    assert (np.asarray(x)[:, 0] > 0).mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 4_000))
    np.testing.assert_allclose(log_q, jax.vmap(two_modes)(x), atol=0.05)
    np.testing.assert_allclose(posterior.log_prob(x[:100]), log_q[:100], atol=1e-4)


def test_a_saved_mixture_is_the_same(posterior, tmp_path):
    posterior.save(tmp_path / "saved.gpvi")
    loaded = gpvi.load(tmp_path / "saved.gpvi")
    assert loaded.method == posterior.method
    np.testing.assert_array_equal(loaded.sample(50, key=2), posterior.sample(50, key=2))
    x = np.zeros((50, 2))
    np.testing.assert_array_equal(loaded.log_prob(x), posterior.log_prob(x))


@pytest.mark.slow
def test_whatever_a_posterior_offers_works_with_a_mixture(posterior):
    diagnosis = posterior.diagnose()
    assert diagnosis.verdict.level == "good" and diagnosis.density == "exact"
    assert diagnosis.effective_share > 0.99
    assert posterior.resample(100, key=0).shape == (100, 2)
    assert posterior.to_arviz(key=0, draws=100)["posterior"]["x"].shape == (4, 25, 2)
    assert len(posterior.modes()) == 2
    assert posterior.summary().names == ("x[0]", "x[1]")
    more = gpvi.fit(posterior.target, key=1, init=posterior, steps=5, progress=False)
    assert more.method == posterior.method
    with pytest.raises(InputError, match="Continue with the same method"):
        gpvi.fit(posterior.target, SMALL, key=1, init=posterior, steps=5, progress=False)


@pytest.mark.slow
def test_a_run_resumes_with_the_same_mixture(quick, tmp_path):
    """The mixture is computed anew from the same exploration and key."""
    target, options = gpvi.Target(two_modes, dim=2), {"key": 0, "progress": False}
    first = gpvi.fit(target, SMALL, checkpoint=tmp_path, **options)
    again = gpvi.fit(target, SMALL, checkpoint=tmp_path, **options)
    assert again.method == first.method and again.training.notes == first.training.notes
    np.testing.assert_array_equal(again.sample(50, key=2), first.sample(50, key=2))


@pytest.mark.slow
def test_gaussians_learn_together():
    """Two Gaussians without a dip between them, begun as one: the cut parts find both."""
    centres = jnp.array([[-1.2, 0.0], [1.2, 0.0]])

    def log_density(x):
        return jax.nn.logsumexp(-0.5 * ((x - centres) ** 2 / jnp.array([0.8, 0.3]) ** 2).sum(1))

    density = Whitened(gpvi.Target(log_density, dim=2), Affine.identity(2, "float32"))
    begin = stacked_affines(np.zeros((1, 2)), np.diag([1.5, 0.3])[None], "float32")
    affines = together(density, begin, key=jax.random.key(0))
    drawn = weighted_draws(density, of_gaussians(affines), key=jax.random.key(1))
    fitted = dataclasses.replace(
        of_gaussians(affines), log_weights=jnp.log(heaviest(drawn.ratios, drawn.average))
    )
    ratios = draw_weighted(density, fitted, 4_000, key=jax.random.key(2)).log_ratios
    assert importance(ratios)[0].effective_share > 0.98


@pytest.mark.parametrize(("effective", "share"), [(10.0, 0.3), (1e9, 0.6)])
def test_particles_count_by_how_many_draws_they_are_worth(effective, share):
    """Cauchy modes of 30 % and 70 %, for which Gaussians have unreliable weights; particles say 90 % and 10 %."""

    def log_density(x):
        bodies = -jnp.log1p(((x - 8 * CENTRES) ** 2).sum(1)) * 1.5
        return jax.nn.logsumexp(jnp.log(SHARES) + bodies)

    density = rivalry(log_density, explored()).density
    narrow = np.stack([0.2 * np.eye(2)] * 2)
    mixture = of_gaussians(stacked_affines(8 * CENTRES, narrow, density.dtype))
    rows = np.repeat([0, 1], [90, 10])
    cloud = Cloud(8 * CENTRES[rows], np.ones(100), np.zeros(100), density.dtype, effective)
    drawn = weighted_draws(density, mixture, key=jax.random.key(0))
    assert drawn.k_hat > 0.7
    model, _ = weighed(density, mixture, cloud, key=jax.random.key(0))
    assert jnp.exp(model.normalised)[0] == pytest.approx(share, abs=0.05)


@pytest.mark.slow
def test_components_with_tails_fit_heavy_modes():
    """Two products of Student's t with two degrees of freedom, of which Gaussians miss the tails."""

    def log_density(x):
        return jax.nn.logsumexp(-1.5 * jnp.log1p((x - 8 * CENTRES) ** 2 / 2).sum(1))

    x, labels = draws(8 * 128)
    found = explored()
    moved = (x - CENTRES[labels]) + 8 * CENTRES[labels]
    log_z = np.log(2) + 2 * np.log(2 * np.sqrt(2))
    exploration = dataclasses.replace(
        found,
        points=moved.reshape(8, 128, 2),
        log_density=np.asarray(jax.vmap(log_density)(moved), float).reshape(8, 128),
        island_log_evidence=found.island_log_evidence + log_z,
    )
    own = rivalry(log_density, exploration)
    gaussian = alone(own, key=jax.random.key(0))
    assert gaussian is not None

    def fits(fitted):
        drawn = draw_weighted(own.density, fitted.model, 4_000, key=jax.random.key(1))
        return importance(drawn.log_ratios)[0]

    tailed = enriched(own, gaussian, FullRank(tails=True), key=jax.random.key(2))
    assert tailed is not None and fits(gaussian).k_hat > 0.7 > fits(tailed).k_hat
    assert fits(tailed).effective_share > 0.9
    assert fits(tailed).log_evidence == pytest.approx(log_z, abs=0.05)


@pytest.mark.parametrize(
    ("fall", "heavy"),
    [
        (lambda v: 1.5 * jnp.log1p(v**2 / 2), True),
        (lambda v: jnp.log(jnp.cosh(jnp.pi / 2 * v)), True),
        (lambda v: v**2 / 2, False),
        (lambda v: v**4 / 3, False),
    ],
    ids=["t of 2 degrees", "hyperbolic secant", "Gaussian", "box"],
)
def test_heavy_tails_are_seen_around_the_modes(fall, heavy):
    """Two modes, in coordinates that are oblique to them."""

    def log_density(x):
        v = jnp.linalg.solve(FACTOR, (x - CENTRES).T)
        return jax.nn.logsumexp(-fall(v).sum(0))

    density = Whitened(gpvi.Target(log_density, dim=2), Affine.identity(2, "float32"))
    at = stacked_affines(CENTRES, np.stack([FACTOR, FACTOR]), "float32")
    assert rival.heavy_tailed(density, at) == heavy


def test_components_that_cannot_be_trained_are_left_out(monkeypatch):
    def diverging(*_, **options):
        warnings.warn("no step was finite", TrainingWarning, stacklevel=1)
        raise DivergenceError("no step was finite")

    monkeypatch.setattr(rival, "compile_chunk", lambda *_: None)
    monkeypatch.setattr(rival, "train", diverging)
    affines = stacked_affines(CENTRES, np.stack([FACTOR, FACTOR]), "float32")
    own = rivalry(two_modes, explored())
    fitted = rival.Fitted(FullRank(), of_gaussians(affines), np.zeros(1), 0, 0)
    assert enriched(own, fitted, FullRank(), key=jax.random.key(0)) is None


def test_a_generator_survives_particles_beyond_floats(monkeypatch):
    """Of heavy tails some particles are so far out that the gradient of log q overflows."""
    monkeypatch.setattr(particles, "STEPS", 20)
    monkeypatch.setattr(particles, "ROWS", 64)
    found = explored()
    found.points[0, 0] = 1e30
    density = rivalry(two_modes, found).density
    begun = built(SMALL.generator, 2, density.dtype, key=jax.random.key(0))
    shown = particles.shown_particles(begun, density, found, key=jax.random.key(1))
    before, after = (jax.tree.leaves(eqx.filter(each, eqx.is_array)) for each in (begun, shown))
    assert all(jnp.isfinite(leaf).all() for leaf in after)
    assert not all((a == b).all() for a, b in zip(before, after, strict=True))


def test_one_mode_costs_nothing(quick, monkeypatch):
    """No mixture is tried, and the fit is what it is without them."""
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: lambda: None)
    target = gpvi.Target(lambda x: -0.25 * (x**4).sum(), dim=2)
    without = gpvi.fit(target, SMALL, key=0, progress=False)

    rng = np.random.default_rng(0)
    x = rng.choice([-1, 1], (8, 128, 2)) * (4 * rng.gamma(0.25, size=(8, 128, 2))) ** 0.25
    log_z = 2 * np.log(2 * 4**0.25 * math.gamma(1.25))
    one = dataclasses.replace(
        explored(),
        points=x,
        log_density=-0.25 * (x**4).sum(2),
        labels=np.zeros((8, 128), int),
        island_log_evidence=log_z + explored().island_log_evidence,
    )
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: lambda: one)
    monkeypatch.setattr(rival, "alone", lambda *_, **__: pytest.fail("a mixture was tried"))
    posterior = gpvi.fit(target, SMALL, key=0, progress=False)
    assert posterior.method == SMALL
    np.testing.assert_array_equal(posterior.sample(20, key=1), without.sample(20, key=1))
