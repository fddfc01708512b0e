"""What a run does when the log-density fails: the policy of docs/surviving.md."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError, TrainingWarning
from gpvi.training.loop import _cause
from gpvi.training.recovery import rejections

METHOD = gpvi.SVGD(particles=4)


def fit(target, **options):
    options = {"steps": 100, "init": None, "progress": False} | options
    return gpvi.fit(target, METHOD, key=jax.random.key(0), **options)


class Counter:
    """A log-density with a callback of its own, which raises from the `last` call on."""

    def __init__(self, last: int):
        self.calls, self.last = 0, last

    def target(self) -> gpvi.Target:
        @jax.custom_jvp
        def penalty(x):
            return jax.pure_callback(
                self.value, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential"
            )

        penalty.defjvp(lambda primals, tangents: (penalty(*primals), -primals[0] @ tangents[0]))
        return gpvi.Target(penalty, dim=2)

    def value(self, x):
        self.calls += 1
        if self.calls > self.last:
            raise OSError("the simulator is gone")
        return np.asarray(-0.5 * np.square(x).sum(), x.dtype)


def test_a_log_density_that_raises_later_ends_the_run_with_what_there_is(tmp_path):
    failing = Counter(last=200)
    target = failing.target()
    said = r"stopped after step \d+ of 100, as the next failed: .*the simulator is gone"
    with pytest.warns(TrainingWarning, match=said):
        partial = fit(target, checkpoint=tmp_path)
    assert 10 < partial.training.steps < 60
    assert np.isfinite(partial.particles).all()
    failing.last = 10_000
    resumed = fit(target, checkpoint=tmp_path)
    assert resumed.training.steps == 100
    assert resumed.training.notes == ()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "RuntimeError"),
        ("RESOURCE_EXHAUSTED: out of memory\nallocator", "RESOURCE_EXHAUSTED: out of memory"),
        (
            'INTERNAL: Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise E\nE: no\nnumber',
            "E: no",
        ),
    ],
)
def test_the_line_that_tells_the_cause_is_said(text, cause):
    assert _cause(RuntimeError(text)) == cause


def test_a_log_density_that_raises_at_once_is_told():
    with pytest.raises(jax.errors.JaxRuntimeError, match="the simulator is gone"):
        fit(Counter(last=1).target())


@pytest.mark.parametrize(
    "error", [KeyError("scale"), ZeroDivisionError("by zero"), RuntimeError("no"), OSError("disk")]
)
def test_what_a_log_density_raises_when_it_is_traced_is_refused(error):
    def log_density(x):
        raise error

    with pytest.raises(InputError, match=f"the log-density fails .*{type(error).__name__}") as told:
        fit(gpvi.Target(log_density, dim=2))
    assert told.value.__cause__ is error


def test_many_rejected_draws_are_told():
    history = {"rejected": np.concatenate([np.ones(100), np.full(100, 0.04)])}
    assert rejections(history) is None
    history["rejected"][-20:] = 0.36
    assert "36% of the last draws" in str(rejections(history))
    assert "Transform a coordinate with a bounded range" in str(rejections(history))
    assert "or use dtype='float64' where numbers underflow" in str(rejections(history))
    assert rejections({}) is None


@pytest.mark.parametrize("outside", [jnp.nan, -jnp.inf, jnp.inf])
def test_draws_where_log_p_is_not_finite_count_for_nothing(outside):
    """Particles beyond the wall say nothing to the others, whichever value is there."""
    method = gpvi.DeepEnsemble(members=4, learning_rate=1e-3)
    walled = gpvi.Target(lambda x: jnp.where(x[0] < 2, -0.5 * x @ x, outside), dim=2)
    start = jnp.array([[0.5, 0.0], [1.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    with pytest.warns(TrainingWarning, match="25% of the last draws"):
        found = gpvi.fit(
            walled, method, key=jax.random.key(0), steps=10, init=start, progress=False
        )
    np.testing.assert_array_equal(found.particles[3], start[3])
    assert np.isfinite(found.training.history["log_density"]).all()
    assert (np.asarray(found.training.history["rejected"]) == 0.25).all()
