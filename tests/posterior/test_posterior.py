"""What a posterior answers, with q known in closed form."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi import generators
from gpvi.errors import InputError, NotAvailableError, ReliabilityWarning
from gpvi.generators.gaussian import LinearMap
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine

pytestmark = pytest.mark.usefixtures("unexplored")

MEAN = np.array([1.0, -2.0, 0.5])
ROOT = np.array([[1.5, 0.0, 0.0], [0.7, 0.8, 0.0], [-0.3, 0.2, 0.4]])
COVARIANCE = ROOT @ ROOT.T
LOG_Z = 4.0
NO_TRAINING = Training(0, 0, 0.0, {})
NAMES = ("a", "b", "c")


SINGLE = gpvi.Target(lambda x: -0.5 * x @ x, dim=3, dtype="float32")


def gaussian_target(mean=MEAN, dtype="float64"):
    precision = np.linalg.inv(COVARIANCE)
    constant = LOG_Z - 0.5 * np.linalg.slogdet(2 * np.pi * COVARIANCE)[1]
    return gpvi.Target(
        lambda x: constant - 0.5 * (x - mean) @ precision @ (x - mean),
        dim=3,
        dtype=dtype,
        names=NAMES,
    )


def linear_posterior(mean=MEAN, root=ROOT, target=None):
    """q = N(mean, root rootᵀ), in coordinates of its own."""
    with jax.enable_x64(True):
        scale = np.diag([2.0, 0.5, 3.0]) + np.tril(np.full((3, 3), 0.1), -1)
        affine = Affine(jnp.asarray([0.5, 1.0, -1.0]), jnp.asarray(scale))
        weight = np.linalg.solve(scale, root)
        bias = np.linalg.solve(scale, mean - np.asarray(affine.location))
        model = LinearMap(jnp.asarray(weight), jnp.asarray(bias))
    method = gpvi.GPVI(generator=generators.Linear())
    return Posterior(method, model, Start(affine), NAMES, NO_TRAINING, target)


def built_posterior(generator, dim=3, target=None, dtype="float64"):
    with jax.enable_x64(dtype == "float64"):
        model = generator.build(dim, key=jax.random.key(3), dtype=jnp.dtype(dtype))
        model = jax.tree.map(lambda a: a + 0.1 if eqx.is_inexact_array(a) else a, model)
        affine = Affine(jnp.arange(dim, dtype=dtype), jnp.full(dim, 0.5, dtype))
    names = tuple(map(str, range(dim)))
    return Posterior(
        gpvi.GPVI(generator=generator), model, Start(affine), names, NO_TRAINING, target
    )


def particle_posterior(n=20) -> Any:
    positions = jnp.asarray(np.random.default_rng(0).standard_normal((n, 3)), jnp.float32)
    affine = Affine(jnp.zeros(3), jnp.full(3, 2.0))
    return Posterior(
        gpvi.SVGD(particles=n), Particles(positions), Start(affine), NAMES, NO_TRAINING
    )


def log_normal(x, mean=MEAN, root=ROOT):
    u = np.linalg.solve(root, (np.asarray(x, float) - mean).T)
    return -0.5 * (u**2).sum(0) - np.linalg.slogdet(root)[1] - 0.5 * len(mean) * np.log(2 * np.pi)


def test_draws_and_densities_are_those_of_the_gaussian(getkey):
    posterior, key = linear_posterior(), getkey()
    x = np.asarray(posterior.sample(50_000, key=key))
    again, log_q = posterior.sample_and_log_prob(50_000, key=key)
    assert x.shape == (50_000, 3)
    assert x.dtype == log_q.dtype == np.dtype("float64")
    np.testing.assert_allclose(x, again, rtol=1e-12)
    np.testing.assert_allclose(log_q, log_normal(x), rtol=1e-9)
    np.testing.assert_allclose(posterior.log_prob(x), log_q, rtol=1e-9)
    assert np.abs(x.mean(0) - MEAN).max() < 5 * 1.7 / np.sqrt(50_000)
    np.testing.assert_allclose(np.cov(x.T), COVARIANCE, atol=0.06)


@pytest.mark.parametrize(
    "generator",
    [
        generators.Triangular(2, "affine", (4,), scale_form="conditional"),
        generators.Triangular(2, generators.SplineFlow(2, 4, 5.0, 6), (4,)),
    ],
    ids=["affine", "spline"],
)
def test_log_prob_is_that_of_the_draws_own_density(generator, getkey):
    posterior = built_posterior(generator)
    x, log_q = posterior.sample_and_log_prob(64, key=getkey())
    np.testing.assert_allclose(posterior.log_prob(x), log_q, rtol=1e-6)
    assert posterior.log_prob(x[0]).shape == ()
    assert float(posterior.log_prob(x[0])) == pytest.approx(float(log_q[0]), rel=1e-6)


def test_density_integrates_to_one():
    """Quadrature of exp log_prob of a one-dimensional spline flow."""
    posterior = built_posterior(
        generators.Triangular(1, generators.SplineFlow(1, 4, 5.0, 6)), dim=1
    )
    grid = np.linspace(-12, 12, 20_001)
    total = np.trapezoid(np.exp(posterior.log_prob(grid[:, None])), grid)
    assert total == pytest.approx(1, abs=1e-4)


def test_same_key_same_draws_other_key_others(getkey):
    posterior, one, two = linear_posterior(), getkey(), getkey()
    np.testing.assert_array_equal(posterior.sample(5, key=one), posterior.sample(5, key=one))
    assert not np.allclose(posterior.sample(5, key=one), posterior.sample(5, key=two))


def test_diagnosis_of_the_exact_posterior(getkey):
    found = linear_posterior(target=gaussian_target()).diagnose(key=getkey())
    assert found.elbo is not None
    assert found.elbo_se is not None
    assert found.k_hat is not None
    assert abs(found.elbo - LOG_Z) < 4 * found.elbo_se + 1e-9
    assert found.effective_share == pytest.approx(1, abs=1e-6)
    assert found.k_hat < 0.5
    assert found.fold == 0
    assert found.density == "exact"
    assert found.warnings == ()


@pytest.mark.slow
def test_diagnosis_of_a_wrong_posterior_is_below_by_its_divergence(getkey):
    """Shifted by one whitened unit along each axis: KL = 3/2."""
    wrong = linear_posterior(mean=MEAN + ROOT @ np.ones(3), target=gaussian_target())
    found = wrong.diagnose(key=getkey(), draws=20_000)
    assert found.elbo is not None
    assert found.elbo_se is not None
    assert found.effective_share is not None
    assert abs(found.elbo - (LOG_Z - 1.5)) < 4 * found.elbo_se
    assert found.effective_share < 0.2


def test_resampling_moves_a_wrong_posterior_towards_the_target(getkey):
    wrong = linear_posterior(mean=MEAN + 0.6 * ROOT @ np.ones(3), target=gaussian_target())
    n, key = 1_000, getkey()
    draws = np.asarray(wrong.resample(n, key=key, proposals=20_000))
    plain = np.asarray(wrong.sample(n, key=key))
    assert draws.shape == (n, 3)
    miss = np.linalg.norm(np.linalg.solve(ROOT, draws.mean(0) - MEAN))
    before = np.linalg.norm(np.linalg.solve(ROOT, plain.mean(0) - MEAN))
    assert before > 0.9
    assert miss < 0.25


def test_many_draws_are_resampled_in_memory_that_grows_with_their_number(getkey):
    """One number for each draw and proposal would take 80 GB."""
    exact = linear_posterior(mean=MEAN, target=gaussian_target())
    draws = np.asarray(exact.resample(100_000, key=getkey(), proposals=200_000))
    miss = np.linalg.norm(np.linalg.solve(ROOT, draws.mean(0) - MEAN))
    assert miss < 5 * np.sqrt(3 / 100_000 + 3 / 200_000)


def test_weights_are_those_of_the_target(getkey):
    """E_q[w f] is E_p[f]: the weighted mean is the target's, where that of the draws is not."""
    wrong = linear_posterior(mean=MEAN + 0.6 * ROOT @ np.ones(3), target=gaussian_target())
    key = getkey()
    x, log_weights = wrong.sample_and_log_weights(20_000, key=key)
    weights = np.exp(np.asarray(log_weights))
    np.testing.assert_array_equal(x, wrong.sample(20_000, key=key))
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    miss = np.linalg.norm(np.linalg.solve(ROOT, weights @ np.asarray(x) - MEAN))
    assert miss < 0.1


