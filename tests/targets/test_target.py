"""Targets: mini-batches, temperature, precision, whitening, masked draws, and every refusal."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError
from gpvi.targets.target import Target

PRECISIONS = [np.float32, np.float64]
DATA = {"x": np.asarray([0.5, -1.0, 2.0, 0.3, 1.4]), "y": np.asarray([1.0, 0.2, 2.5, -0.3, 1.0])}


def log_likelihood(w, batch):
    """Linear regression: the log-likelihood of each datum."""
    return -((batch["y"] - w[0] - w[1] * batch["x"]) ** 2) / 2


def log_prior(w):
    return -(w @ w) / 8


def regression(**options):
    return Target(log_likelihood=log_likelihood, log_prior=log_prior, data=DATA, dim=2, **options)


def by_hand(w):
    """The same log-posterior without batches, and its gradient, in NumPy."""
    error = DATA["y"] - w[0] - w[1] * DATA["x"]
    gradient = np.asarray([error.sum(), error @ DATA["x"]]) - w / 4
    return -(error @ error) / 2 - w @ w / 8, gradient


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.1, 4])
def test_log_density_and_score(dtype, temperature):
    target = regression(dtype=dtype, temperature=temperature)
    w = np.asarray([0.3, -0.7])
    with target.precision():
        x = jnp.asarray(w, dtype)
        value, score = target.log_density(x), target.score(x)
    assert value.dtype == score.dtype == dtype
    expected_value, expected_score = by_hand(w)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(value, expected_value / temperature, tolerance)
    np.testing.assert_allclose(score, expected_score / temperature, tolerance)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_mini_batches_are_unbiased(size):
    """The mean over all (5 choose B) batches is the full log-posterior and its score, exactly."""
    target = regression(dtype=np.float64, temperature=2.0)
    w = np.asarray([0.3, -0.7])
    batches = jnp.asarray(list(itertools.combinations(range(5), size)))
    with target.precision():
        x = jnp.asarray(w)

        @jax.jit
        @jax.vmap
        def estimate(indices):
            batch = target.batch(indices)
            return target.log_density(x, batch), target.score(x, batch)

        values, scores = map(np.asarray, estimate(batches))
    np.testing.assert_allclose(values.mean(), by_hand(w)[0] / 2, rtol=1e-12)
    np.testing.assert_allclose(scores.mean(0), by_hand(w)[1] / 2, rtol=1e-12)
    assert (np.std(values) > 0.1) == (size < 5)


def test_the_likelihood_may_return_its_sum():
    summed = Target(log_likelihood=lambda w, b: log_likelihood(w, b).sum(), data=DATA, dim=2)
    each = Target(log_likelihood=log_likelihood, data=DATA, dim=2)
    x, indices = jnp.asarray([0.3, -0.7]), jnp.asarray([0, 3])
    values = [t.log_density(x, t.batch(indices)) for t in (summed, each)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)


def test_size_and_batch():
    target = regression()
    assert target.size == 5
    np.testing.assert_allclose(target.batch(jnp.asarray([4, 0]))["y"], DATA["y"][[4, 0]])
    assert Target(log_prior, dim=2).size is None


def test_precision_is_the_targets_own():
    """A float64 target computes in float64 where JAX's default is float32, and the other way round."""
    with jax.enable_x64(False):
        target = Target(lambda x: -(x @ x), dim=2, dtype=np.float64)
        assert target.initial.dtype == np.float64
        with target.precision():
            target.check()
            fine = target.log_density(jnp.asarray([1.0, 1e-9])) + 1
            assert fine == pytest.approx(-1e-18, abs=2e-16)
        assert Target(lambda x: -(x @ x), dim=2).dtype == np.float32
    with jax.enable_x64(True):
        assert Target(lambda x: -(x @ x), dim=2).dtype == np.float64
        single = Target(lambda x: -(x @ x), dim=2, dtype=np.float32)
        with single.precision():
            assert single.score(single.initial).dtype == np.float32


