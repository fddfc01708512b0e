"""Operations are counted as traced; an expensive log-density is evaluated less often, a cheap one as ever."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi._compute.operation_counts import EXPENSIVE, LEAST, operations
from gpvi.diagnostics import missing_mass
from gpvi.errors import InputError, TrainingWarning
from gpvi.generators import SplineFlow, Triangular
from gpvi.initialization import _candidates as beginnings
from gpvi.initialization import _evaluation as evaluation
from gpvi.initialization import variational
from gpvi.initialization._evaluation import BATCH, THRIFT, HostDensity
from gpvi.targets import Affine, Whitened, density
from gpvi.training import program
from gpvi.training.preparation import (
    THRIFTY,
    planned,
)
from gpvi.training.program import LONGEST_CHUNK, limit_chunk_time

KEY = jax.random.key(0)
SMALL = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=16)


def vector(n):
    return jax.ShapeDtypeStruct((n,), np.float32)


def matrix(n, m):
    return jax.ShapeDtypeStruct((n, m), np.float32)


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


class TestCounts:
    def test_products_and_factorisations(self):
        assert operations(jnp.matmul, matrix(30, 40), matrix(40, 50)) == 2 * 30 * 40 * 50
        batched = jax.vmap(jnp.matmul)
        each = jax.ShapeDtypeStruct((7, 20, 20), np.float32)
        assert operations(batched, each, each) == 7 * 2 * 20**3
        factor = operations(lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), each)
        assert 7 * 20**3 / 3 <= factor < 2 * 7 * 20**3 / 3
        solve = operations(
            lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True),
            matrix(20, 20),
            matrix(20, 3),
        )
        assert solve == 20 * 20 * 3

    def test_numbers_read_or_written(self):
        assert operations(jnp.exp, vector(1_000)) == 1_000
        assert operations(lambda x: x[:20], vector(100_000)) < 1_000
        assert operations(lambda x: jax.lax.reduce_sum(x, (0,)), vector(1_000)) == 1_000
        assert operations(jnp.exp, vector(1)) == LEAST

    def test_loops_of_known_length_count_each_turn(self):
        def repeated(length):
            def turn(x, _):
                return jnp.sin(x), None

            return lambda x: jax.lax.scan(turn, x, None, length=length)[0]

        assert operations(repeated(300), vector(50)) == 300 * 50

    def test_loops_of_unknown_length_count_once(self):
        def halved(x):
            return jax.lax.while_loop(lambda x: x[0] > 1, lambda x: x / 2, x)

        assert 50 <= operations(halved, vector(50)) < 200

    def test_the_longer_branch_counts_and_what_is_compiled_apart(self):
        def either(x):
            inner = jax.jit(lambda x: jnp.sin(jnp.cos(x)))
            return jax.lax.cond(x[0] > 0, inner, jnp.sin, x)

        assert 2_000 <= operations(either, vector(1_000)) < 2_100

    def test_gradients_count(self):
        value = operations(costly, vector(2))
        assert value > 2 * 100**3
        assert operations(jax.value_and_grad(costly), vector(2)) > 1.5 * value


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

    def test_the_operations_of_a_target_are_counted_once(self):
        traces = []

        def log_density(x):
            traces.append(x)
            return costly(x)

        one = target(log_density)
        whitened = Whitened(one, Affine.identity(2, np.float32))
        assert [density.expensive(each) for each in (one, one, whitened, whitened)] == [True] * 4
        assert len(traces) == 2

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


class TestSearch:
    def test_fewer_candidates_and_scores(self, monkeypatch):
        asked = []
        values = HostDensity.values
        monkeypatch.setattr(
            HostDensity, "values", lambda self, x: (asked.append(len(x)), values(self, x))[1]
        )
        variational(gaussian, np.zeros(2), key=KEY)
        assert max(asked) == beginnings.CANDIDATES
        usual = sum(asked)
        asked.clear()
        monkeypatch.setattr(evaluation, "EXPENSIVE", 0)
        found = variational(gaussian, np.zeros(2), key=KEY)
        assert sum(asked) < usual / 3
        np.testing.assert_allclose(found.location, 0.0, atol=0.05)
        np.testing.assert_allclose(found.scale, np.eye(2), atol=0.05)

    def test_calls_stay_short(self, monkeypatch):
        sizes = []
        call = HostDensity._call
        monkeypatch.setattr(
            HostDensity, "_call", lambda self, f, x: (sizes.append(len(x)), call(self, f, x))[1]
        )
        points = np.zeros((evaluation.BLOCK, 2))
        cheap = HostDensity(gaussian, 2).values(points)
        assert sizes == [evaluation.BLOCK]
        monkeypatch.setattr(evaluation, "EXPENSIVE", 0)
        np.testing.assert_array_equal(HostDensity(gaussian, 2).values(points), cheap)
        assert set(sizes[1:]) == {BATCH}

    def test_fewer_proposals_look_for_what_is_missed(self, monkeypatch):
        asked = []
        wide = missing_mass._wide_gaussian_weights
        monkeypatch.setattr(
            missing_mass,
            "_wide_gaussian_weights",
            lambda target, n, key: (asked.append(n), wide(target, n, key))[1],
        )
        found = [
            missing_mass.wide_gaussian_evidence(target(f), key=KEY) for f in (gaussian, costly)
        ]
        assert asked == [missing_mass.PROPOSALS, missing_mass.FEW_PROPOSALS]
        for one in found:
            assert one is not None
            assert one.log_evidence == pytest.approx(np.log(2 * np.pi), abs=4 * one.se)


class TestChunks:
    def test_chunks_are_short_and_the_posterior_the_same(self, all_expensive, monkeypatch):
        """In chunks of two steps as in chunks of ten, bit for bit; the compiler would unroll chunks of one."""
        ends = {}
        for operations_at_a_time in (2**40, 1.0):
            monkeypatch.setattr(program, "AT_A_TIME", operations_at_a_time)
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
        monkeypatch.setattr(program, "AT_A_TIME", 6 * each)
        assert 4 <= limit_chunk_time(plan, one, state).longest <= 6
        monkeypatch.setattr(program, "AT_A_TIME", each / 100)
        assert limit_chunk_time(plan, one, state).chunk[0] == 2

    def test_an_interrupt_is_answered_after_two_steps(self, all_expensive, monkeypatch):
        monkeypatch.setattr(program, "AT_A_TIME", 1)

        def interrupt(event):
            if event.step == 4:
                signal.raise_signal(signal.SIGINT)

        with pytest.warns(TrainingWarning, match="interrupted after step 4 of 500"):
            posterior = gpvi.fit(
                target(), SMALL, key=KEY, steps=500, progress=False, callbacks=[interrupt]
            )
        assert posterior.training.interrupted


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


def test_an_estimate_is_of_what_fit_would_choose():
    assert gpvi.estimate(target(costly), key=KEY).steps == 3_750
