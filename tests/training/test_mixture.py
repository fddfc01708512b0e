"""A mixture in place of a generator that misses modes: its Gaussians, its weights, and the fit that chooses it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError
from gpvi.exploration.search import Exploration
from gpvi.generators import FullRank, Mixture, SplineFlow, Triangular
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training import fit as fitting
from gpvi.training import mixture as mixtures
from gpvi.training.mixture import Cloud, gaussian_mixture, heaviest, match, needed, starts

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
    begin = jax.vmap(Affine)(
        np.stack([mean + 3, mean - 1]), np.stack([np.eye(10), 0.2 * np.eye(10)])
    )
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


def test_particles_become_coordinates():
    x, labels = draws(4_000)
    cloud = Cloud(x, np.full(len(x), 1 / len(x)), np.zeros(len(x)))
    affines = starts(cloud, np.where(labels == 0, -1, 0))
    np.testing.assert_allclose(affines.location, CENTRES[1:], atol=0.1)
    np.testing.assert_allclose(affines.scale[0] @ affines.scale[0].T, FACTOR @ FACTOR.T, atol=0.1)


def test_a_mode_that_the_labels_leave_out_is_added():
    """Every particle is said to belong to the mode at the right."""
    found = explored()
    lumped = Exploration(
        found.points[:, :, :],
        found.log_density,
        np.zeros_like(found.labels),
        *[
            getattr(found, name)
            for name in ("island_log_evidence", "scale", "gradients", "arrived")
        ],
    )
    one = np.where(found.labels == 1, 0, 1)
    target = gpvi.Target(two_modes, dim=2)
    density = Whitened(target, Affine.identity(2, "float32"))
    begin = starts(Cloud.of(lumped, density), np.where(one == 0, 0, -1).ravel())
    assert len(begin.location) == 1
    fitted = gaussian_mixture(density, lumped, key=jax.random.key(0))
    assert fitted is not None and len(fitted.model.log_weights) == 2


def test_fit_returns_a_mixture_with_the_right_shares(quick, tmp_path):
    target = gpvi.Target(two_modes, dim=2)
    posterior = gpvi.fit(target, SMALL, key=jax.random.key(0), progress=False, checkpoint=tmp_path)
    assert posterior.method.generator == Mixture(2, FullRank())
    assert "2 components" in " ".join(posterior.training.notes)
    x, log_q = posterior.sample_and_log_prob(4_000, key=jax.random.key(1))
    assert (np.asarray(x)[:, 0] > 0).mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 4_000))
    np.testing.assert_allclose(log_q, jax.vmap(two_modes)(x), atol=0.05)
    np.testing.assert_allclose(posterior.log_prob(x), log_q, atol=1e-4)
    diagnosis = posterior.diagnose()
    assert diagnosis.verdict.level == "good" and diagnosis.density == "exact"
    assert posterior.resample(100, key=0).shape == (100, 2)
    assert len(posterior.modes()) == 2

    posterior.save(tmp_path / "saved.gpvi")
    loaded = gpvi.load(tmp_path / "saved.gpvi")
    assert loaded.method == posterior.method
    np.testing.assert_array_equal(loaded.sample(50, key=2), posterior.sample(50, key=2))
    np.testing.assert_array_equal(loaded.log_prob(x[:50]), posterior.log_prob(x[:50]))

    again = gpvi.fit(target, SMALL, key=jax.random.key(0), progress=False, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.sample(50, key=2), posterior.sample(50, key=2))
    assert again.training.notes == posterior.training.notes

    more = gpvi.fit(target, key=1, init=posterior, steps=5, progress=False)
    assert more.method == posterior.method
    with pytest.raises(InputError, match="Continue with the same method"):
        gpvi.fit(target, SMALL, key=1, init=posterior, steps=5, progress=False)


def test_one_mode_costs_nothing(quick, monkeypatch):
    """No mixture is tried, and the fit is what it is without them."""
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: lambda: None)
    target = gpvi.Target(lambda x: -0.25 * (x**4).sum(), dim=2)
    without = gpvi.fit(target, SMALL, key=0, progress=False)

    found = explored()
    one = Exploration(
        found.points,
        found.log_density,
        0 * found.labels,
        found.island_log_evidence + np.log(6.57),
        8.0,
        0,
        True,
    )
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: lambda: one)
    monkeypatch.setattr(mixtures, "gaussian_mixture", None)
    posterior = gpvi.fit(target, SMALL, key=0, progress=False)
    assert posterior.method == SMALL
    np.testing.assert_array_equal(posterior.sample(20, key=1), without.sample(20, key=1))