def test_dimension_and_names():
    target = Target(lambda x: -(x @ x), initial=[1.0, 2.0, 3.0])
    assert (target.dim, target.names) == (3, ("x[0]", "x[1]", "x[2]"))
    np.testing.assert_array_equal(target.initial, [1, 2, 3])
    assert Target(log_prior, dim=2, names=["a", "b"]).names == ("a", "b")
    assert Target(log_prior, dim=2, names=lambda: ["a", "b"]).names == ("a", "b")
    of_numpy = Target(log_prior, dim=2, names=list(np.array(["a", "b"]))).names
    assert [type(name) for name in of_numpy] == [str, str]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_density": log_prior}, "dim is missing"),
        ({"log_density": log_prior, "dim": 0}, "dim is 0.*≥ 1"),
        ({"log_density": log_prior, "dim": -3}, "dim is -3"),
        ({"log_density": log_prior, "dim": True}, "dim is True"),
        ({"dim": 2}, "give either log_density, or log_likelihood"),
        (
            {"log_density": log_prior, "log_likelihood": log_likelihood, "data": DATA, "dim": 2},
            "give either log_density, or log_likelihood",
        ),
        ({"log_density": log_prior, "data": DATA, "dim": 2}, "belong to the mini-batch form"),
        ({"log_density": log_prior, "log_prior": log_prior, "dim": 2}, "belong to the mini-batch"),
        ({"log_likelihood": log_likelihood, "dim": 2}, "log_likelihood needs data"),
        ({"log_density": log_prior, "dim": 2, "temperature": 0.0}, "temperature is 0.0"),
        ({"log_density": log_prior, "dim": 2, "temperature": -1.0}, "temperature is -1.0"),
        ({"log_density": log_prior, "dim": 2, "temperature": float("nan")}, "temperature is nan"),
        ({"log_density": log_prior, "dim": 2, "temperature": float("inf")}, "temperature is inf"),
        ({"log_density": log_prior, "dim": 2, "dtype": np.float16}, "float16; use float32"),
        ({"log_density": log_prior, "dim": 2, "initial": [0.0]}, r"initial has shape \(1,\)"),
        ({"log_density": log_prior, "dim": 2, "initial": [0.0, float("nan")]}, "initial holds NaN"),
        ({"log_density": log_prior, "dim": 2, "names": ["a"]}, "1 names for dim=2"),
        ({"log_density": log_prior, "dim": 2, "names": ["a", "a"]}, "holds 'a' twice"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Target(**arguments)


@pytest.mark.parametrize(
    ("options", "count"),
    [({"log_density": log_prior}, 0), ({"log_likelihood": log_likelihood, "data": DATA}, 5)],
)
def test_bad_batch_sizes_are_refused(options, count):
    with pytest.raises(InputError, match=f"batch_size is 6; .* the number of data, {count}"):
        Target(**options, dim=2, batch_size=6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.zeros(5), "y": np.zeros(4)}, r"different lengths \[4, 5\]"),
        (
            {"x": np.asarray([[0.0, 1.0], [np.nan, 2.0]])},
            r"data\['x'\] holds nan at index \(1, 0\)",
        ),
        ((np.zeros(2), np.asarray([1.0, np.inf])), r"data\[1\] holds inf at index \(1,\)"),
        ({"x": np.zeros(3), "n": 3.0}, r"data\['n'\] is a single number"),
        (np.zeros((0, 3)), "data is empty"),
    ],
)
def test_bad_data_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        Target(log_likelihood=log_likelihood, data=data, dim=2)


def called_back(x):
    """The density of another program, without a gradient."""
    return jax.pure_callback(
        lambda x: -0.5 * x @ x, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential"
    )


@jax.custom_jvp
def called_back_once(x):
    """One with a gradient, at one point after the other."""
    return jax.pure_callback(lambda x: -0.5 * x @ x, jax.ShapeDtypeStruct((), x.dtype), x)


called_back_once.defjvp(lambda x, dx: (called_back_once(*x), -x[0] @ dx[0]))


def halved(x):
    """A loop whose length depends on x."""
    return -jax.lax.while_loop(lambda y: y > 1, lambda y: y / 2, x @ x)


@pytest.mark.parametrize(
    ("log_density", "message"),
    [
        (lambda x: -(x @ jnp.ones(3)), r"fails on a vector of shape \(2,\).*Check dim=2"),
        (lambda x: -(x**2), r"returns \(2,\) at one point; it must return a scalar"),
        (lambda x: -(x @ x)[None], r"returns \(1,\) at one point"),
        (lambda x: (x @ x, x), "returns a tuple at one point; it must return a scalar"),
        (lambda x: {"a": x @ x}, "returns a dict at one point"),
        (lambda x: None, "returns None at one point"),
        (lambda x: -(x @ x) + 0j, "dtype complex.*must return a float"),
        (called_back, "JAX cannot differentiate.*JVP.*needs jax.custom_jvp and vmap_method="),
        (called_back_once, "JAX cannot differentiate.*needs jax.custom_jvp and vmap_method="),
        (halved, "JAX cannot differentiate.*while_loop.*needs jax.lax.scan"),
        (lambda x: (x @ x).astype(int), "dtype int.*must return a float"),
        (lambda x: jnp.log(x[0]), r"is -inf at the starting point \[0. 0.\].*Pass initial="),
        (lambda x: jnp.sqrt(x[0] - 1), "is nan at the starting point"),
        (lambda x: -jnp.sqrt(x[1] ** 2) - x[0] ** 2, r"gradient .* is nan in coordinate 1 \(b\)"),
    ],
)
def test_bad_log_densities_are_refused(log_density, message):
    target = Target(log_density, dim=2, names=("a", "b"))
    with pytest.raises(InputError, match=message):
        target.check()


