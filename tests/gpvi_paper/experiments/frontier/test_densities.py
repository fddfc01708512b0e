"""Densities with known answers: exact draws obey Stein's identity and the evidence; what is right, and what lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi_paper.experiments.frontier.base import DENSITIES
from gpvi_paper.experiments.frontier.densities import PUBLIC, mixture
from gpvi_paper.experiments.frontier.hard import OURS
from gpvi_paper.experiments.frontier.verdicts import compared

QUICK = ("funnel", "moons", "scales", "box", "slab")
COMPACT = (
    "scales",
    "box",
    "slab",
    "twisted-2",
    "laplace",
    "gumbel",
    "student-5",
    "cauchy",
    "funnel-3",
    "narrow",
)
COMPACT += (
    "two-far",
    "two-farther",
    "labels",
    "signs",
    "aliases",
    "lengths",
    "student-2",
    "needle",
    "small-5",
)
"""Where a Gaussian half as wide as a mode lies inside of it, in few enough dimensions to compare with it."""
every_density = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in DENSITIES],
)


@every_density
def test_exact_draws_are_those_of_the_density(name):
    """E_p[(x_i − m_i) s_i] = −1 for every coordinate."""
    known = DENSITIES[name][1]()
    x = known.draw(np.random.default_rng(0), 20_000)
    score = jax.jit(jax.vmap(jax.grad(known.log_density)))(jnp.asarray(x, jnp.float32))
    terms = (x - np.median(x, 0)) * np.asarray(score, float)
    error = terms.std(0) / np.sqrt(len(x))
    assert (np.abs(terms.mean(0) + 1) < 5 * error + 0.02 * np.abs(terms).mean(0)).all()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COMPACT],
)
def test_log_evidence(name):
    """E_p[r/p̃] = 1/Z for a normalised r inside the support: half a Gaussian around one draw's mode."""
    known = DENSITIES[name][1]()
    x = known.draw(np.random.default_rng(1), 40_000)
    modes = known.modes(x)
    inside = x[modes == modes[0]]
    centre = np.median(inside, 0)
    sd = 0.5 * 1.4826 * np.median(np.abs(inside - centre), 0)
    z = (x - centre) / sd
    log_r = -0.5 * (z**2).sum(1) - np.log(sd).sum() - 0.5 * known.dim * np.log(2 * np.pi)
    log_p = jax.jit(jax.vmap(known.log_density))(jnp.asarray(x, jnp.float32))
    ratio = np.exp(log_r - np.asarray(log_p, float) + known.log_evidence)
    error = ratio.std() / np.sqrt(len(x))
    assert error < 0.25
    assert abs(ratio.mean() - 1) < 5 * error + 0.01


def test_exact_draws_are_right_and_a_lost_mode_is_not():
    known = mixture([[0.0, 0.0], [9.0, 0.0]], 1.0, [0.9, 0.1])
    draws = known.draw(np.random.default_rng(2), 20_000)
    assert compared(known, draws, 0.05, seed=0).right
    assert not compared(known, draws, -0.2, seed=0).right
    one = compared(known, draws[known.modes(draws) == 0], None, seed=0)
    assert not one.right
    assert one.lost == pytest.approx(0.1, abs=0.01)


def test_names_are_unique():
    assert len(DENSITIES) == len(PUBLIC) + len(OURS) >= 40
