"""The verdict on default fits of densities with known answers: never good of a wrong one, and good of right ones."""

import jax
import numpy as np
import pytest

import gpvi
from gpvi.errors import quietly
from gpvi_paper.experiments.frontier.base import DENSITIES
from gpvi_paper.experiments.frontier.verdicts import DRAWS, compared

pytestmark = pytest.mark.slow


def judged(name):
    """The verdict's level, and whether the fit is right."""
    known = DENSITIES[name][1]()
    target = gpvi.Target(known.log_density, dim=known.dim)
    with quietly():
        posterior = gpvi.fit(target, key=jax.random.key(0), progress=False)
        diagnosis = posterior.diagnose(key=jax.random.key(1))
    draws = np.asarray(posterior.sample(DRAWS, key=jax.random.key(2)), float)
    return diagnosis.verdict.level, compared(known, draws, diagnosis.log_evidence, seed=0).right


@pytest.mark.parametrize("name", ["aliases", "labels", "student-10", "wells-32", "small-3"])
def test_a_fit_that_misses_a_part_is_not_good(name):
    """Weights, k̂ and the ESS of one generator look perfect on these; only the islands know."""
    level, right = judged(name)
    assert right or level == "do not trust"


@pytest.mark.parametrize("name", ["scales", "laplace", "slab", "moons"])
def test_a_right_fit_is_good(name):
    assert judged(name) == ("good", True)
