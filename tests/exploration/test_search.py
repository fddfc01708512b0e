"""What islands find together: modes with their shares, on mixtures that are known; and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import NotAvailableError
from gpvi.exploration.modes import Mode, _image, labelled
from gpvi.exploration.search import Exploration, explorable, explore, log_mean
from gpvi.targets.coordinates import Affine, Whitened


def two_modes(x):
    """.3 N(0, I) + .7 N(20·1, I), up to a constant."""
    near, far = -0.5 * x @ x, -0.5 * ((x - 20) ** 2).sum()
    return jnp.logaddexp(jnp.log(0.3) + near, jnp.log(0.7) + far)


@pytest.fixture(scope="module")
def found() -> Exploration:
    target = gpvi.Target(two_modes, dim=5)
    exploration = explore(Whitened(target, Affine.identity(5, "float32")), key=jax.random.key(0))
    assert exploration is not None
    return exploration


def test_both_modes_are_found_and_weighed(found):
    shares, errors = found.shares
    assert len(shares) == 2
    np.testing.assert_array_less(np.abs(shares - [0.7, 0.3]), 5 * errors)
    assert (errors < 0.1).all()
    assert abs(found.log_evidence - 2.5 * np.log(2 * np.pi)) < 4.8 * found.log_evidence_se
    assert found.gradients < 4_000_000


def test_chains_start_in_different_modes(found):
    starts = found.starts(5)
    assert sorted((starts.mean(1) > 10).tolist()) == [False, False, True, True, True]
    assert len(np.unique(starts, axis=0)) == 5


def test_log_mean_is_that_of_the_estimates_themselves():
    rng = np.random.default_rng(0)
    values = rng.gamma(20, size=12)
    mean, error = log_mean(np.log(values) + 700)
    assert mean == pytest.approx(np.log(values.mean()) + 700)
    assert error == pytest.approx(values.std(ddof=1) / values.mean() / np.sqrt(12))


@pytest.mark.parametrize("seed", range(3))
def test_particles_on_a_line_are_not_torn_apart(seed):
    """There the nearest neighbours of a particle may all lie on one side."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((1_024, 1)) < 0.3, 0, 20) + rng.normal(size=(1_024, 1))
    target = gpvi.Target(two_modes, dim=1)
    labels = labelled(Whitened(target, Affine.identity(1, "float32")), x)
    np.testing.assert_array_equal(labels, x[:, 0] < 10)


def test_images_of_a_mode():
    one = Mode(0.5, 0.01, np.array([1.0, 4.0]), np.array([0.1, 0.2]), 0.0, 8)
    flipped = one._replace(mean=-one.mean)
    swapped = one._replace(mean=one.mean[::-1], sd=one.sd[::-1])
    other = one._replace(mean=np.array([2.0, 4.0]))
    assert _image(flipped, [one]) == "mode 0 with other signs"
    assert _image(swapped, [one]) == "mode 0 in another order"
    assert _image(other, [one]) == ""


def test_what_is_too_large_is_not_explored():
    target = gpvi.Target(lambda x: -0.5 * x @ x, dim=201)
    assert not explorable(target)
    posterior = gpvi.fit(
        target, gpvi.MeanFieldVI(), steps=50, key=jax.random.key(0), init=None, progress=False
    )
    with pytest.raises(NotAvailableError, match="more than 200 dimensions"):
        posterior.modes(key=jax.random.key(1))
    assert posterior.diagnose(key=jax.random.key(1)).explored is None
