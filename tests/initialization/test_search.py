"""A starting Gaussian against posteriors whose moments are known, or found by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from scipy.linalg import solve_triangular
from threadpoolctl import threadpool_info

from gpvi.errors import InputError
from gpvi.initialization import Gaussian, NoPathError, automatic, laplace, variational
from selection import some_slow

pytestmark = pytest.mark.usefixtures("x64")


def factor(gaussian: Gaussian) -> np.ndarray:
    """L of its covariance L Lᵀ; in few dimensions it is dense."""
    return np.asarray(gaussian.scale)


def whitened(gaussian: Gaussian, mean, covariance):
    """The posterior's principal standard deviations and mean in the coordinates of the Gaussian."""
    scale = factor(gaussian).astype(np.float64)
    inverse = solve_triangular(scale, np.eye(len(scale)), lower=True)
    variances = np.linalg.eigvalsh(inverse @ covariance @ inverse.T)
    return np.sqrt(variances), inverse @ (mean - np.asarray(gaussian.location, np.float64))


def assert_covers(gaussian: Gaussian, mean, covariance, low, high, offset):
    assert np.array_equal(factor(gaussian), np.tril(factor(gaussian)))
    assert np.all(np.diag(factor(gaussian)) > 0)
    deviations, centre = whitened(gaussian, mean, covariance)
    assert deviations.min() > low
    assert deviations.max() < high
    assert np.abs(centre).max() < offset


def normal_case(mean, deviations, correlation, log_constant=0.0):
    mean, deviations = np.asarray(mean, float), np.asarray(deviations, float)
    dim = len(mean)
    matrix = np.full((dim, dim), correlation) + (1 - correlation) * np.eye(dim)
    precision = np.linalg.inv(matrix)

    def log_density(x):
        u = (x - mean) / deviations
        return log_constant - 0.5 * u @ precision @ u

    return log_density, mean, matrix * deviations * deviations[:, None]


WIDE = np.logspace(-3, 5, 10)
NORMALS = {
    "scales": normal_case(1e5 * np.ones(10), WIDE, 0.0),
    "scales and correlations": normal_case(1e5 * np.cos(np.arange(10)), WIDE, 0.999),
    "one dimension": normal_case([1e5], [1e-3], 0.0),
    "large constant": normal_case(3 * np.ones(5), np.ones(5), 0.9, 1e6),
    "weak curvature": normal_case(np.zeros(3), [1.0, 1e4, 1e-2], 0.0),
    "200 dimensions": normal_case(np.ones(200), np.logspace(-3, 5, 200), 0.5),
}


@pytest.mark.parametrize("find", [variational, laplace])
@pytest.mark.parametrize("name", some_slow(NORMALS, fast=set(NORMALS) - {"200 dimensions"}))
def test_normal_is_recovered(name, find, getkey):
    log_density, mean, covariance = NORMALS[name]
    gaussian = find(log_density, jnp.zeros(len(mean)), key=getkey())
    assert_covers(gaussian, mean, covariance, 0.99, 1.01, 0.02)
    evidence = log_density(mean) + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert gaussian.report.elbos[gaussian.report.chosen] == pytest.approx(evidence, abs=0.02)


def mixture_case(modes, weights):
    modes, weights = np.asarray(modes, float), np.asarray(weights, float)
    mean = weights @ modes
    between = (modes - mean).T @ ((modes - mean) * weights[:, None])

    def log_density(x):
        return logsumexp(jnp.log(weights) - 0.5 * jnp.sum((x - modes) ** 2, axis=1))

    return log_density, mean, between + np.eye(len(mean))


def two_modes(dim, weights):
    modes = np.zeros((2, dim))
    modes[:, 0] = -5.0, 5.0
    return (*mixture_case(modes, weights), modes[0] + 0.1)


def ring():
    angles = 2 * np.pi * np.arange(5) / 5
    modes = 8 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (*mixture_case(modes, np.ones(5) / 5), np.ones(2))