def test_resampling_says_when_weights_are_of_no_use(getkey):
    far = linear_posterior(mean=MEAN + 6 * ROOT @ np.ones(3), target=gaussian_target())
    with pytest.warns(ReliabilityWarning, match=r"of 10000 proposals are effective.*See diagnose"):
        far.resample(1_000, key=getkey())
    nowhere = gpvi.Target(lambda x: jnp.where(x[0] > 1e9, -x @ x, -jnp.inf), dim=3, dtype="float64")
    lost = linear_posterior().with_target(nowhere)
    with pytest.raises(NotAvailableError, match="not finite at any of 1000 draws"):
        lost.resample(10, key=getkey())


def test_residual_that_folds_is_invalid_and_says_so(getkey):
    """g(z) = −3|z₁| + z₁ turns over at z₁ = 0, so that about half of the draws lie on either side."""
    generator = generators.Residual(latent=1, hidden=(2,), activation="relu", scale=1.0)
    with jax.enable_x64(False):
        model = generator.build(1, key=jax.random.key(0), dtype=jnp.float32)
        layer = model.trunk.layers[0]
        object.__setattr__(layer, "weight", jnp.asarray([[1.0], [-1.0]]))
        object.__setattr__(layer, "bias", jnp.zeros(2))
        object.__setattr__(model, "weight", jnp.asarray([[-3.0, -3.0]]))
        affine = Affine.identity(1, jnp.float32)
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=1)
    folded = Posterior(
        gpvi.GPVI(generator=generator), model, Start(affine), ("x",), NO_TRAINING, target
    )
    found = folded.diagnose(key=getkey())
    assert found.density == "invalid"
    assert found.fold == pytest.approx(0.5, abs=0.05)
    assert "WARNING" in str(found)
    assert "invalid" in str(found)


