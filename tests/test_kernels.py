"""Kernels and bandwidths against automatic differentiation, NumPy's median and double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from gpvi.errors import InputError
from gpvi.kernels import (
    IMQ,
    RBF,
    Fixed,
    Gram,
    Median,
    Noise,
    OnNoise,
    as_bandwidth,
    as_kernel,
    median,
    squared_distances,
)

pytestmark = pytest.mark.usefixtures("x64")

FORMULAS = {
    RBF: lambda x, y, h: jnp.exp(-((x - y) ** 2).sum() / h),
    IMQ: lambda x, y, h: 1 / jnp.sqrt(1 + ((x - y) ** 2).sum() / h),
}


@pytest.fixture(params=FORMULAS, ids=lambda kernel: kernel.__name__)
def case(request, getkey):
    """A kernel between 4 and 3 points of R², its gradients by automatic differentiation, and its Gram."""
    h = 0.8
    x, y = jax.random.normal(getkey(), (4, 2)), jax.random.normal(getkey(), (3, 2))
    formula = FORMULAS[request.param]

    def pairwise(function):
        return jax.vmap(lambda a: jax.vmap(lambda b: function(a, b, h))(y))(x)

    return request.param(h)(x, y), pairwise(formula), pairwise(jax.grad(formula))


def test_values(case):
    gram, value, _ = case
    np.testing.assert_allclose(gram.value, value, rtol=1e-12)


def test_gradient_is_in_the_first_argument(case):
    gram, _, gradient = case
    np.testing.assert_allclose(gram.gradients(), gradient, rtol=1e-9, atol=1e-14)


def test_gradient_sum(case):
    gram, _, gradient = case
    np.testing.assert_allclose(gram.gradient_sum(), gradient.sum(0), rtol=1e-9, atol=1e-14)


def test_smooth(case, getkey):
    gram, value, _ = case
    values = jax.random.normal(getkey(), (4, 5))
    expected = sum(value[j, :, None] * values[j] for j in range(4))
    np.testing.assert_allclose(gram.smooth(values), expected, rtol=1e-12)


@pytest.mark.parametrize("kernel", FORMULAS)
def test_slope_is_the_derivative_of_the_profile(kernel):
    squares, h = jnp.asarray([[0.0, 0.3, 1.0, 20.0]]), jnp.asarray(0.7)
    slope = jax.vmap(jax.grad(lambda s: kernel().profile(s[None, None], h)[0][0, 0]))(squares[0])
    np.testing.assert_allclose(kernel().profile(squares, h)[1][0], slope, rtol=1e-12)


def test_squared_distances(getkey):
    for dim in (1, 3, 7):
        x, y = jax.random.normal(getkey(), (6, dim)), jax.random.normal(getkey(), (4, dim))
        np.testing.assert_allclose(squared_distances(x, y), cdist(x, y, "sqeuclidean"), rtol=1e-12)


@pytest.mark.parametrize("dim", [3, 6])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_far_away_clouds_keep_their_digits(offset, dim, getkey):
    """In single precision, against double precision on the same points; uncentred products would be off by 10."""
    with jax.enable_x64(False):
        x = offset + jax.random.normal(getkey(), (40, dim))
        gram = RBF(1.5)(x, x)
        found = np.asarray(squared_distances(x, x)), np.asarray(gram.gradient_sum())
    exact = np.asarray(x, np.float64)
    differences = exact[:, None] - exact[None]
    squares = (differences**2).sum(-1)
    gradient_sum = (-2 / 1.5 * np.exp(-squares / 1.5)[..., None] * differences).sum(0)
    np.testing.assert_allclose(found[0], squares, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[1], gradient_sum, rtol=1e-4, atol=1e-4)


def test_clouds_far_apart_keep_their_digits(getkey):
    """Two modes 6,000 widths apart, in single precision; a centred product is off by 7 within a mode."""
    with jax.enable_x64(False):
        x = jax.random.normal(getkey(), (40, 2)) + jnp.where(jnp.arange(40) % 2, 3e3, -3e3)[:, None]
        found = np.asarray(squared_distances(x, x))
    exact = cdist(np.asarray(x, np.float64), np.asarray(x, np.float64), "sqeuclidean")
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def floats(dtype):
    """Non-negative and normal, with zeros and many ties."""
    info = np.finfo(dtype)
    wide = st.floats(
        float(info.tiny) * 4,
        float(info.max) / 4,
        width=32 if dtype == np.float32 else 64,
        allow_subnormal=False,
    )
    return st.one_of(st.sampled_from([0.0, 0.5, 1.0, 3.0]), wide)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=100)
@given(data=st.data())
def test_median_is_numpys(dtype, data):
    """Bit for bit where it is one of the values; the mean of two that nearly tie may be the lower of them."""
    size = data.draw(st.sampled_from([1, 2, 3, 6, 7, 12]))
    values = data.draw(arrays(dtype, size, elements=floats(dtype)))
    found = np.asarray(jitted_median(jnp.asarray(values)))
    assert found.dtype == dtype
    expected = np.median(values).astype(dtype)
    if size % 2:
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_allclose(found, expected, rtol=8 * np.finfo(dtype).eps)


jitted_median = jax.jit(median)


def test_median_of_a_matrix(getkey):
    values = jax.random.uniform(getkey(), (30, 41), jnp.float32)
    assert median(values) == np.median(values)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_median_of_distances_computed_beside_it(dim):
    """Each pair is there twice, and XLA may compute it anew and round it otherwise after the bisection."""
    found = jax.jit(lambda x: median(squared_distances(x, x)))
    for x in np.random.default_rng(0).standard_normal((40, 8, dim)):
        np.testing.assert_allclose(found(x), np.median(cdist(x, x, "sqeuclidean")), rtol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_median_rule(factor, getkey):
    x, y = jax.random.normal(getkey(), (9, 2)), jax.random.normal(getkey(), (6, 2))
    squares = cdist(x, y, "sqeuclidean")
    expected = factor * np.median(squares) / np.log(9)
    np.testing.assert_allclose(Median(factor)(jnp.asarray(squares), 2), expected, rtol=1e-12)


def test_particles_on_one_point_keep_a_finite_kernel():
    gram = RBF("median")(jnp.zeros((5, 2)), jnp.zeros((5, 2)))
    np.testing.assert_array_equal(gram.value, 1.0)
    np.testing.assert_array_equal(gram.gradient_sum(), 0.0)


def test_the_bandwidth_is_held_fixed_by_gradients(getkey):
    x = jax.random.normal(getkey(), (6, 2))
    h = float(Median()(squared_distances(x, x), 2))

    @jax.jit
    @jax.grad
    def through(x):
        return (RBF("median")(x, x).value ** 2).sum()

    @jax.jit
    @jax.grad
    def past(x):
        return (RBF(h)(x, x).value ** 2).sum()

    np.testing.assert_allclose(through(x), past(x), rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 3, 50])
def test_noise_rule_is_the_monte_carlo_median(dim):
    """Within four standard errors 1/(2 f(m) √N) of the sample median, f the density of ‖z − z′‖²."""
    n, draws = 100, 200_000
    rng = np.random.default_rng(dim)
    squares = (rng.standard_normal((2, draws, dim)) * [[[1]], [[-1]]]).sum(0)
    squares = (squares**2).sum(1)
    rule = float(Noise(0.5)(jnp.zeros((n, n)), dim)) * np.log(n) / 0.5
    error = 1 / (2 * chi2.pdf(rule / 2, dim) / 2 * np.sqrt(draws))
    assert abs(np.median(squares) - rule) < 4 * error
    assert 4 * error < 0.03 * rule


def test_kernels_take_their_bandwidth_by_name(getkey):
    x = jax.random.normal(getkey(), (7, 3))
    squares = squared_distances(x, x)
    for name, rule in {"median": Median(), "noise": Noise(), "fixed": Fixed(0.4)}.items():
        by_name = RBF(0.4 if name == "fixed" else name)(x, x)
        np.testing.assert_allclose(by_name.value, jnp.exp(-squares / rule(squares, 3)), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF("medium"), "'medium'.*Did you mean 'median'"),
        (lambda: RBF(True), "bandwidth is True; pass a number, 'median', 'noise'.*Median"),
        (lambda: RBF(0.0), "bandwidth is 0.0.*> 0"),
        (lambda: IMQ(-2.0), "bandwidth is -2.0.*> 0"),
        (lambda: Median(0.0), "bandwidth factor is 0.0"),
        (lambda: Noise(-1.0), "bandwidth factor is -1.0"),
        (lambda: as_kernel("rbg"), "'rbg'.*Did you mean 'rbf'"),
        (lambda: OnNoise("haed"), "'haed'.*Did you mean 'head'"),  # pyright: ignore
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_shorthands():
    assert as_kernel("imq") == IMQ("median")
    assert as_kernel(RBF(2.0)) == RBF(2.0)
    assert as_bandwidth(3) == Fixed(3.0)
    assert isinstance(RBF()(jnp.zeros((2, 1)), jnp.ones((3, 1))), Gram)
