"""The verdict: each reason to doubt is found, the gravest first, and good is said of nothing doubtful."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpvi
from gpvi.diagnostics import verdict
from gpvi.diagnostics.diagnosis import _fall
from gpvi.diagnostics.verdict import ImportanceSummary
from gpvi.targets.coordinates import Affine, Whitened

FINE = ImportanceSummary(4_000, 0.95, 0.3, 0.01, 0.02, 0.0, 0.0, "exact")
UNCERTAIN = {"log_spread_shift": 0.4, "certain_log_spread_shift": math.log(1.1)}


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({}, "good", "fits"),
        ({"missing": None}, "good", "fits"),
        ({"explored": False}, "not explored", "never visit"),
        ({"density": "invalid"}, "do not trust", "folds"),
        ({"rejected": 0.1}, "do not trust", "10.0%"),
        ({"rejected": 0.1}, "do not trust", "bounded coordinate, or use dtype='float64'"),
        ({"rejected": 0.1, "outside": 0.1}, "usable with importance weights", "−∞ at 10.0%"),
        ({"rejected": 0.1, "outside": 0.05}, "do not trust", "10.0%"),
        ({"rejected": 0.1, "outside": 0.1, "k_hat": 0.8}, "no fault seen", "heavy tail"),
        (
            {"fall": 1.5, "coarse": "steps of 0.1. Use more"},
            "do not trust",
            "steps of 0.1. Use more.",
        ),
        ({"missing": 0.3}, "do not trust", "30%"),
        ({"fall": 1.5}, "do not trust", "1.5 nats"),
        ({"fall": 20.0}, "good", "fits"),
        ({"k_hat": 0.8, "effective_share": 0.9}, "do not trust", "0.80"),
        ({"k_hat": 0.8}, "no fault seen", "heavy tail"),
        ({"k_hat": 1.2}, "do not trust", "1.20"),
        ({"k_hat": math.nan}, "do not trust", "nan"),
        ({"effective_share": 0.01}, "do not trust", "0.01"),
        ({"draws": 100}, "no fault seen", "100 draws, 95 of them effective"),
        ({"draws": 100, "effective_share": 0.3}, "do not trust", "0.3"),
        ({"density": "unverified"}, "no fault seen", "injective"),
        ({"effective_share": 0.3}, "usable with importance weights", "0.30"),
        ({"mean_shift": 0.2}, "usable with importance weights", "0.20 sd"),
        ({"log_spread_shift": 0.4}, "usable with importance weights", "49%"),
        (UNCERTAIN, "usable with importance weights", "49%"),
        (UNCERTAIN | {"confirmed": True}, "good", "10% beyond chance"),
        ({"k_hat": 1.2, "confirmed": True}, "good", "islands found nothing more"),
        ({"k_hat": 1.2, "confirmed": True, "effective_share": 0.9}, "do not trust", "1.20"),
    ],
)
def test_each_reason_is_found(changes, level, word):
    found = verdict.of_density(FINE._replace(**changes))
    assert found.level == level
    assert word in str(found)
    assert found.remedy or level == "good"


shares = st.floats(0, 1)


@given(
    st.builds(
        ImportanceSummary,
        draws=st.integers(1, 10**6),
        effective_share=shares,
        k_hat=st.floats(-1, 3) | st.just(math.nan),
        mean_shift=st.floats(0, 10),
        log_spread_shift=st.floats(0, 10),
        missing=st.none() | shares,
        rejected=shares,
        outside=st.sampled_from([0.0, 0.5]),
        density=st.sampled_from(["exact", "unverified", "invalid"]),
        fall=st.none() | st.floats(-5, 50),
    )
)
def test_good_is_never_said_of_what_is_doubtful(seen):
    if verdict.of_density(seen).level == "good":
        assert seen.density == "exact"
        assert seen.fall is None or seen.fall >= verdict.LEAST_FALL
        assert not seen.missing
        assert seen.k_hat <= 0.7
        assert seen.mean_shift <= 0.1
        assert seen.effective_share * seen.draws >= 100


@pytest.mark.parametrize(
    ("rhat", "ess", "divergences", "level"),
    [
        (1.002, 2_000.0, 0, "good"),
        (1.002, 2_000.0, 3, "do not trust"),
        (1.3, 2_000.0, 0, "do not trust"),
        (math.nan, 2_000.0, 0, "do not trust"),
        (1.02, 2_000.0, 0, "no fault seen"),
        (1.002, 50.0, 0, "no fault seen"),
    ],
)
def test_chains(rhat, ess, divergences, level):
    assert verdict.of_chains(rhat, ess, divergences).level == level


@pytest.mark.usefixtures("unexplored")
def test_collapsed_particles_are_not_trusted():
    """50 particles of SVGD in 40 dimensions have lost most of their variance."""
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=40)
    svgd = gpvi.SVGD(particles=50)
    posterior = gpvi.fit(target, svgd, key=jax.random.key(0), steps=500, init=None, progress=False)
    found = posterior.diagnose(key=jax.random.key(1))
    assert found.verdict.level == "do not trust"
    assert "collapsed" in str(found.verdict)
    variance = jnp.var(posterior.particles, axis=0)
    assert found.stein_spread is not None
    assert found.stein_spread[0] == pytest.approx(float(variance.min()), rel=0.05)
    assert verdict.of_particles(None, None, None, 40).level == "do not trust"
    assert verdict.of_particles(0.1, (0.95, 1.5), 0.5, 2).level == "do not trust"
    assert verdict.of_particles(0.1, (0.95, 1.1), 0.5, 2).level == "no fault seen"
    assert verdict.of_particles(0.1, (0.95, 1.1), 0.0, 2).level == "do not trust"


def test_particles_that_have_not_arrived_are_not_trusted():
    """Of the right spread, three deviations from where they should be."""
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=2)
    points = jax.random.normal(jax.random.key(0), (100, 2)) + jnp.asarray([3.0, 0.0])
    posterior = gpvi.fit(
        target,
        gpvi.SVGD(particles=100),
        key=jax.random.key(1),
        steps=5,
        init=points,
        progress=False,
    )
    found = posterior.diagnose(key=jax.random.key(2))
    assert found.verdict.level == "do not trust"
    assert "mean score" in str(found.verdict)


def _along_a_ridge(key, shape):
    """Draws of N(0, 1/100) across and N(0, 100) along x₁ + x₂ = 0."""
    z = jax.random.normal(key, shape)
    across, along = 0.1 * z[:, 0], 10 * z[:, 1]
    return jnp.stack([across + along, across - along], 1) / 2**0.5


def half_flat(x):
    """A coordinate that falls on one side alone."""
    return -0.5 * x[0] ** 2 - jax.nn.softplus(x[1])


def slow(x):
    """A coordinate that falls as 1/|x|."""
    return -0.5 * x[0] ** 2 - 0.5 * jnp.log1p(x[1] ** 2)


@pytest.mark.parametrize(
    ("log_density", "draw", "least", "most"),
    [
        (lambda x: -0.5 * (x**2).sum(), jax.random.normal, 15, 30),
        (lambda x: -jnp.log1p(x**2).sum(), jax.random.cauchy, verdict.LEAST_FALL, math.inf),
        (lambda x: -0.5 * x[0] ** 2 + 0 * x[1], jax.random.normal, -1, 1e-6),
        (lambda x: -50 * (x[0] + x[1]) ** 2, _along_a_ridge, -1, 0.1),
        (half_flat, jax.random.normal, -1, 1.0),
        (slow, jax.random.normal, -1, verdict.LEAST_FALL),
        (lambda x: jnp.where(x[0] > 0, -0.5 * (x**2).sum(), -jnp.inf), jax.random.normal, 15, 1e9),
    ],
)
def test_what_has_no_integral_does_not_fall(log_density, draw, least, most):
    """The flattest line is found, and the side of it on which less is lost."""
    target = gpvi.Target(log_density, dim=2)
    x = draw(jax.random.key(0), (1_000, 2))
    density = Whitened(target, Affine.identity(2, "float32"))
    fall = _fall(density, x, jax.vmap(jax.grad(log_density))(x))
    assert fall is not None and least < fall < most
