"""Training in rounds: stops where the draws fit, begins anew where they cannot be trusted."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.diagnostics.importance import Importance
from gpvi.generators import SplineFlow, Triangular
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training import stopping
from gpvi.training.fit import TrainingWarning
from gpvi.training.program import chunk_length
from gpvi.training.stopping import Assessment, Judge, Outlook

SMALL = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=128)


def gaussian(x):
    return -0.5 * (x**2).sum()


def seen(elbo, share=0.5, k_hat=0.3):
    return Importance(elbo, 0.001, elbo, 0.001, share, k_hat, 0.0, 4_000)


@pytest.mark.slow
def test_training_ends_with_the_first_round_that_fits(monkeypatch):
    monkeypatch.setattr("gpvi.training.fit.fits_at_start", lambda *_, **__: None)
    posterior = gpvi.fit(gpvi.Target(gaussian, dim=2), SMALL, key=jax.random.key(0), progress=False)
    first = SMALL.rounds(2)[0]
    assert posterior.training.steps == posterior.training.planned == first
    assert "stopped after 500 of at most 7,500 steps: the draws fit" in posterior.training.chosen
    assert "128 draws per step" in posterior.training.chosen
    assert posterior.training.notes == ()


def test_a_gaussian_needs_no_training(tmp_path):
    """The draws are those of the density, by its moments; saved and loaded, they are the same."""
    factor = np.array([[2.0, 0.0], [-1.0, 0.1]])

    def log_density(x):
        u = jnp.linalg.solve(jnp.asarray(factor), x - 3.0)
        return -0.5 * u @ u

    posterior = gpvi.fit(gpvi.Target(log_density, dim=2), SMALL, key=0, progress=False)
    assert (posterior.training.steps, posterior.training.planned) == (0, 0)
    assert "0 steps: the start is a Gaussian that fits" in posterior.training.chosen
    assert posterior.diagnose(key=1).verdict.level == "good"
    draws = np.asarray(posterior.sample(20_000, key=2))
    np.testing.assert_allclose(draws.mean(0), 3.0, atol=0.06)
    np.testing.assert_allclose(np.cov(draws.T), factor @ factor.T, rtol=0.05)
    posterior.save(tmp_path / "posterior.gpvi")
    loaded = gpvi.load(tmp_path / "posterior.gpvi")
    np.testing.assert_array_equal(loaded.sample(5, key=2), posterior.sample(5, key=2))


@pytest.mark.parametrize("given", [{"steps": 30}, {"init": None, "steps": 20}])
def test_given_lengths_are_kept(given):
    target = gpvi.Target(gaussian, dim=2)
    posterior = gpvi.fit(target, SMALL, key=jax.random.key(0), progress=False, **given)
    assert posterior.training.steps == given["steps"]


def test_chunks_end_where_rounds_do():
    for rounds in ((500, 1_000, 2_000, 4_000), (7, 14), (30, 45)):
        length, masked = chunk_length(sum(rounds), rounds)
        assert not masked
        assert all(end % length == 0 for end in np.cumsum(rounds))


@pytest.mark.parametrize(
    ("before", "now", "missed", "stops"),
    [
        (None, seen(-1.0), 0.0, None),
        (None, seen(-1.0, 0.99), 0.0, "fit"),
        (None, seen(-1.0, 0.99), 0.4, None),
        (None, seen(-1.0, 0.99, 0.9), 0.0, None),
        (seen(-1.0), seen(-0.9), 0.0, None),
        (seen(-1.0), seen(-0.999), 0.0, "no longer rises"),
        (seen(-1.0), seen(-1.5), 0.3, "no longer rises"),
    ],
)
def test_the_judge(before, now, missed, stops, monkeypatch):
    monkeypatch.setattr(stopping, "importance_of_draws", lambda *args, **options: now)
    monkeypatch.setattr(stopping, "missing_mass", lambda *args, dtype: missed)
    target = Whitened(gpvi.Target(gaussian, dim=1), Affine.identity(1, "float32"))
    judge = Judge(target, tuple, key=jax.random.key(0))
    state = SMALL.init(target, SMALL.default_optimizer(1), key=jax.random.key(0))
    why, found = judge(state, None if before is None else Assessment(before, 0.0))
    assert found == judge.last == Assessment(now, missed)
    assert why is None if stops is None else stops in why


@pytest.mark.parametrize(
    ("outlook", "now", "missed", "stops"),
    [
        (Outlook("R̂ 1.00", 100), seen(-1.0, 0.6), 0.0, True),
        (Outlook("R̂ 1.00", 100), seen(-1.0, 0.6), 0.3, False),
        (Outlook("R̂ 1.00", 100), seen(-1.0, 0.1), 0.0, False),
        (Outlook("R̂ 1.00", 100), seen(-1.0, 0.6, 0.9), 0.0, False),
        (Outlook(None, 100), seen(-1.0, 0.6), 0.0, False),
        (None, seen(-1.0, 0.6), 0.0, False),
    ],
)
def test_training_for_chains_ends_where_they_mix(outlook, now, missed, stops, monkeypatch):
    """Only where weights can confirm them: chains miss what the generator is walled off from, and do not say so."""
    monkeypatch.setattr(stopping, "importance_of_draws", lambda *args, **options: now)
    monkeypatch.setattr(stopping, "missing_mass", lambda *args, dtype: missed)
    target = Whitened(gpvi.Target(gaussian, dim=1), Affine.identity(1, "float32"))
    judge = Judge(target, tuple, looks=lambda state: outlook, key=jax.random.key(0))
    state = SMALL.init(target, SMALL.default_optimizer(1), key=jax.random.key(0))
    why, found = judge(state, None)
    assert (why is not None) == found.refinable == stops
    assert judge.last == found
    assert not stops or "chains in its noise mix" in str(why)


def test_draws_that_fit_by_luck_are_trained_on(monkeypatch):
    """The first set of noise fits, the second does not."""
    found = iter([seen(-1.0, 0.99), seen(-1.0, 0.9), seen(-0.5, 0.99), seen(-0.5, 0.99)])
    monkeypatch.setattr(stopping, "importance_of_draws", lambda *_, **__: next(found))
    monkeypatch.setattr(stopping, "missing_mass", lambda *args, dtype: 0.0)
    target = Whitened(gpvi.Target(gaussian, dim=1), Affine.identity(1, "float32"))
    judge = Judge(target, tuple, key=jax.random.key(0))
    state = SMALL.init(target, SMALL.default_optimizer(1), key=jax.random.key(0))
    why, before = judge(state, None)
    assert why is None
    why, _ = judge(state, before)
    assert why is not None and "the draws fit" in why


@pytest.mark.usefixtures("unexplored")
def test_a_round_judged_twice_is_compared_with_the_round_before(monkeypatch):
    """The first step after a round fails: the run goes back, and the same round ends, and is judged, once more."""
    monkeypatch.setattr(stopping, "importance_of_draws", lambda *_, **__: seen(-1.0))
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (4, 8))
    program = importlib.import_module("gpvi.training.program")
    run_chunk, failed = program.Program.__call__, []

    def fails_once(self, arrays, target, key, first, batches=None):
        arrays, terms = run_chunk(self, arrays, target, key, first, batches)
        if int(first) == 4 and not failed:
            failed.append(int(first))
            terms = {name: values.at[0].set(np.nan) for name, values in terms.items()}
        return arrays, terms

    monkeypatch.setattr(program.Program, "__call__", fails_once)
    monkeypatch.setattr(stopping, "ATTEMPTS", 1)
    with pytest.warns(TrainingWarning, match="step 4: .* is not finite; went back to step") as told:
        posterior = gpvi.fit(
            gpvi.Target(gaussian, dim=2), SMALL, key=jax.random.key(0), progress=False
        )
    assert failed and posterior.training.steps == 12
    assert {warning.filename for warning in told} == {__file__}, "it points at the call of fit"


def test_of_two_attempts_the_one_that_misses_nothing_is_better():
    assert Assessment(seen(-2.0), 0.0).rank > Assessment(seen(-1.0), 0.2).rank
    assert Assessment(seen(-1.0), 0.0).rank > Assessment(seen(-2.0), 0.0).rank
    assert "misses 20%" in str(Assessment(seen(-1.0), 0.2))


@pytest.mark.usefixtures("unexplored")
def test_what_cannot_be_trusted_is_tried_again_and_told(monkeypatch):
    """Weights that are never reliable: three attempts, the best kept, all of them in the notes."""
    at_start = [-10.0]
    elbos = iter([*at_start, -3.0, -2.0, -1.5, -1.0, -9.0, -8.0])
    monkeypatch.setattr(
        stopping, "importance_of_draws", lambda *_, **__: seen(next(elbos), k_hat=0.9)
    )
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (2, 4))
    with pytest.warns(TrainingWarning, match="no attempt can be trusted") as warned:
        posterior = gpvi.fit(
            gpvi.Target(gaussian, dim=2), SMALL, key=jax.random.key(0), progress=False
        )
    assert {warning.filename for warning in warned} == {__file__}, "it points at the call of fit"
    told = posterior.training.notes
    assert [note[:14] for note in told] == [f"attempt {i} of 3" for i in (1, 2, 3)]
    assert "ELBO -1," in told[1]
    assert posterior.training.steps == 6


@pytest.mark.usefixtures("unexplored")
def test_an_attempt_that_is_cut_short_does_not_replace_a_finished_one(monkeypatch):
    """Stopped in the second attempt, before its first round is over: the first stays the best, and both are told."""
    at_start = [-10.0]
    elbos = iter([*at_start, -3.0, -2.0, -9.0])
    monkeypatch.setattr(
        stopping, "importance_of_draws", lambda *_, **__: seen(next(elbos), k_hat=0.9)
    )
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (2, 4))
    calls = []

    def stop_later(event):
        calls.append(event.step)
        if calls.count(calls[0]) == 2:
            raise StopIteration

    with pytest.warns(TrainingWarning):
        posterior = gpvi.fit(
            gpvi.Target(gaussian, dim=2),
            SMALL,
            key=jax.random.key(0),
            progress=False,
            callbacks=[stop_later],
        )
    first, second = posterior.training.notes
    assert posterior.training.steps == 6
    assert first.startswith("attempt 1 of 2: ELBO -2,")
    assert second.startswith("attempt 2 of 2: ELBO -9,") and "stopped by a callback" in second


def test_the_two_evidences_share_no_noise(monkeypatch):
    """One is of q, the other of a wide Gaussian, and their errors are added as those of independent estimates."""
    keys = {}

    def outside(density, *, key):
        keys["outside"] = key

    def inside(density, model, *, key):
        keys["inside"] = key
        return seen(np.log(2 * np.pi), 0.99)

    monkeypatch.setattr(stopping, "importance_of_draws", inside)
    monkeypatch.setattr(stopping, "wide_gaussian_evidence", outside)
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (2, 4))
    gpvi.fit(gpvi.Target(gaussian, dim=2), SMALL, key=jax.random.key(0), progress=False)
    drawn = [jax.random.normal(keys[name], (4,)) for name in ("inside", "outside")]
    assert not set(np.asarray(drawn[0])) & set(np.asarray(drawn[1]))