MIXTURES = {
    "two in 1": two_modes(1, [0.5, 0.5]),
    "two in 2": two_modes(2, [0.5, 0.5]),
    "two in 10": two_modes(10, [0.5, 0.5]),
    "nine to one": two_modes(10, [0.9, 0.1]),
    "ring of five": ring(),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_all_modes_are_covered(name, getkey):
    log_density, mean, covariance, start = MIXTURES[name]
    gaussian = variational(log_density, start, key=getkey())
    assert_covers(gaussian, mean, covariance, 0.9, 1.1, 0.15)
    assert len(gaussian.report.distinct) > 1


def test_one_path_knows_one_mode(getkey):
    log_density, _, _, start = MIXTURES["two in 2"]
    gaussian = variational(log_density, start, key=getkey(), paths=1)
    assert gaussian.report.paths == 1
    assert_covers(gaussian, np.array([-5.0, 0.0]), np.eye(2), 0.95, 1.05, 0.1)


def sine(x):
    """A sine in noise, its frequency between 0 and 2: a mode of the posterior for many a frequency."""
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 8, 60))
    data = 1.5 * np.sin(1.6 * np.pi * times + 0.5) + 0.4 * rng.standard_normal(60)
    frequency, height, noise = 2 * jax.nn.sigmoid(x[0]), jnp.exp(x[1]), jnp.exp(x[2])
    residual = (data - height * jnp.sin(2 * jnp.pi * frequency * times + x[3])) / noise
    prior = jax.nn.log_sigmoid(x[0]) + jax.nn.log_sigmoid(-x[0]) + x[1] + x[2]
    prior -= 0.5 * ((height / 2) ** 2 + noise**2 + x[3] ** 2)
    return prior - 0.5 * (residual**2).sum() - 60 * x[2]


@pytest.mark.parametrize("keys", some_slow((range(2), range(2, 10)), fast=(range(2),)))
def test_some_path_finds_the_best_of_many_modes(keys):
    """The first path ends in a mode of little mass; each search must find the mode with nearly all of it."""
    reports = [variational(sine, np.zeros(4), key=jax.random.key(k)).report for k in keys]
    best = [max(report.elbos) for report in reports]
    assert max(best) - min(best) < 1
    assert all(8 <= report.paths <= 32 for report in reports)


def test_paths_go_on_while_they_find_new_optima():
    lattice = variational(
        lambda x: 9 * jnp.cos(4 * x).sum() - 0.01 * x @ x, np.zeros(3), key=jax.random.key(0)
    )
    assert lattice.report.paths > 8
    gaussian = variational(lambda x: -0.5 * x @ x, np.ones(3), key=jax.random.key(0))
    assert gaussian.report.paths == 8 and gaussian.report.distinct == (0,)


def test_optima_too_far_apart_for_one_covariance_end_no_search():
    """A lattice without end: the paths run so far that their moments are singular in float64."""
    found = variational(lambda x: 9 * jnp.cos(4 * x).sum(), np.zeros(3), key=jax.random.key(0))
    assert np.isfinite(factor(found)).all()


def funnel(dim):
    def log_density(x):
        return -(x[0] ** 2) / 18 - 0.5 * (dim - 1) * x[0] - 0.5 * jnp.exp(-x[0]) * (x[1:] @ x[1:])

    return log_density, np.zeros(dim), np.diag([9.0] + [np.exp(4.5)] * (dim - 1)), np.zeros(dim)


def banana(curvature, width):
    def log_density(x):
        return -0.5 * (x[0] / width) ** 2 - 0.5 * (x[1] + curvature * (x[0] ** 2 - width**2)) ** 2

    variances = [width**2, 1 + 2 * curvature**2 * width**4]
    return log_density, np.zeros(2), np.diag(variances), np.zeros(2)


