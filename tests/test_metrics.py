"""Metrics against scikit-learn, hand values and the definitions written out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from gpvi import metrics
from gpvi.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")

N, M, C = 60, 5, 4


@pytest.fixture
def classes():
    rng = np.random.default_rng(0)
    return rng.normal(size=(M, N, C)) * 2, rng.integers(0, C, N)


@pytest.fixture
def values():
    rng = np.random.default_rng(1)
    return rng.normal(size=(M, N)), rng.uniform(0.2, 2, (M, N)), rng.normal(size=N)


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


# Losses


def test_losses_of_classes_are_scikit_learns(classes):
    logits, labels = classes
    members = softmax(logits)
    mean = members.mean(0)
    assert metrics.accuracy(mean, labels) == reference.accuracy_score(labels, mean.argmax(1))
    log_loss = reference.log_loss(labels, mean, labels=range(C))
    np.testing.assert_allclose(metrics.categorical_nll(logits, labels), log_loss)
    np.testing.assert_allclose(metrics.categorical_nll(np.log(members), labels), log_loss)
    brier = reference.brier_score_loss(labels, mean, labels=range(C))
    np.testing.assert_allclose(metrics.brier(mean, labels), brier)


def test_losses_of_values_are_the_definitions(values):
    means, sds, y = values
    density = stats.norm.pdf(y, means, sds).mean(0)
    nll = metrics.gaussian_mixture_nll(means, sds, y)
    np.testing.assert_allclose(nll, -np.log(density).mean())
    shared = metrics.gaussian_mixture_nll(means, np.full((M, 1), 0.5), y)
    np.testing.assert_allclose(shared, -np.log(stats.norm.pdf(y, means, 0.5).mean(0)).mean())
    rmse = reference.root_mean_squared_error(y, means[0])
    np.testing.assert_allclose(metrics.rmse(means[0], y), rmse)


def test_the_nll_stands_far_from_the_data():
    far = metrics.gaussian_mixture_nll(jnp.zeros((2, 1)), jnp.ones((2, 1)), jnp.array([1e3]))
    np.testing.assert_allclose(far, 0.5e6 + 0.5 * np.log(2 * np.pi))


def test_the_crps_is_the_integral_of_its_definition(values):
    """∫ (F(t) − 1[t ≥ y])² dt, for one normal and for one empirical distribution."""
    means, sds, y = values
    mu, sigma, at, draws = means[0, 0], sds[0, 0], y[0], means[:, 0]

    def squared(cdf):
        def integrand(t):
            return (cdf(t) - (t >= at)) ** 2

        steps = sorted([at, *draws])
        return integrate.quad(integrand, -12, 12, points=steps, limit=200)[0]

    normal = metrics.crps_gaussian(means[0, :1], sds[0, :1], y[:1])
    np.testing.assert_allclose(normal, squared(lambda t: stats.norm.cdf(t, mu, sigma)), rtol=1e-6)
    empirical = metrics.crps_ensemble(means[:, :1], y[:1])
    np.testing.assert_allclose(empirical, squared(lambda t: (draws <= t).mean()), rtol=1e-6)


def test_the_crps_of_many_draws_is_that_of_their_distribution():
    draws = stats.norm.ppf((np.arange(2_000) + 0.5) / 2_000)[:, None] * 2 + 1
    y = np.array([0.3])
    exact = metrics.crps_gaussian(np.array([1.0]), np.array([2.0]), y)
    np.testing.assert_allclose(metrics.crps_ensemble(draws, y), exact, rtol=1e-3)
    np.testing.assert_allclose(metrics.crps_ensemble(draws[:1], y), abs(draws[0, 0] - 0.3))


def test_interval_coverage_counts_both_ends():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert metrics.interval_coverage(np.zeros(4), np.full(4, 2.0), y) == 0.75


# Uncertainty of a class


def test_entropy_has_its_hand_values():
    rows = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(metrics.entropy(rows), [np.log(2), 0, np.log(3)], atol=1e-12)


def test_mutual_information_is_the_members_mean_divergence_from_their_mean(classes):
    members = softmax(classes[0])
    mean = members.mean(0)
    divergence = (members * np.log(members / mean)).sum(-1).mean(0)
    np.testing.assert_allclose(metrics.mutual_information(members), divergence)
    np.testing.assert_allclose(metrics.predictive_entropy(members), stats.entropy(mean, axis=1))


def test_sure_members_that_disagree_are_all_disagreement():
    members = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    np.testing.assert_allclose(metrics.mutual_information(members), np.log(2))
    agreed = np.array([[[0.3, 0.7]], [[0.3, 0.7]]])
    np.testing.assert_allclose(metrics.mutual_information(agreed), 0, atol=1e-12)


# Outlier scores

scores = st.lists(st.integers(-3, 3), min_size=7, max_size=7).map(lambda s: np.array(s, float))
"""Few levels, so that ties are many; one length, so that all is compiled once."""


@settings(max_examples=60)
@given(scores, scores)
def test_outlier_metrics_are_scikit_learns_with_ties(inliers, outliers):
    truth = np.repeat([0, 1], [len(inliers), len(outliers)])
    both = np.concatenate([inliers, outliers])
    roc = reference.roc_auc_score(truth, both)
    np.testing.assert_allclose(metrics.auroc(inliers, outliers), roc)
    precision = reference.average_precision_score(truth, both)
    np.testing.assert_allclose(metrics.aupr(inliers, outliers), precision)
    false, true, _ = reference.roc_curve(truth, both, drop_intermediate=False)
    for recall in (0.5, 0.95):
        expected = false[np.argmax(true >= recall)]
        rate = metrics.false_positive_rate(inliers, outliers, recall=recall)
        np.testing.assert_allclose(rate, expected)


def test_a_recall_that_is_a_whole_number_of_outliers_is_met_exactly():
    """0.95 of 20 is 19: one outlier may be missed, in spite of rounding."""
    outliers = np.array([0.0, *np.full(19, 2.0)])
    assert metrics.false_positive_rate(np.array([1.0, 3.0]), outliers) == 0.5
    assert metrics.false_positive_rate(np.array([1.0, 3.0]), outliers, recall=1.0) == 1.0


def test_a_million_scores_cost_no_quadratic_memory():
    inliers, outliers = np.linspace(0, 1, 500_000), np.linspace(0.5, 1.5, 500_000)
    np.testing.assert_allclose(metrics.auroc(inliers, outliers), 7 / 8, rtol=1e-4)


# Calibration


def test_calibration_errors_have_their_hand_values():
    """Confidences .6 .7 .8 .9, of which .7 and .9 are right."""
    top = np.array([0.6, 0.7, 0.8, 0.9])
    probabilities = np.stack([top, 1 - top], 1)
    labels = np.array([1, 0, 1, 0])
    mass = metrics.calibration_error(probabilities, labels, bins=2)
    np.testing.assert_allclose(mass, (abs(0.65 - 0.5) + abs(0.85 - 0.5)) / 2)
    width = metrics.calibration_error(probabilities, labels, bins=4, equal="width")
    np.testing.assert_allclose(width, (abs(0.65 - 0.5) + abs(0.85 - 0.5)) / 2)
    one = metrics.calibration_error(probabilities, labels, bins=1, equal="width")
    np.testing.assert_allclose(one, 0.75 - 0.5)


@pytest.mark.parametrize("equal", ["mass", "width"])
def test_calibration_error_is_its_definition_written_out(classes, equal):
    logits, labels = classes
    probabilities = softmax(logits).mean(0)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    if equal == "mass":
        parts = np.array_split(np.argsort(confidence), 6)
    else:
        edges = np.linspace(0, 1, 7)
        pairs = itertools.pairwise(edges)
        parts = [np.flatnonzero((confidence > low) & (confidence <= high)) for low, high in pairs]
    gaps = [len(p) * abs(right[p].mean() - confidence[p].mean()) for p in parts if len(p)]
    error = metrics.calibration_error(probabilities, labels, bins=6, equal=equal)
    np.testing.assert_allclose(error, sum(gaps) / N)


@settings(max_examples=25)
@given(st.permutations(range(12)), st.sampled_from(["mass", "width"]))
def test_the_order_of_the_data_means_nothing(order, equal):
    top = np.repeat([0.55, 0.9, 1.0], [3, 4, 5])
    probabilities = np.stack([top, 1 - top], 1)
    labels = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1])
    shuffled = metrics.reliability(probabilities[order], labels[order], bins=5, equal=equal)
    straight = metrics.reliability(probabilities, labels, bins=5, equal=equal)
    for one, other in zip(shuffled, straight, strict=True):
        np.testing.assert_allclose(one, other)


def test_a_calibrated_forecast_has_a_small_error_and_a_sure_one_does_not():
    rng = np.random.default_rng(3)
    p = rng.uniform(size=20_000)
    labels = (rng.uniform(size=p.size) < p).astype(int)
    honest = np.stack([1 - p, p], 1)
    sure = np.eye(2)[(p > 0.5).astype(int)]
    assert metrics.calibration_error(honest, labels) < 0.015
    np.testing.assert_allclose(metrics.calibration_error(sure, labels), 0.25, atol=0.01)


def test_reliability_of_fewer_data_than_bins_and_of_empty_bins():
    probabilities, labels = np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 1])
    for equal in ("mass", "width"):
        found = metrics.reliability(probabilities, labels, bins=10, equal=equal)
        np.testing.assert_allclose(found.share.sum(), 1)
        assert np.isnan(found.accuracy).sum() == 8
        np.testing.assert_allclose(found.error, (0.2 + 0.6) / 2)


# Use


def test_metrics_compose_with_jax(classes, values):
    """Inside another program, over a leading axis, and differentiable where the score is."""
    logits, labels = classes
    each = jax.jit(jax.vmap(metrics.categorical_nll, (0, None)))(logits[:, None], labels)
    alone = [metrics.categorical_nll(logits[j : j + 1], labels) for j in range(M)]
    np.testing.assert_allclose(each, alone)
    means, sds, y = values
    slope = jax.grad(metrics.gaussian_mixture_nll)(jnp.asarray(means), sds, y)
    step = 1e-5
    moved = means.copy()
    moved[0, 0] += step
    rise = metrics.gaussian_mixture_nll(moved, sds, y) - metrics.gaussian_mixture_nll(means, sds, y)
    np.testing.assert_allclose(slope[0, 0], rise / step, rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: metrics.calibration_error(np.eye(2), np.arange(2), bins=0), "bins is 0"),
        (lambda: metrics.false_positive_rate(np.ones(2), np.ones(2), recall=95.0), "recall is 95"),
        (lambda: metrics.auroc(np.ones(2), np.ones(0)), "scores of outliers"),
        (lambda: metrics.rmse(np.ones(0), np.ones(0)), "n ≥ 1"),
    ],
)
def test_bad_input_is_refused(call, told):
    with pytest.raises(InputError, match=told):
        call()


def test_shapes_that_would_broadcast_are_refused():
    """A column against a row would be an n × n matrix."""
    with pytest.raises(InputError, match=r"\(3, 1\) for y of shape \(3,\).* column of the pred"):
        metrics._require_values((3, 1), jnp.ones(3))
    with pytest.raises(InputError, match=r"one column of y, with \[..., 0\]"):
        metrics._require_values((3,), jnp.ones((3, 1)))
    with pytest.raises(InputError, match=r"\(3,\) for labels of shape \(3,\)"):
        metrics._require_labels((3,), jnp.ones(3, int))


# Classes as they come in


ONE = np.array([[0.9], [0.8], [0.1], [0.7]])
BOTH = np.concatenate([1 - ONE, ONE], 1)


@pytest.mark.parametrize(
    "metric", [metrics.accuracy, metrics.brier, metrics.calibration_error, metrics.reliability]
)
def test_one_column_is_the_probability_of_the_second_of_two_classes(metric):
    labels = np.array([1, 1, 0, 1])
    for one, other in zip(
        jax.tree.leaves(metric(ONE, labels)), jax.tree.leaves(metric(BOTH, labels)), strict=True
    ):
        np.testing.assert_allclose(one, other)


def test_the_entropy_of_one_column_is_that_of_two_classes():
    np.testing.assert_allclose(metrics.entropy(ONE), metrics.entropy(BOTH))
    members = np.stack([ONE, ONE[::-1]]), np.stack([BOTH, BOTH[::-1]])
    one, other = map(metrics.mutual_information, members)
    np.testing.assert_allclose(one, other)


def test_one_column_of_logits_is_refused():
    with pytest.raises(InputError, match=r"pass both classes.*concatenate"):
        metrics.categorical_nll(ONE[None], np.array([1, 1, 0, 1]))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([1, 2, 3], r"hold 3 in row 2.* 0 to 2.* labels - 1"),
        ([-1, 0, 1], r"hold -1 in row 0"),
        ([0.0, 1.5, 2.0], r"hold 1.5 in row 1; give whole numbers"),
        ([0.0, np.nan, 2.0], r"hold nan in row 1"),
        (["a", "b", "c"], r"labels cannot be read as numbers"),
    ],
)
@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.brier, metrics.calibration_error])
def test_labels_that_are_no_columns_are_refused(metric, labels, told):
    with pytest.raises(InputError, match=told):
        metric(np.eye(3), np.array(labels))


def test_labels_and_values_may_be_lists_series_and_whole_floats():
    pandas = pytest.importorskip("pandas")
    for labels in ([0, 1, 2], [0.0, 1.0, 2.0], pandas.Series([0, 1, 2]), jnp.arange(3)):
        assert metrics.accuracy(np.eye(3).tolist(), labels) == 1
        assert metrics.categorical_nll(np.zeros((2, 3, 3)), labels) == pytest.approx(np.log(3))
    assert metrics.rmse([1, 2], pandas.Series([1.0, 2.0])) == 0
    with pytest.raises(InputError, match="y cannot be read as numbers"):
        metrics.rmse([1, 2], ["a", "b"])


# Whole numbers and NaN


@pytest.mark.parametrize(
    ("metric", "arguments"),
    [
        (metrics.accuracy, ([[1, 0], [1, 0], [0, 1]], [0, 1, 1])),
        (metrics.brier, ([[1, 0], [1, 0], [0, 1]], [0, 1, 1])),
        (metrics.calibration_error, ([[1, 0], [1, 0], [0, 1]], [0, 1, 1])),
        (metrics.categorical_nll, ([[[3, 0], [1, 0], [0, 9]]], [0, 1, 1])),
        (metrics.rmse, ([100_000, 2], [0, 1])),
        (metrics.crps_ensemble, ([[1, 2], [3, 4], [9, 0]], [1, 2])),
        (metrics.crps_gaussian, ([1, 2], [3, 4], [9, 0])),
        (metrics.gaussian_mixture_nll, ([[1, 2]], [[3, 4]], [9, 0])),
        (metrics.interval_coverage, ([0, 0, 0, 0], [2, 2, 2, 2], [1, 2, 3, 9])),
        (metrics.entropy, ([[1, 0], [0, 1]],)),
        (metrics.mutual_information, ([[[1, 0], [0, 1]], [[1, 0], [1, 0]]],)),
        (metrics.auroc, ([1, 2, 3, 4], [3, 5])),
        (metrics.aupr, ([1, 2, 3, 4], [3, 5])),
        (metrics.false_positive_rate, ([1, 2, 3, 4], [3, 5])),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whole_numbers_count_as_floats(metric, arguments):
    whole = [np.array(a, np.int32) for a in arguments]
    floats = [np.array(a, float) for a in arguments]
    if metric.__name__ in ("accuracy", "brier", "calibration_error", "categorical_nll"):
        floats[1] = whole[1]
    np.testing.assert_allclose(metric(*whole), metric(*floats), rtol=1e-12)


@pytest.mark.parametrize(
    ("metric", "arguments"),
    [
        (metrics.accuracy, ([[np.nan, np.nan], [0.0, 1.0]], np.array([0, 1]))),
        (metrics.brier, ([[np.nan, np.nan], [0.0, 1.0]], np.array([0, 1]))),
        (metrics.calibration_error, ([[np.nan, np.nan], [0.0, 1.0]], np.array([0, 1]))),
        (metrics.interval_coverage, ([0.0, 0.0], [1.0, np.nan], [0.5, 0.5])),
        (metrics.auroc, ([0.0, 1.0], [np.nan, np.nan])),
        (metrics.auroc, ([0.0, np.nan], [2.0])),
        (metrics.aupr, ([0.0, 1.0], [np.nan, np.nan])),
        (metrics.false_positive_rate, ([0.0, 1.0], [np.nan, np.nan])),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_prediction_that_is_nan_has_no_good_score(metric, arguments):
    assert np.isnan(metric(*map(np.asarray, arguments)))


# Precision


@pytest.fixture
def single():
    """JAX as it is set by default."""
    with jax.enable_x64(False):
        yield


def offset():
    """Seconds since 1970, with errors of a few."""
    rng = np.random.default_rng(5)
    y = 1.7e9 + 10 * rng.normal(size=500)
    return y + 3 * rng.normal(size=500), y


def test_an_offset_in_y_costs_nothing(single):
    mean, y = offset()
    error, sd = mean - y, np.full(500, 3.0)
    found = {
        "rmse": (metrics.rmse(mean, y), np.sqrt((error**2).mean())),
        "whole": (metrics.rmse(mean.astype(int), y.astype(int)), np.sqrt((error**2).mean())),
        "coverage": (
            metrics.interval_coverage(mean - 5, mean + 5, y),
            (abs(error) <= 5).mean(),
        ),
        "nll": (
            metrics.gaussian_mixture_nll(mean[None], sd[None], y),
            -stats.norm.logpdf(error, 0, 3).mean(),
        ),
        "crps": (metrics.crps_ensemble(mean[None], y), abs(error).mean()),
        "gaussian": (
            metrics.crps_gaussian(mean, sd, y),
            metrics.crps_gaussian(error, sd, 0 * y),
        ),
    }
    for name, (value, known) in found.items():
        np.testing.assert_allclose(value, known, rtol=0.03 if name == "whole" else 1e-5)
        assert value.dtype == np.float32, name


def test_scores_that_differ_little_are_told_apart(single):
    inliers = 1 + 1e-9 * np.arange(50)
    assert metrics.auroc(inliers, inliers + 5.5e-8) == 1
    assert metrics.aupr(inliers, inliers + 5.5e-8) == 1
    assert metrics.false_positive_rate(inliers, inliers + 5.5e-8) == 0


@pytest.mark.filterwarnings("error")
def test_results_are_of_the_type_that_jax_is_set_to(single):
    mean, y = offset()
    narrow = jnp.asarray(mean - y)
    assert metrics.rmse(narrow, 0 * narrow).dtype == np.float32
    bins = metrics.reliability(BOTH, [1, 1, 0, 1])
    assert {a.dtype for a in (*bins, bins.error)} == {np.dtype(np.float32)}
    inside = jax.jit(lambda x: metrics.rmse(x, np.zeros(500)) + metrics.rmse(mean, y))(narrow)
    np.testing.assert_allclose(inside, 2 * metrics.rmse(mean, y), rtol=1e-5)
    assert inside.dtype == jax.grad(metrics.rmse)(narrow, np.zeros(500)).dtype == np.float32
    with jax.enable_x64(True):
        wide = jnp.asarray(mean), jnp.asarray(y)
    assert metrics.rmse(*wide).dtype == np.float64
