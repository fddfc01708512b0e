"""Diagnostics against closed forms, and against ArviZ."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.diagnostics.folding import conditioning
from gpvi.diagnostics.importance import (
    effective_share,
    importance,
    smoothed_log_weights,
    weighting,
)
from gpvi.diagnostics.two_sample import maximum_mean_discrepancy
from gpvi.diagnostics.verdict import Verdict
from gpvi.errors import InputError
from gpvi.generators import Triangular
from gpvi.generators.gaussian import LinearMap

pytestmark = pytest.mark.usefixtures("x64")

log_ratios = arrays(float, st.integers(1, 40), elements=st.floats(-30, 30))


def checked(log_p, log_q, **options):
    found, _ = importance(jnp.asarray(log_p) - jnp.asarray(log_q))
    given = {"fold": 0.0, "condition": 1.0, "density": "exact"} | options
    return Diagnosis(verdict=Verdict("good", "made up"), **found._asdict(), **given)


@settings(max_examples=50)
@given(log_ratios, st.floats(-500, 500))
def test_effective_share_by_its_definition(ratios, shift):
    weights = np.exp(ratios - ratios.max())
    expected = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert effective_share(jnp.asarray(ratios)) == pytest.approx(expected, rel=1e-9)
    assert effective_share(jnp.asarray(ratios + shift)) == pytest.approx(expected, rel=1e-9)


def test_effective_share_counts_the_draws_with_weight():
    assert effective_share(jnp.asarray([0.0, 0.0, -jnp.inf, -jnp.inf])) == pytest.approx(0.5)
    assert effective_share(jnp.asarray([3.0, -jnp.inf, -jnp.inf, -jnp.inf])) == pytest.approx(0.25)
    assert effective_share(jnp.zeros(7)) == pytest.approx(1.0)
    assert effective_share(jnp.full(4_000, -1e7, jnp.float32)) == pytest.approx(1.0)


@pytest.mark.parametrize("spread", [0.1, 0.8, 2.0, 4.0])
def test_k_hat_is_that_of_arviz(spread):
    """Ratios c x²/2 of a normal x, whose weights have a Pareto tail of shape c: light to hopeless."""
    import arviz

    ratios = spread * np.random.default_rng(1).standard_normal(2_000) ** 2 / 2
    _, expected = arviz.psislw(ratios.copy())
    log_weights, k_hat = smoothed_log_weights(jnp.asarray(ratios))
    assert k_hat == pytest.approx(float(expected), abs=0.05)
    assert np.exp(log_weights).sum() == pytest.approx(1)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_k_hat_of_a_pareto_tail_is_its_shape(shape):
    """w = u^{−k} has survival w^{−1/k}: a generalised Pareto of shape k."""
    uniform = np.random.default_rng(2).uniform(size=20_000)
    _, k_hat = smoothed_log_weights(jnp.asarray(-shape * np.log(uniform)))
    assert k_hat == pytest.approx(shape, abs=0.12)


@pytest.mark.parametrize(("n", "heavy"), [(200, True), (4_000, False)])
def test_a_few_weights_that_differ_a_little_are_no_tail(n, heavy):
    """A hundredth of the draws comes from a component that fits less well than the others, which fit exactly."""
    ratios = np.random.default_rng(4).standard_normal(n) * 1e-6
    ratios[: n // 100] = np.linspace(0, 0.6, n // 100)
    _, found = smoothed_log_weights(jnp.asarray(ratios))
    assert (found > 0.7) == heavy


def test_draws_outside_the_support_get_no_weight():
    ratios = np.random.default_rng(3).standard_normal(1_000)
    holes = ratios.copy()
    holes[::4] = -np.inf
    holes[1], holes[2] = np.nan, np.inf
    log_weights, k_hat = smoothed_log_weights(jnp.asarray(holes))
    bad = ~np.isfinite(holes)
    assert np.all(np.asarray(log_weights)[bad] == -np.inf)
    assert np.exp(log_weights).sum() == pytest.approx(1)
    assert np.isfinite(k_hat)
    order = np.argsort(holes[~bad])
    assert np.all(np.diff(np.asarray(log_weights)[~bad][order]) >= -1e-12)


@pytest.mark.parametrize(("mean", "deviation", "log_z"), [(0.5, 1.0, 3.0), (0.0, 0.6, -7.0)])
def test_elbo_of_gaussians_is_evidence_minus_divergence(mean, deviation, log_z):
    """q = N(mean, deviation²) against p = e^{log_z} N(0, 1): ELBO = log_z − ½(σ² + m² − 1 − log σ²)."""
    n = 40_000
    noise = np.random.default_rng(4).standard_normal(n)
    x = mean + deviation * noise
    log_q = -0.5 * noise**2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    log_p = log_z - 0.5 * x**2 - 0.5 * np.log(2 * np.pi)
    found = checked(log_p, log_q)
    divergence = 0.5 * (deviation**2 + mean**2 - 1 - np.log(deviation**2))
    assert found.elbo_se is not None
    assert abs(found.elbo - (log_z - divergence)) < 4 * found.elbo_se
    assert found.elbo_se == pytest.approx((log_p - log_q).std() / np.sqrt(n))
    if deviation == 1.0:  # E[w]² / E[w²] = exp(−m²)
        assert found.effective_share == pytest.approx(np.exp(-(mean**2)), rel=0.05)


def test_exact_q_leaves_nothing_to_complain_of():
    found = checked(np.full(500, 2.5), np.zeros(500))
    assert (found.elbo, found.elbo_se, found.effective_share) == pytest.approx((2.5, 0.0, 1.0))
    assert found.density == "exact"
    assert found.rejected == 0
    assert found.warnings == ()
    assert found.k_hat is not None
    assert found.k_hat < 0.5
    assert "reliable" in str(found)


def test_rejected_draws_are_counted_and_left_out():
    """What is left of q has the density q/a, a its share: here p on its support, so that the bound is the evidence."""
    log_p = np.where(np.arange(400) % 8 == 0, -np.inf, -1.0)
    found = checked(log_p, np.zeros(400))
    assert found.rejected == pytest.approx(1 / 8)
    assert found.elbo == pytest.approx(-1 + math.log(7 / 8))
    assert found.elbo == pytest.approx(found.log_evidence)
    assert found.effective_share == pytest.approx(7 / 8)
    assert "rejected draws" in str(found)
    assert "rejected draws" not in str(checked(np.zeros(400), np.zeros(400)))


def test_nothing_finite_is_said_not_raised():
    found = checked(np.full(50, np.nan), np.zeros(50))
    assert found.elbo == -math.inf
    assert found.rejected == 1
    assert found.effective_share == 0
    assert "not reliable" in str(found)


def test_folds_decide_what_densities_are_worth():
    zeros = np.zeros(100)
    unverified = checked(zeros, zeros, density="unverified")
    invalid = checked(zeros, zeros, fold=0.125, density="invalid")
    assert "unverified" in str(unverified)
    assert "WARNING: 12.5% of the draws lie on a fold" in str(invalid)
    assert "Triangular" in str(invalid)


def test_log_evidence_is_the_log_of_the_mean_weight():
    """q = N(½, 1) against p = e³ N(0, 1)."""
    x = 0.5 + np.random.default_rng(5).standard_normal(40_000)
    ratios = 3.0 - 0.5 * x**2 + 0.5 * (x - 0.5) ** 2
    found, _ = importance(jnp.asarray(ratios))
    assert abs(found.log_evidence - 3.0) < 4 * found.log_evidence_se
    assert found.log_evidence_se == pytest.approx(np.sqrt(np.expm1(0.25) / 40_000), rel=0.1)
    assert found.log_evidence > found.elbo


def test_weighting_finds_the_moments_of_the_target():
    rng = np.random.default_rng(7)
    x = np.array([1.0, 0.0]) + rng.standard_normal((50_000, 2)) * [1.0, 1.5]
    log_p, log_q = -0.5 * x**2, -0.5 * ((x - [1.0, 0.0]) / [1.0, 1.5]) ** 2
    _, log_weights = importance(jnp.asarray((log_p - log_q).sum(1)))
    found = weighting(jnp.asarray(x), log_weights)
    np.testing.assert_allclose(found.weighted_mean, 0, atol=0.05)
    np.testing.assert_allclose(found.weighted_sd, 1, atol=0.05)
    assert found.mean_shift == pytest.approx(1, abs=0.06)
    assert found.log_spread_shift == pytest.approx(np.log(1.5), abs=0.05)
    assert found.certain_log_spread_shift == pytest.approx(np.log(1.5), abs=0.1)


def test_the_error_of_a_changed_spread_is_that_of_replicates():
    rng, changes, errors = np.random.default_rng(8), [], []
    for x in rng.standard_normal((300, 1_000, 1)):
        log_ratios = 0.5 * x**2 * (1 - 1 / 1.1**2) - np.log(1.1)
        _, log_weights = importance(jnp.asarray(log_ratios[:, 0]))
        found = weighting(jnp.asarray(x), log_weights)
        changes.append(np.log(found.weighted_sd / found.sd))
        errors.append(found.sd_error)
    assert np.mean(errors) == pytest.approx(np.std(changes), rel=0.25)


@pytest.mark.parametrize(
    ("k_hat", "share", "words"),
    [
        (0.1, 0.8, "are reliable"),
        (0.6, 0.8, "usable"),
        (0.9, 0.8, "not reliable"),
        (0.9, 0.99, "heavy-tailed"),
        (1.1, 0.99, "not reliable"),
        (math.nan, 0.99, "not reliable"),
    ],
)
def test_words_follow_k_hat(k_hat, share, words):
    """As the verdict does, they set a heavy tail of even weights apart."""
    found = checked(np.zeros(100), np.zeros(100))
    assert words in str(dataclasses.replace(found, k_hat=k_hat, effective_share=share))


def test_conditioning_is_that_of_the_dense_block(getkey):
    rng = np.random.default_rng(6)
    weight = rng.standard_normal((3, 3))
    z = jax.random.normal(getkey(), (5, 3))
    dense = conditioning(LinearMap(jnp.asarray(weight), jnp.zeros(3)), z)
    assert dense == pytest.approx(np.linalg.cond(weight), rel=1e-9)
    generator = Triangular(2, "affine", (4,)).build(3, key=getkey(), dtype=jnp.float64)
    scaled = jax.tree.map(lambda leaf: leaf, generator)
    object.__setattr__(scaled.flow, "log_scale", jnp.asarray([0.0, 2.0]))
    assert conditioning(scaled, z) == pytest.approx(np.exp(2.0))


def test_weights_of_no_draw_cannot_be_relied_on():
    log_weights, k_hat = smoothed_log_weights(jnp.full(400, -jnp.inf))
    assert np.isneginf(log_weights).all() and k_hat == np.inf


@pytest.mark.parametrize(("rise", "k_hat"), [(1e-7, 0.0), (5.0, np.inf)])
def test_a_tail_of_ties_has_no_pareto_law(rise, k_hat):
    """All ratios are alike but for a few: rounding where q = p, or a density in steps."""
    ratios = np.full(4_000, -3.0)
    ratios[:20] += rise
    log_weights, found = smoothed_log_weights(jnp.asarray(ratios))
    assert float(found) == k_hat
    assert float(jax.nn.logsumexp(log_weights)) == pytest.approx(0, abs=1e-5)


def test_mmd_is_that_of_two_gaussians():
    """E exp(−‖a − b‖²/h) of a − b ~ N(m, v I) is Π (1 + 2v/h)^{−1/2} exp(−m²/(h + 2v))."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2_000, 2)), rng.normal([1.0, 0.0], 0.5, size=(1_500, 2))
    h = np.median(((x[:, None] - y[None]) ** 2).sum(-1))

    def expected(shift, variance):
        return np.prod([np.exp(-(m**2) / (h + 2 * variance)) for m in shift]) / (
            1 + 2 * variance / h
        )

    value = expected((0, 0), 2.0) + expected((0, 0), 0.5) - 2 * expected((1, 0), 1.25)
    assert maximum_mean_discrepancy(x, y) == pytest.approx(value, abs=0.015)
    assert value > 0.1
    again = rng.normal(size=(1_500, 2))
    assert abs(float(maximum_mean_discrepancy(x, again))) < 0.003
    same = jnp.ones((3, 2))
    assert maximum_mean_discrepancy(same, same) == 0
    with pytest.raises(InputError, match="1 and 3 draws"):
        maximum_mean_discrepancy(same[:1], same)
