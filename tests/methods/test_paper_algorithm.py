"""`GPVI.paper`, and what `gpvi.fit` says of its inverse and its map at the end."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError, TrainingWarning
from gpvi.generators import AbstractGenerator, Residual
from gpvi.kernels import OnNoise
from gpvi.methods.base import Learner, State
from gpvi.solvers import Helper


def normal():
    return gpvi.Target(lambda x: -0.5 * x @ x, dim=3)


def fitted(method, steps=30):
    """A fit, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrainingWarning)
        posterior = gpvi.fit(normal(), method, key=0, steps=steps, init=None, progress=False)
    return posterior, [str(each.message) for each in caught]


def test_it_is_the_paper_s_algorithm():
    method = gpvi.GPVI.paper()
    assert method.gradient == "functional"
    assert method._noise_kernel() == OnNoise("full")
    assert method.generator == Residual(hidden=(64, 64), scale=1.0)
    assert (method.particles, method.batches) == (100, 2)
    assert method.default_steps() == 5_000
    assert method._pathwise_share() == 0.0


def test_its_options():
    assert gpvi.GPVI.paper(inverse="helper").solver == "helper"
    assert gpvi.GPVI.paper(inverse=Helper(width=7)).solver == Helper(width=7)
    learned = gpvi.GPVI.paper(scale="learned", latent=2).generator
    assert learned == Residual(latent=2, hidden=(64, 64), scale=0.05, learn_scale=True)
    for wrong in (
        lambda: gpvi.GPVI.paper(scale=0.0),
        lambda: gpvi.GPVI.paper(scale="learnt"),
        lambda: gpvi.GPVI.paper(inverse="exactly"),
        lambda: gpvi.GPVI.paper(particles=0),
    ):
        with pytest.raises(InputError):
            wrong()


def test_a_good_run_ends_without_a_word():
    method = gpvi.GPVI.paper(latent=1, hidden=(4,), particles=16)
    posterior, said = fitted(method)
    assert said == []
    assert posterior.training.notes == ()


def test_a_helper_that_has_not_learned_is_named_once():
    method = gpvi.GPVI.paper(
        inverse=Helper(width=2, learning_rate=1e-9), latent=1, hidden=(4,), particles=16
    )
    posterior, said = fitted(method)
    assert len(said) == 1
    assert "residual" in said[0] and "solver='block'" in said[0]
    assert posterior.training.notes == tuple(said)


class Cubic(AbstractGenerator):
    """x = z³ − z, whose slope is negative for |z| < 1/√3: 43.6 % of N(0, 1)."""

    coefficient: jax.Array

    @property
    def dim(self):
        return 1

    @property
    def injective(self):
        return False

    def head(self, z_head):
        return self.coefficient * (z_head**3 - z_head)


def concerns(generator, **history):
    state = State(Learner(generator, None, jnp.ones(())), None)
    return gpvi.GPVI.paper().concerns(state, {name: np.asarray(v) for name, v in history.items()})


def test_a_folded_map_is_named_with_its_share():
    (note,) = concerns(Cubic(jnp.ones(())))
    share = float(note.partition("%")[0].rpartition(" ")[2]) / 100
    assert abs(share - 0.436) < 4 * (0.436 * 0.564 / 256) ** 0.5
    assert "Triangular" in note


def test_the_inverse_is_judged_by_the_end_of_the_run_and_its_functional_steps():
    injective = gpvi.generators.Linear().build(2, key=jax.random.key(0), dtype="float32")
    bad_once = np.r_[np.full(100, 1e6), np.ones(400)]
    assert concerns(injective, stretch=bad_once, residual=np.zeros(500)) == ()
    (note,) = concerns(injective, stretch=bad_once[::-1], residual=np.zeros(500))
    assert "1e+06" in note and "scale=" in note
    mixed = np.where(np.arange(500) % 4 == 0, 2e3, 0.0)
    assert len(concerns(injective, stretch=mixed)) == 1
    (note,) = concerns(injective, residual=np.full(500, 0.4))
    assert "0.40" in note


def test_side_by_side_fits_warn_once_and_note_each():
    method = gpvi.GPVI.paper(
        inverse=Helper(width=2, learning_rate=1e-9), latent=1, hidden=(4,), particles=8
    )
    target = normal()
    with pytest.warns(TrainingWarning, match="2 of 2 runs") as caught:
        fits = gpvi.fit_seeds([target] * 2, method, key=0, steps=30, init=None, progress=False)
    assert len(caught) == 1
    assert all("residual" in fit.training.notes[0] for fit in fits)
