"""An expensive log-density is trained with fewer draws and in shorter chunks, a cheap one as ever."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi._compute.operation_counts import EXPENSIVE, operations
from gpvi.errors import InputError, TrainingWarning
from gpvi.generators import SplineFlow, Triangular
from gpvi.initialization import _evaluation as evaluation
from gpvi.initialization._evaluation import THRIFT, HostDensity
from gpvi.targets import density
from gpvi.training import program
from gpvi.training.preparation import (
    THRIFTY,
    planned,
)
from gpvi.training.program import LONGEST_CHUNK, limit_chunk_time

pytestmark = pytest.mark.usefixtures("unexplored")

KEY = jax.random.key(0)
SMALL = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=16)


def vector(n):
    return jax.ShapeDtypeStruct((n,), np.float32)


def gaussian(x):
    return -0.5 * (x**2).sum()


def costly(x):
    """A Gaussian, and next to nothing from a product of matrices that takes 2 · 100³ operations."""
    product = jnp.cos(x[0] + jnp.arange(10_000.0).reshape(100, 100)) @ jnp.eye(100)
    return gaussian(x) + 1e-9 * jnp.sin(product).sum()


def target(log_density=gaussian, dim=2, **options):
    return gpvi.Target(log_density, dim=dim, **options)


def plan_of(target, method=None, steps=None, batch_size=None):
    return planned(target, method, steps, None, batch_size, "auto")


@pytest.fixture
def all_expensive(monkeypatch):
    monkeypatch.setattr(density, "EXPENSIVE", 0)
    monkeypatch.setattr(evaluation, "EXPENSIVE", 0)


class TestChoice:
    def test_a_cheap_log_density_keeps_the_plan(self):
        """A Gaussian, and a regression on 5,000 data with 25 coefficients."""
        data = jnp.ones((5_000, 25))

        def regression(x):
            return gaussian(x) - 0.5 * ((data @ x) ** 2).sum()

        for one in (target(), target(regression, 25)):
            assert not density.expensive(one)
            plan = plan_of(one)
            assert plan.method == gpvi.GPVI()
            assert plan.rounds == (500, 1_000, 2_000, 4_000)
            state = SMALL.init(one, plan.optimizer, key=KEY)
            assert limit_chunk_time(plan, one, state) is plan
            assert plan.longest == LONGEST_CHUNK
            assert HostDensity(one.log_density, one.dim).thrift == 1

    def test_an_expensive_one_takes_fewer_draws_and_steps(self):
        assert operations(jax.value_and_grad(costly), vector(2)) > EXPENSIVE
        plan = plan_of(target(costly))
        assert plan.method == THRIFTY
        assert plan.rounds == (250, 500, 1_000, 2_000)
        assert "128 draws per step" in THRIFTY.choices(2)
        assert HostDensity(costly, 2).thrift == THRIFT

    def test_what_is_given_is_kept(self):
        assert plan_of(target(costly), gpvi.GPVI()).method == gpvi.GPVI()
        assert plan_of(target(costly), gpvi.GPVI()).rounds[0] == 500
        assert plan_of(target(costly), steps=70).steps == 70
        drawn = target(costly, initial=lambda key: jax.random.normal(key, (2,)))
        assert plan_of(drawn).method == gpvi.GPVI()
        assert plan_of(target(costly, dim=21)).method == gpvi.GPVI()

    def test_batches_keep_the_default(self):
        many = gpvi.Target(
            log_likelihood=lambda x, batch: costly(x) - batch * x[0],
            data=jnp.ones(100),
            dim=2,
        )
        assert plan_of(many).method == THRIFTY
        assert plan_of(many, batch_size=10).method == gpvi.GPVI()

    def test_a_faulty_log_density_is_refused_as_ever(self):
        with pytest.raises(InputError, match="must return a scalar"):
            gpvi.fit(target(lambda x: x), key=KEY, progress=False)

    def test_a_first_round_is_a_whole_number_of_steps(self):
        assert gpvi.GPVI(first_round=3).rounds(2) == (3, 6, 12, 24)
        with pytest.raises(InputError, match="first_round"):
            gpvi.GPVI(first_round=0)


class TestChunks:
    @pytest.mark.slow
    def test_chunks_are_short_and_the_posterior_the_same(self, all_expensive, monkeypatch):
        """In chunks of two steps as in chunks of ten, bit for bit; the compiler would unroll chunks of one."""
        ends = {}
        for operations_at_a_time in (2**40, 1.0):
            monkeypatch.setattr(program, "CHUNK_OPERATIONS", operations_at_a_time)
            seen = []
            posterior = gpvi.fit(
                target(),
                SMALL,
                key=KEY,
                steps=500,
                progress=False,
                callbacks=[lambda event, seen=seen: seen.append(event.step)],
            )
            ends[operations_at_a_time] = seen, jax.tree.leaves(posterior.model)
        (few, usual), (many, short) = ends.values()
        assert np.diff(few).max() == 10
        assert np.diff(many).max() == 2
        for one, other in zip(usual, short, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_a_chunk_has_as_many_steps_as_its_operations_allow(self, monkeypatch):
        one = target(costly)
        plan = plan_of(one, SMALL, steps=5_000)
        state = SMALL.init(one, plan.optimizer, key=KEY)
        each = operations(jax.value_and_grad(costly), vector(2)) * 16
        monkeypatch.setattr(program, "CHUNK_OPERATIONS", 6 * each)
        assert 4 <= limit_chunk_time(plan, one, state).longest <= 6
        monkeypatch.setattr(program, "CHUNK_OPERATIONS", each / 100)
        assert limit_chunk_time(plan, one, state).chunk[0] == 2

    def test_an_interrupt_is_answered_after_two_steps(self, all_expensive, monkeypatch):
        monkeypatch.setattr(program, "CHUNK_OPERATIONS", 1)

        def interrupt(event):
            if event.step == 4:
                signal.raise_signal(signal.SIGINT)

        with pytest.warns(TrainingWarning, match="interrupted after step 4 of 500"):
            posterior = gpvi.fit(
                target(), SMALL, key=KEY, steps=500, progress=False, callbacks=[interrupt]
            )
        assert posterior.training.interrupted


@pytest.mark.slow
def test_an_expensive_posterior_is_fitted(all_expensive):
    """A bent density by few draws: trusted, with correct moments, and the same for the same key."""

    def banana(x):
        return -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - 0.25 * x[0] ** 2) / 0.5) ** 2

    posterior = gpvi.fit(target(banana), key=KEY, progress=False)
    assert posterior.method == THRIFTY
    assert "128 draws per step" in posterior.training.chosen
    draws = np.asarray(posterior.sample(20_000, key=jax.random.key(1)))
    np.testing.assert_allclose(draws.mean(0), [0.0, 1.0], atol=0.1)
    np.testing.assert_allclose(draws.std(0), [2.0, (0.25 + 2.0) ** 0.5], rtol=0.1)
    share = posterior.diagnose(key=jax.random.key(2)).effective_share
    assert share is not None
    assert share > 0.9


@pytest.mark.slow
def test_an_estimate_is_of_what_fit_would_choose():
    assert gpvi.estimate(target(costly), key=KEY).steps == 3_750