def student(degrees, dim):
    def log_density(x):
        return -0.5 * (degrees + dim) * jnp.log1p(x @ x / degrees)

    return log_density, np.zeros(dim), degrees / (degrees - 2) * np.eye(dim), 5 * np.ones(dim)


def eight_schools():
    """Centred, so unbounded as τ → 0; given log τ all is Gaussian, and log τ goes by quadrature."""
    effects = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_density(x):
        centre, log_tau, schools = x[0], x[1], x[2:]
        prior = -0.5 * (centre / 5) ** 2 - jnp.log1p((jnp.exp(log_tau) / 5) ** 2) + log_tau
        spread = jnp.sum(-0.5 * ((schools - centre) * jnp.exp(-log_tau)) ** 2 - log_tau)
        return prior + spread - 0.5 * jnp.sum(((effects - schools) / errors) ** 2)

    log_tau = np.linspace(-15, 8, 2001)
    between = np.exp(2 * log_tau)[:, None]
    total = errors**2 + between
    precision = (1 / total).sum(1) + 1 / 25
    centre = (effects / total).sum(1) / precision
    log_weight = log_tau - np.log1p(between[:, 0] / 25) - 0.5 * np.log(total).sum(1)
    log_weight += 0.5 * (centre**2 * precision - (effects**2 / total).sum(1) - np.log(precision))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    pull = errors**2 / total
    schools = pull * centre[:, None] + (1 - pull) * effects
    means = np.concatenate([centre[:, None], log_tau[:, None], schools], axis=1)
    mean = weight @ means
    covariance = (means - mean).T @ ((means - mean) * weight[:, None])
    slopes = np.concatenate([np.ones((2001, 1)), np.zeros((2001, 1)), pull], axis=1)
    covariance += (slopes * (weight / precision)[:, None]).T @ slopes
    covariance[range(2, 10), range(2, 10)] += weight @ (pull * between)
    return log_density, mean, covariance, np.zeros(10)


ODD = {
    "funnel in 2": funnel(2),
    "funnel in 10": funnel(10),
    "long banana": banana(0.03, 10.0),
    "bent banana": banana(1.0, 1.0),
    "Student in 2": student(3, 2),
    "Student in 10": student(3, 10),
    "eight schools": eight_schools(),
}


@pytest.mark.parametrize("name", some_slow(ODD, fast=set(ODD) - {"funnel in 10"}))
def test_odd_shapes_are_covered_within_a_small_factor(name, getkey):
    log_density, mean, covariance, start = ODD[name]
    gaussian = automatic(log_density, start, key=getkey())
    assert gaussian.report.kind == "variational"
    assert_covers(gaussian, mean, covariance, 0.25, 4.0, 2.0)


def gamma(shape, scale, dim):
    def log_density(x):
        return jnp.sum((shape - 1) * jnp.log(x) - x / scale)

    return log_density, shape * scale * np.ones(dim), shape * scale**2 * np.eye(dim)


def exponential(dim):
    def log_density(x):
        return jnp.sum(jnp.where(x > 0, -x, -jnp.inf))

    return log_density, np.ones(dim), np.eye(dim)


def box(width):
    def log_density(x):
        return jnp.where(jnp.all((x > 0) & (x < width)), 0.0, -jnp.inf)

    return log_density, width / 2 * np.ones(2), width**2 / 12 * np.eye(2)


EDGES = {
    "gamma": gamma(2.0, 1.0, 1),
    "wide gammas": gamma(3.0, 1e3, 3),
    "unbounded gammas": gamma(0.5, 2.0, 2),
    "exponentials": exponential(10),
    "box": box(100.0),
}


