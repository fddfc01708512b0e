"""Whether a part of the posterior is missed: against mixtures and Gaussians with known evidence."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics import missing_mass as masses
from gpvi.diagnostics.importance import importance
from gpvi.diagnostics.missing_mass import (
    InitialEvidence,
    ReferenceEvidence,
    missing_mass,
    wide_gaussian_evidence,
)
from gpvi.generators import Linear
from gpvi.generators.gaussian import LinearMap
from gpvi.targets import density
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.preflight import rounded
from gpvi.training.stopping import importance_of_draws


def two_modes(x):
    """Masses 0.7 and 0.3 at ±3, normalised."""
    near, far = jnp.log(0.7) - 0.5 * (x[0] - 3) ** 2, jnp.log(0.3) - 0.5 * (x[0] + 3) ** 2
    return jnp.logaddexp(near, far) - 0.5 * jnp.log(2 * jnp.pi)


SINGLE = np.dtype("float32")


def whitened(log_density, mean, sd):
    target = gpvi.Target(log_density, dim=1)
    return Whitened(target, Affine(jnp.array([mean]), jnp.array([sd])))


def test_a_generator_on_one_mode_is_seen_to_miss_the_other():
    mean, sd = 1.2, float(np.sqrt(1 + 9 - 1.2**2))
    density = whitened(two_modes, mean, sd)
    one_mode = Linear().build(1, key=jax.random.key(0), dtype=jnp.float32)
    one_mode = LinearMap(one_mode.weight / sd, one_mode.bias + (3 - mean) / sd)
    outside = wide_gaussian_evidence(density, key=jax.random.key(1))
    inside = importance_of_draws(density, one_mode, key=jax.random.key(2))
    assert outside is not None
    assert abs(outside.log_evidence) < 4 * outside.se
    assert inside.effective_share > 0.5, "from inside most looks well"
    assert missing_mass(inside, outside, dtype=SINGLE) == pytest.approx(0.3, abs=0.03)


def test_an_exact_generator_misses_nothing():
    density = whitened(lambda x: -0.5 * ((x[0] - 5) / 2) ** 2, 5.0, 2.0)
    exact = Linear().build(1, key=jax.random.key(0), dtype=jnp.float32)
    outside = wide_gaussian_evidence(density, key=jax.random.key(1))
    inside = importance_of_draws(density, exact, key=jax.random.key(2))
    assert inside.log_evidence == pytest.approx(np.log(2 * np.sqrt(2 * np.pi)), abs=1e-3)
    assert missing_mass(inside, outside, dtype=SINGLE) == 0.0


def test_in_many_dimensions_nothing_is_claimed():
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=60)
    density = Whitened(target, Affine.identity(60, jnp.float32))
    exact = Linear().build(60, key=jax.random.key(0), dtype=jnp.float32)
    outside = wide_gaussian_evidence(density, key=jax.random.key(1))
    assert outside is None
    inside = importance_of_draws(density, exact, key=jax.random.key(2))
    assert missing_mass(inside, outside, dtype=SINGLE) is None


def apart(x):
    """Half at −100 with sd 1, half at 100 with sd 10: between them there is nothing."""
    left, right = (jax.scipy.stats.norm.logpdf(x, at, sd) for at, sd in ((-100, 1), (100, 10)))
    return jnp.logaddexp(left, right)[0] - math.log(2)


@pytest.mark.slow
def test_the_start_remembers_modes_that_training_loses(tmp_path):
    """A wide Gaussian has too few draws in either mode; the paths of the start end in both."""
    target = gpvi.Target(apart, dim=1)
    one_mode = gpvi.GPVI(generator=gpvi.generators.Linear(), particles=64)
    posterior = gpvi.fit(target, one_mode, key=jax.random.key(0), steps=2_000, progress=False)
    known = posterior.start.evidence
    assert known is not None
    assert known.log_evidence == pytest.approx(0, abs=5 * known.se)
    found = posterior.diagnose(key=jax.random.key(1))
    assert found.missing == pytest.approx(0.5, abs=0.05)
    assert found.verdict.level == "do not trust"
    posterior.save(tmp_path / "saved")
    loaded = gpvi.load(tmp_path / "saved")
    assert loaded.start.evidence == known
    assert loaded.with_target(target).diagnose(key=jax.random.key(1)).missing == found.missing


@pytest.mark.slow
def test_what_the_start_saw_is_not_held_against_another_target():
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=5)
    higher = gpvi.Target(lambda x: 3 - 0.5 * (x**2).sum(), dim=5)
    method = gpvi.MeanFieldVI()
    posterior = gpvi.fit(target, method, key=jax.random.key(0), steps=100, progress=False)
    density = [Whitened(each, posterior.affine) for each in (target, higher)]
    known = posterior.start.evidence
    assert known is not None
    assert known.reference(density[0]) is not None
    assert known.reference(density[1]) is None
    assert posterior.with_target(higher).diagnose(key=jax.random.key(1)).missing == 0


def test_a_start_in_a_hole_of_the_density_remembers_nothing():
    """Its target could not be known again, and no file would hold the value."""

    def hollow(x):
        return jnp.where(jnp.abs(x[0]) < 0.1, -jnp.inf, -0.5 * x[0] ** 2)

    density = whitened(hollow, 0.0, 1.0)
    assert InitialEvidence.measured(density, 0.9, 0.01) is None
    assert InitialEvidence.measured(whitened(hollow, 0.5, 1.0), 0.9, 0.01) is not None
    assert InitialEvidence.measured(whitened(hollow, 0.5, 1.0), 0.9, 0.5) is None


def test_what_floats_round_off_is_in_doubt():
    """log p of 2·10⁷ is known to 2 nats in single precision."""
    inside = importance(jnp.zeros(4_000))[0]._replace(log_evidence=-2e7)
    half = ReferenceEvidence(-2e7 + math.log(2), 0.01)
    assert missing_mass(inside, half, dtype=SINGLE) == 0.0
    assert missing_mass(inside, half, dtype=np.dtype("float64")) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("location", "log_density", "told"),
    [
        ([1.7e9, 0.0], -3.0, r"b is near 1.7e\+09 with sd 10, where float32"),
        ([0.0, 0.0], -2e7, r"log p is -2e\+07, which float32 resolves to 2 nats"),
    ],
)
def test_what_floats_cannot_tell_apart_is_told(location, log_density, told):
    deviations = jnp.array([10.0, 1.0])
    (note,) = rounded(jnp.array(location), deviations, log_density, lambda: ("b", "c"))
    assert re.match(told, note)
    assert rounded(jnp.array([2_000.0, 0.0]), deviations, -1e5, lambda: ("b", "c")) == ()


def test_the_largest_of_what_is_missed_counts():
    inside = importance(jnp.zeros(4_000))[0]
    nothing, half = ReferenceEvidence(0.0, 0.01), ReferenceEvidence(math.log(2), 0.01)
    assert missing_mass(inside, nothing, half, dtype=SINGLE) == pytest.approx(0.5)
    assert missing_mass(inside, None, nothing, dtype=SINGLE) == 0.0
    assert missing_mass(inside, None, None, dtype=SINGLE) is None


def test_an_expensive_log_density_is_given_fewer_proposals(monkeypatch):
    """The evidence of a Gaussian is right with many proposals, and with few."""
    asked = []
    weights = masses._wide_gaussian_weights
    monkeypatch.setattr(
        masses,
        "_wide_gaussian_weights",
        lambda target, n, key: (asked.append(n), weights(target, n, key))[1],
    )
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=2)
    cheap = wide_gaussian_evidence(target, key=jax.random.key(0))
    monkeypatch.setattr(density, "EXPENSIVE", 0)
    expensive = wide_gaussian_evidence(target, key=jax.random.key(0))
    assert asked == [masses.PROPOSALS, masses.FEW_PROPOSALS]
    for evidence in (cheap, expensive):
        assert evidence is not None
        assert evidence.log_evidence == pytest.approx(np.log(2 * np.pi), abs=4 * evidence.se)
