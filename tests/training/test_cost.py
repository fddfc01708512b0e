"""What a run will cost is told before it is made, and what it says is what the run does."""

import jax
import jax.numpy as jnp
import pytest

import gpvi
from gpvi.errors import InputError, TrainingWarning
from gpvi.generators import SplineFlow, Triangular
from gpvi.parallel import memory
from gpvi.training import cost, program

KEY = jax.random.key(0)
METHOD = gpvi.SVGD(particles=200)


def target(dim: int = 50) -> gpvi.Target:
    return gpvi.Target(lambda x: -0.5 * jnp.square(x).sum(), dim=dim)


def test_an_estimate_counts_the_steps_and_at_least_the_state():
    found = gpvi.estimate(target(), METHOD, key=KEY, steps=40)
    assert found.steps == 40
    assert found.seconds == pytest.approx(found.compile_seconds + 40 * found.step_seconds)
    assert found.memory is not None
    particles = 200 * 50 * 4
    assert 3 * particles < found.memory < 1_000 * particles
    assert "40 steps" in str(found)


def test_a_fit_after_an_estimate_compiles_its_steps_no_more():
    one, compiled = target(), []

    def on_compile(event, duration_secs, **_):
        if "backend_compile" in event:
            compiled.append(duration_secs)

    gpvi.estimate(one, METHOD, key=KEY, steps=40)
    gpvi.fit(one, METHOD, key=KEY, steps=40, init=None, progress=False)
    jax.monitoring.register_event_duration_secs_listener(on_compile)
    try:
        gpvi.estimate(one, METHOD, key=KEY, steps=40)
        gpvi.fit(one, METHOD, key=KEY, steps=40, init=None, progress=False)
    finally:
        jax.monitoring.unregister_event_duration_listener(on_compile)
    assert not compiled


def test_a_default_fit_after_an_estimate_finds_its_program(monkeypatch):
    one = gpvi.Target(lambda x: -0.5 * jnp.square(x).sum(), dim=2)
    options = {"key": KEY, "steps": 2}
    method = gpvi.GPVI(generator=gpvi.generators.Linear(), particles=8)
    gpvi.estimate(one, method, **options)

    def refuse(*args, **kwargs):
        raise AssertionError("compiled again")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    gpvi.fit(one, method, progress=False, **options)
    with pytest.raises(AssertionError, match="compiled again"):
        gpvi.fit(one, method, key=KEY, steps=3, progress=False)


class Clock:
    """Stands for `time`: between two looks at it, so many seconds pass."""

    def __init__(self, seconds: float):
        self.now, self.seconds = 0.0, seconds

    def perf_counter(self) -> float:
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize(("seconds", "length"), [(1e-3, 10), (1.0, 1)])
def test_a_slow_log_density_is_measured_by_one_step(seconds, length, monkeypatch):
    """Where one evaluation takes a second, a chunk of steps would take minutes."""
    lengths, call = [], program.Program.__call__

    def counted(self, *arguments):
        arrays, terms = call(self, *arguments)
        lengths.append(len(next(iter(terms.values()))))
        return arrays, terms

    monkeypatch.setattr(program.Program, "__call__", counted)
    monkeypatch.setattr(cost, "time", Clock(seconds))
    found = gpvi.estimate(target(), METHOD, key=KEY, steps=500)
    assert lengths == [length]
    assert found.steps == 500
    assert found.compile_seconds == pytest.approx(seconds)
    assert found.step_seconds == pytest.approx(seconds / length)


@pytest.mark.slow
def test_an_estimate_says_how_often_training_may_begin():
    two = gpvi.Target(lambda x: -0.5 * jnp.square(x).sum(), dim=2)
    small = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=16)
    assert "up to 3 times as long" in str(gpvi.estimate(two, small, key=KEY))
    assert "times as long" not in str(gpvi.estimate(two, small, key=KEY, steps=10))


def test_more_particles_need_more_memory():
    few, many = (
        gpvi.estimate(target(), gpvi.SVGD(particles=n), key=KEY, steps=1).memory for n in (50, 400)
    )
    assert few is not None
    assert many is not None
    assert many > 8 * few


def test_bad_arguments_are_refused_as_by_fit():
    with pytest.raises(InputError, match="steps is 0"):
        gpvi.estimate(target(), METHOD, key=KEY, steps=0)


def test_a_run_that_needs_more_than_there_is_says_so(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1_000)
    with pytest.warns(TrainingWarning, match="fewer particles"):
        posterior = gpvi.fit(target(), METHOD, key=KEY, steps=2, init=None, progress=False)
    assert posterior.training.steps == 2


@pytest.mark.parametrize(("seconds", "words"), [(59, "59 s"), (600, "10 min"), (7_200, "2.0 h")])
def test_durations_are_in_words(seconds, words):
    assert words in str(cost.Estimate(10, 0.0, seconds / 10, None))