@pytest.mark.parametrize("name", some_slow(EDGES, fast=("gamma", "wide gammas")))
def test_edges_are_survived(name, getkey):
    """NaN or −∞ outside a region: the Gaussian fits inside it, and most of its draws do."""
    log_density, mean, covariance = EDGES[name]
    gaussian = automatic(log_density, jnp.ones(len(mean)), key=getkey())
    assert_covers(gaussian, mean, covariance, 0.4, 4.0, 1.5)
    noise = jax.random.normal(getkey(), (2000, len(mean)))
    values = jax.vmap(log_density)(gaussian.location + noise @ factor(gaussian).T)
    assert np.isfinite(values).mean() > 0.6


def test_logistic_regression_with_raw_features(getkey):
    """Moments by quadrature over ±8 standard deviations."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 2)) * [1e-3, 1e3]
    labels = rng.uniform(size=40) < 1 / (1 + np.exp(-features @ [1e3, 1e-3]))

    def log_density(x):
        logits = features @ x
        prior = -0.5 * jnp.sum((x * jnp.array([1e-3, 1e3]) / 5) ** 2)
        return prior - jnp.sum(jax.nn.softplus(jnp.where(labels, -logits, logits)))

    gaussian = automatic(log_density, jnp.zeros(2), key=getkey())
    axis = jnp.linspace(-8, 8, 161)
    grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    weight = jax.nn.softmax(
        jax.vmap(lambda u: log_density(gaussian.location + factor(gaussian) @ u))(grid)
    )
    mean = weight @ grid
    deviations = np.sqrt(np.linalg.eigvalsh((grid - mean).T @ ((grid - mean) * weight[:, None])))
    assert np.abs(mean).max() < 0.1
    assert deviations.min() > 0.9
    assert deviations.max() < 1.1


def test_float32_session_and_float32_only_density(getkey):
    """A scan that carries float32 cannot be traced in float64; it is followed in float32."""

    def log_density(x):
        def add(total, value):
            return total - 0.5 * ((value - 3) / 2) ** 2, None

        return jax.lax.scan(add, jnp.zeros((), jnp.float32), x)[0]

    with jax.enable_x64(False):
        gaussian = automatic(log_density, jnp.zeros(4), key=getkey())
    assert gaussian.location.dtype == factor(gaussian).dtype == jnp.float32
    assert_covers(gaussian, 3 * np.ones(4), 4 * np.eye(4), 0.99, 1.01, 0.02)


def test_float32_session_and_density_that_asserts_float32(getkey):
    """Whatever it raises in float64, a log-density that can be traced in float32 is followed in float32."""

    def log_density(x):
        assert x.dtype == jnp.float32
        return -0.5 * jnp.sum(((x - 3) / 2) ** 2)

    with jax.enable_x64(False):
        gaussian = automatic(log_density, jnp.zeros(3), key=getkey())
    assert_covers(gaussian, 3 * np.ones(3), 4 * np.eye(3), 0.99, 1.01, 0.02)


def test_float32_session_is_searched_in_float64(getkey):
    log_density, mean, covariance = normal_case(10 * np.ones(6), np.logspace(-3, 5, 6), 0.999)
    with jax.enable_x64(False):
        gaussian = automatic(log_density, jnp.zeros(6), key=getkey())
    assert factor(gaussian).dtype == jnp.float32
    assert_covers(gaussian, mean, covariance, 0.97, 1.03, 0.05)


def test_laplace_where_variational_fails(getkey):
    """Poisson rates of e^±300 at the start: Gaussians there are too narrow for float64."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((100, 3)) * [1.0, 30.0, 1e3]
    counts = rng.poisson(np.exp(features @ [0.5, 0.01, 5e-4]))

    def log_density(x):
        logits = features @ x
        return counts @ logits - jnp.exp(logits).sum() - 0.5 * x @ x / 100

    with pytest.raises(NoPathError):
        variational(log_density, 0.1 * jnp.ones(3), key=getkey())
    gaussian = automatic(log_density, 0.1 * jnp.ones(3), key=getkey())
    assert gaussian.report.kind == "laplace"
    score = factor(gaussian).T @ jax.grad(log_density)(gaussian.location)
    assert np.abs(score).max() < 1e-2
    curvature = -factor(gaussian).T @ jax.hessian(log_density)(gaussian.location) @ factor(gaussian)
    assert np.allclose(curvature, np.eye(3), atol=1e-6)