def test_an_origin_without_a_gradient_is_left_where_nobody_chose_it():
    ring = lambda x: -(((jnp.sqrt(x @ x) - 3) / 0.2) ** 2)  # noqa: E731
    beside = Target(ring, dim=2).checked().initial
    assert 0 < np.linalg.norm(beside) < 1
    with pytest.raises(InputError, match="gradient of the log-density is nan"):
        Target(ring, dim=2, initial=np.zeros(2)).checked()
    with pytest.raises(InputError, match="gradient of the log-density is nan"):
        Target(ring, dim=2).starting_at(np.zeros(2)).checked()
    with pytest.raises(InputError, match="is -inf at the starting point"):
        Target(lambda x: jnp.log(x[0]), dim=2).checked()
    with pytest.raises(InputError, match="gradient of the log-density is -inf"):
        Target(lambda x: -jnp.sqrt(x).sum(), dim=2).checked()
    good = Target(lambda x: -(x @ x), dim=2)
    assert good.checked() is good


def test_a_likelihood_of_pairs_is_refused():
    """(N, 1) less (N,) is (N, N), whose sum is a number like any other."""
    inputs, y = np.ones((20, 3)), np.arange(20.0)

    def by_pairs(w, batch):
        return -0.5 * (batch[1][:, None] - batch[0] @ w) ** 2

    def in_a_column(w, batch):
        return -0.5 * (batch[1] - batch[0] @ w)[:, None] ** 2

    with pytest.raises(InputError, match=r"shape \(20, 20\) for 20 data; it must return \(20,\)"):
        Target(log_likelihood=by_pairs, data=(inputs, y), dim=3).check()
    Target(log_likelihood=in_a_column, data=(inputs, y), dim=3).check()
    Target(log_likelihood=lambda w, batch: -((batch[0] * w) ** 2), data=(inputs, y), dim=3).check()


def test_a_bad_prior_is_refused():
    target = Target(log_likelihood=log_likelihood, log_prior=lambda w: -(w**2), data=DATA, dim=2)
    with pytest.raises(InputError, match=r"returns \(2,\) at one point"):
        target.check()


def test_good_targets_pass():
    regression().check()
    Target(lambda x: jnp.log(x[0]) - x @ x / 2, dim=2, initial=[1.0, 1.0]).check()


class TestClosedOverArrays:
    """JAX 0.10 takes a float32 copy of a NumPy array, while it lives, for the array itself."""

    MEAN = np.array([3.0, -1.0])

    def test_the_start_is_found_although_it_is_looked_for_in_float64(self):
        mean = self.MEAN.copy()
        target = gpvi.Target(lambda x: -0.5 * jnp.square(x - mean).sum(), dim=2)
        method = gpvi.GPVI(generator=gpvi.generators.Linear(), particles=8)
        posterior = gpvi.fit(target, method, key=jax.random.key(0), steps=2, progress=False)
        np.testing.assert_allclose(posterior.affine.location, mean, atol=0.2)
        assert np.isfinite(posterior.sample(3, key=jax.random.key(1))).all()

    def test_another_precision_works_or_says_what_to_do(self):
        mean = self.MEAN.copy()
        density = lambda x: -0.5 * jnp.square(x - mean).sum()  # noqa: E731
        narrow = gpvi.Target(density, dim=2)
        narrow.check()
        wide = gpvi.Target(density, dim=2, dtype="float64")
        with wide.precision():
            try:
                wide.check()
            except InputError as error:
                assert "jnp.asarray(X, x.dtype)" in str(error)  # noqa: PT017
        cured = gpvi.Target(
            lambda x: -0.5 * jnp.square(x - jnp.asarray(mean, x.dtype)).sum(),
            dim=2,
            dtype="float64",
        )
        with cured.precision():
            cured.check()