@pytest.mark.slow
def test_residual_without_a_fold_is_unverified(getkey):
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=3, dtype="float64")
    posterior = built_posterior(generators.Residual(2, (4,), "tanh", scale=5.0), target=target)
    found = posterior.diagnose(key=getkey(), draws=500)
    assert found.fold == 0
    assert found.density == "unverified"
    assert "unverified" in str(found)


@pytest.mark.parametrize("generator", [generators.Residual(2, (4,)), generators.MLP((4,), "tanh")])
def test_no_inverse_no_log_prob(generator, getkey):
    posterior = built_posterior(generator)
    x, log_q = posterior.sample_and_log_prob(4, key=getkey())
    assert np.isfinite(log_q).all()
    with pytest.raises(NotAvailableError, match=r"sample_and_log_prob.*Linear or Triangular"):
        posterior.log_prob(x)


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (
            lambda p, key: p.sample(21, key=key),
            ("20 draws", "21 draws", "GPVI", "train with more"),
        ),
        (lambda p, key: p.sample_and_log_prob(3, key=key), ("density", "GPVI", "amortised")),
        (lambda p, key: p.log_prob(jnp.zeros((2, 3))), ("density", "GPVI", "amortised")),
        (lambda p, key: p.with_target(SINGLE).resample(3, key=key), ("density", "GPVI")),
        (lambda p, key: p.generator, ("20 draws", "GPVI", "AmortizedSVGD")),
    ],
    ids=["sample", "sample_and_log_prob", "log_prob", "resample", "generator"],
)
def test_particles_say_what_they_cannot_and_who_can(ask, names, getkey):
    with pytest.raises(NotAvailableError) as caught:
        ask(particle_posterior(), getkey())
    for name in ("SVGD", *names):
        assert name in str(caught.value)


def test_particles_are_diagnosed_by_what_needs_no_density(getkey):
    found = particle_posterior().with_target(SINGLE).diagnose(key=getkey())
    assert found.elbo is None
    assert found.discrepancy is not None
    assert "Stein" in str(found)


def test_particles_are_drawn_without_repetition(getkey):
    posterior = particle_posterior()
    everything = np.asarray(posterior.particles)
    np.testing.assert_allclose(everything, 2.0 * np.asarray(posterior.model.positions))
    drawn = np.asarray(posterior.sample(20, key=getkey()))
    assert not np.array_equal(drawn, everything)
    np.testing.assert_array_equal(np.unique(drawn, axis=0), np.unique(everything, axis=0))
    assert len(np.unique(posterior.sample(7, key=getkey()), axis=0)) == 7
    with pytest.raises(NotAvailableError, match="sample"):
        _ = linear_posterior().particles


@pytest.mark.parametrize("what", ["diagnose", "resample"])
def test_without_its_target(what, getkey):
    posterior = linear_posterior()
    ask = {
        "diagnose": lambda p: p.diagnose(key=getkey(), draws=100),
        "resample": lambda p: p.resample(10, key=getkey()),
    }[what]
    with pytest.raises(NotAvailableError, match=f"{what} needs the target.*with_target"):
        ask(posterior)
    ask(posterior.with_target(gaussian_target()))
    assert posterior.target is None
    with pytest.raises(InputError, match=r"float32, the posterior float64"):
        posterior.with_target(gpvi.Target(lambda x: -x @ x, dim=3, dtype="float32"))
    with pytest.raises(InputError, match=r"dim=2, the posterior 3"):
        posterior.with_target(gpvi.Target(lambda x: -x @ x, dim=2))


@pytest.mark.parametrize("count", [0, -3])
def test_impossible_counts(count, getkey):
    posterior = linear_posterior(target=gaussian_target())
    for ask in (
        posterior.sample,
        posterior.sample_and_log_prob,
        posterior.resample,
        lambda n, key: posterior.diagnose(draws=n, key=key),
        lambda n, key: posterior.resample(3, proposals=n, key=key),
    ):
        with pytest.raises(InputError, match=f"{count}; it must be a whole number from 1 to"):
            ask(count, key=getkey())


def test_counts_of_numpy_are_counts(getkey):
    posterior, three = linear_posterior(target=gaussian_target()), np.int64(3)
    assert len(posterior.sample(three, key=getkey())) == 3
    assert len(posterior.sample_and_log_prob(three, key=getkey())[1]) == 3
    assert len(posterior.resample(three, proposals=np.int32(20), key=getkey())) == 3
    assert posterior.diagnose(draws=np.int64(100), key=getkey()).draws == 100


def test_points_of_the_wrong_shape():
    with pytest.raises(InputError, match=r"shape \(4, 2\).*\(n, 3\)"):
        linear_posterior().log_prob(jnp.zeros((4, 2)))


def test_repr_says_what_it_is():
    assert "GPVI" in repr(linear_posterior())
    assert "3 dimensions" in repr(linear_posterior())