def test_improper_posterior_is_reported(getkey):
    gaussian = automatic(lambda x: -0.5 * x[0] ** 2, jnp.ones(2), key=getkey())
    assert gaussian.report.flat
    assert "improper" in str(gaussian.report)
    assert np.isfinite(factor(gaussian)).all()
    assert not automatic(lambda x: -0.5 * x @ x, jnp.ones(2), key=getkey()).report.flat


def test_same_key_same_gaussian(getkey):
    log_density, _, _, start = ODD["bent banana"]
    key = getkey()
    first, second = (variational(log_density, start, key=key, paths=3) for _ in range(2))
    assert first.report == second.report
    assert np.array_equal(factor(first), factor(second))
    assert not np.array_equal(factor(first), factor(variational(log_density, start, key=getkey())))


def test_report_is_consistent(getkey):
    log_density, _, _, start = MIXTURES["ring of five"]
    report = variational(log_density, start, key=getkey()).report
    assert 8 <= report.paths == len(report.elbos) <= 32
    assert report.elbos[report.chosen] == max(report.elbos[index] for index in report.distinct)
    assert 0 < report.effective_share <= 1
    assert 0 < report.tempering <= 1


@pytest.mark.parametrize("find", [variational, laplace, automatic])
def test_bad_input_fails_early(find, getkey):
    with pytest.raises(InputError, match=r"not finite at the start \[-1. -1.\]"):
        find(lambda x: jnp.log(x).sum(), -jnp.ones(2), key=getkey())
    with pytest.raises(InputError, match=r"shape \(2, 2\)"):
        find(lambda x: -jnp.sum(x**2), jnp.ones((2, 2)), key=getkey())
    with pytest.raises(NoPathError, match="guard the log-density"):
        find(lambda x: jnp.where(jnp.all(x == 0), 0.0, -jnp.inf), jnp.zeros(2), key=getkey())


def test_at_least_one_path(getkey):
    with pytest.raises(InputError, match="paths is 0"):
        variational(lambda x: -x @ x, jnp.zeros(2), key=getkey(), paths=0)


def test_the_search_keeps_blas_to_one_thread(getkey):
    threads = []

    def log_density(x):
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        threads.append([pool["num_threads"] for pool in pools])
        return -0.5 * x @ x

    variational(log_density, np.zeros(2), key=getkey(), paths=1)
    assert threads[-1]
    assert set(threads[-1]) == {1}


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_a_narrow_second_mode_in_four_dimensions_is_found(seed):
    """Half the mass lies 12 standard deviations away, within 0.4: keys for which 4,096 candidates missed it."""

    def log_density(x):
        near, far = -0.5 * (x**2).sum(), -0.5 * ((x - 6) ** 2).sum() / 0.16 - 4 * jnp.log(0.4)
        return jnp.logaddexp(near, far)

    with jax.enable_x64(False):
        found = automatic(log_density, jnp.zeros(4), key=jax.random.key(seed))
    assert len(found.report.distinct) == 2


@pytest.mark.slow
def test_a_start_meets_no_score_that_overflows():
    """The logarithm of a gamma variable of shape 1/20: a gentle slope on the left, a cliff on the right."""

    def log_density(x):
        return (0.05 * x - jnp.exp(x)).sum()

    for find in (variational, laplace):
        found = find(log_density, np.zeros(2), key=jax.random.key(0))
        u = jax.random.normal(jax.random.key(1), (4_000, 2))
        x = found.location + u @ factor(found).T
        steepest = jnp.abs(jax.vmap(jax.grad(log_density))(x) @ factor(found)).max()
        assert steepest < 1e12
