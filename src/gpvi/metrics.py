r"""Metrics of predictions: pure, compiled functions of NumPy, JAX or pandas arrays, or of lists.

`m` counts the members of an ensemble or the draws of a posterior, `n` the data, `c` the classes. The predictive
distribution is the mixture of its members, so metrics of probabilities take their mean p̄ = (1/m) Σ_j p_j, and metrics
of the members themselves have a leading axis m. Probabilities with one column are P(y = 1), as predicted by
`Bernoulli`; labels are 0…c − 1. Losses are means over the data. Integers are converted to floats. If a prediction or
score is NaN, so is the metric: a model that diverged must not look like one that finds no outliers.

A metric is computed in the precision of its widest argument, whatever JAX's own setting: in 64 bits if NumPy would do
so. An offset in y, or scores that are close to each other, then lose no digits. The result has JAX's default type.
Inside a compiled or differentiated function the precision is that function's.
"""

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy import special, stats
from jaxtyping import Array, Float, Int, Real, Scalar

from gpvi._inputs import as_labels, as_numbers, class_probabilities, device_dtype
from gpvi.errors import InputError
from gpvi.specs import require_choice, require_count

Result = TypeVar("Result")
BINS = 15
"""M of the paper's calibration error (App. B)."""


def _metric(*static: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Compile a metric; all but its static arguments may be anything that NumPy can convert to numbers."""

    def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
        program, signature = jax.jit(function, static_argnames=static), inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Result:
            bound = signature.bind(*args, **options)
            arguments = bound.arguments
            numbers = {
                name: value if isinstance(value, jax.Array) else as_numbers(value, name)
                for name, value in arguments.items()
                if name not in {*static, "labels"}
            }
            kind = _widest_float(*numbers.values())
            with _precision_of(*numbers.values()):
                arguments.update({name: jnp.asarray(value) for name, value in numbers.items()})
                if "labels" in arguments:
                    *_, columns = (2, *next(iter(numbers.values())).shape)
                    arguments["labels"] = as_labels(arguments["labels"], max(2, columns))
                return _converted(program(*bound.args, **bound.kwargs), kind)

        return called

    return compiled


@_metric()
def accuracy(probabilities: Real[Array, "n c"], labels: Int[Array, " n"]) -> Scalar:
    """Return the share of data whose most probable class is the label.

    Parameters
    ----------
    probabilities
        The predicted probability of each class, one row per datum. One column is P(y = 1).
    labels
        The true class of each datum, 0…c − 1.

    Returns
    -------
    Scalar
        The accuracy, between 0 and 1.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit, or a label is not a class.

    Examples
    --------
    >>> probabilities = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
    >>> round(float(gpvi.metrics.accuracy(probabilities, [0, 1, 1])), 3)
    0.667
    """
    _require_labels(probabilities.shape, labels)
    probabilities = _classes(probabilities)
    right = (probabilities.argmax(1) == labels).mean(dtype=probabilities.dtype)
    return _unless_nan(right, probabilities)


@_metric()
def categorical_nll(logits: Real[Array, "m n c"], labels: Int[Array, " n"]) -> Scalar:
    """Return the negative log-likelihood of class labels under a mixture: −log (1/m) Σ_j p_j(label).

    Parameters
    ----------
    logits
        The logits of each class, by member and datum. Log-probabilities are valid logits, too.
    labels
        The true class of each datum, 0…c − 1.

    Returns
    -------
    Scalar
        The mean over the data, in nats.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit, a label is not a class, or there is only one column, which could be either logits or
        log-probabilities of y = 1.

    Examples
    --------
    >>> logits = np.log([[[0.5, 0.5]], [[0.9, 0.1]]])  # two members, one datum
    >>> round(float(gpvi.metrics.categorical_nll(logits, [0])), 3)  # −log 0.7
    0.357
    """
    _require_labels(logits.shape[1:], labels)
    if logits.shape[-1] == 1:
        raise InputError(
            f"the logits have shape {logits.shape}; one column is ambiguous between logits and log-probabilities of "
            "y = 1, so pass both classes: jnp.concatenate([0 * f, f], -1) for logits f."
        )
    (logits,) = _floats(logits)
    each = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(each, labels[None, :, None], axis=2)[..., 0]
    return -_log_mean_exp(chosen).mean()


@_metric()
def gaussian_mixture_nll(
    means: Real[Array, "m n"], sds: Real[Array, "#m #n"], y: Real[Array, " n"]
) -> Scalar:
    """Return the negative log-likelihood of values under a mixture of normals: −log (1/m) Σ_j N(y; μ_j, σ_j²).

    Parameters
    ----------
    means
        μ, by member and datum.
    sds
        σ, of the same shape, or of length 1 along an axis on which all are equal.
    y
        The true values.

    Returns
    -------
    Scalar
        The mean over the data, in nats.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit.

    Examples
    --------
    >>> round(
    ...     float(gpvi.metrics.gaussian_mixture_nll([[0.0, 1.0]], [[1.0]], [0.0, 1.0])), 3
    ... )  # ½ log 2π
    0.919
    """
    _require_values(means.shape[1:], y)
    return -_log_mean_exp(stats.norm.logpdf(*_floats(y, means, sds))).mean()


@_metric()
def brier(probabilities: Real[Array, "n c"], labels: Int[Array, " n"]) -> Scalar:
    """Return the Brier score Σ_k (p_k − 1[k = label])², between 0 and 2 (Brier 1950).

    Parameters
    ----------
    probabilities
        The predicted probability of each class, one row per datum. One column is P(y = 1).
    labels
        The true class of each datum, 0…c − 1.

    Returns
    -------
    Scalar
        The mean over the data; smaller is better.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit, or a label is not a class.

    Examples
    --------
    >>> round(float(gpvi.metrics.brier([[0.8, 0.2]], [0])), 3)
    0.08
    """
    _require_labels(probabilities.shape, labels)
    probabilities = _classes(probabilities)
    truth = jax.nn.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype)
    return ((probabilities - truth) ** 2).sum(1).mean()


@_metric()
def rmse(mean: Real[Array, " n"], y: Real[Array, " n"]) -> Scalar:
    """Return the root mean squared error √ mean (μ − y)².

    Parameters
    ----------
    mean
        The predictions.
    y
        The true values.

    Returns
    -------
    Scalar
        The error, in the unit of y.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit.

    Examples
    --------
    >>> round(float(gpvi.metrics.rmse([1.0, 2.0], [1.0, 4.0])), 3)
    1.414
    """
    _require_values(mean.shape, y)
    mean, y = _floats(mean, y)
    return jnp.sqrt(((mean - y) ** 2).mean())


@_metric()
def crps_ensemble(draws: Real[Array, "m n"], y: Real[Array, " n"]) -> Scalar:
    """Return the continuous ranked probability score of draws: E|x − y| − ½ E|x − x′|.

    With the draws sorted, E|x − x′| = (2/m²) Σ_i (2i − m − 1) x_(i). An empirical distribution of m draws scores
    E|x − x′|/(2m) worse on average than the one it was drawn from (Gneiting & Raftery 2007).

    Parameters
    ----------
    draws
        Draws from the predictive distribution, by draw and datum.
    y
        The true values.

    Returns
    -------
    Scalar
        The mean over the data, in the unit of y; smaller is better.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit.

    Examples
    --------
    >>> round(float(gpvi.metrics.crps_ensemble([[0.0], [1.0]], [0.0])), 3)
    0.25
    """
    _require_values(draws.shape[1:], y)
    draws, y = _floats(draws, y)
    m = draws.shape[0]
    weights = (2.0 * jnp.arange(1, m + 1) - m - 1) / m**2
    spread = weights.astype(draws.dtype) @ jnp.sort(draws, axis=0)
    return (jnp.abs(draws - y).mean(0) - spread).mean()


@_metric()
def crps_gaussian(mean: Real[Array, " n"], sd: Real[Array, " #n"], y: Real[Array, " n"]) -> Scalar:
    """Return the continuous ranked probability score of N(μ, σ²).

    In closed form it is σ (w (2Φ(w) − 1) + 2φ(w) − 1/√π) with w = (y − μ)/σ.

    Parameters
    ----------
    mean
        μ, by datum.
    sd
        σ, by datum, or one for all.
    y
        The true values.

    Returns
    -------
    Scalar
        The mean over the data, in the unit of y; smaller is better.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit.

    Examples
    --------
    >>> round(float(gpvi.metrics.crps_gaussian([0.0], [1.0], [0.0])), 3)  # (√2 − 1)/√π
    0.234
    """
    _require_values(mean.shape, y)
    mean, sd, y = _floats(mean, sd, y)
    w = (y - mean) / sd
    scaled = w * (2 * stats.norm.cdf(w) - 1) + 2 * stats.norm.pdf(w) - 1 / math.sqrt(math.pi)
    return (sd * scaled).mean()


@_metric()
def interval_coverage(
    lower: Real[Array, " n"], upper: Real[Array, " n"], y: Real[Array, " n"]
) -> Scalar:
    """Return the share of data inside their closed intervals.

    Parameters
    ----------
    lower
        The lower end of each interval.
    upper
        The upper end of each interval.
    y
        The true values.

    Returns
    -------
    Scalar
        The coverage, between 0 and 1.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit.

    Examples
    --------
    >>> float(gpvi.metrics.interval_coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0]))
    0.5
    """
    _require_values(lower.shape, y)
    _require_values(upper.shape, y)
    lower, upper, y = _floats(lower, upper, y)
    return _unless_nan(((lower <= y) & (y <= upper)).mean(dtype=y.dtype), lower, upper, y)


@_metric()
def entropy(probabilities: Real[Array, "*n c"]) -> Float[Array, "*n"]:
    """Return the entropy −Σ_k p_k log p_k of each row.

    Parameters
    ----------
    probabilities
        Probabilities of classes along the last axis. One column is P(y = 1).

    Returns
    -------
    Float[Array, "*n"]
        The entropies, in nats.

    Examples
    --------
    >>> print(np.round(gpvi.metrics.entropy([[0.5, 0.5], [1.0, 0.0]]), 3))
    [0.693 0.   ]
    """
    return special.entr(_classes(probabilities)).sum(-1)


@_metric()
def predictive_entropy(probabilities: Real[Array, "m n c"]) -> Float[Array, " n"]:
    """Return the entropy H[p̄] of the mean prediction: the total uncertainty about the class.

    Parameters
    ----------
    probabilities
        The predicted probability of each class, by member and datum.

    Returns
    -------
    Float[Array, " n"]
        The entropy of each datum, in nats.

    Examples
    --------
    >>> members = [[[1.0, 0.0]], [[0.0, 1.0]]]  # sure of different classes
    >>> print(np.round(gpvi.metrics.predictive_entropy(members), 3))
    [0.693]
    """
    (probabilities,) = _floats(probabilities)
    return entropy(probabilities.mean(0))


@_metric()
def mutual_information(probabilities: Real[Array, "m n c"]) -> Float[Array, " n"]:
    """Return H[p̄] − (1/m) Σ_j H[p_j] ≥ 0, the part of the uncertainty on which members disagree (Houlsby et al. 2011).

    Parameters
    ----------
    probabilities
        The predicted probability of each class, by member and datum.

    Returns
    -------
    Float[Array, " n"]
        The mutual information of each datum, in nats.

    Examples
    --------
    >>> unsure = [[[0.5, 0.5]], [[0.5, 0.5]]]  # unsure, but in agreement
    >>> print(np.round(gpvi.metrics.mutual_information(unsure), 3))
    [0.]
    """
    return jnp.maximum(predictive_entropy(probabilities) - entropy(probabilities).mean(0), 0.0)


@_metric()
def auroc(inliers: Real[Array, " n"], outliers: Real[Array, " o"]) -> Scalar:
    """Return the area under the ROC curve: P(an outlier scores higher than an inlier) + ½ P(both score the same).

    Parameters
    ----------
    inliers
        The scores of inliers.
    outliers
        The scores of outliers, which should be higher.

    Returns
    -------
    Scalar
        The area, between 0 and 1; ½ is chance.

    Raises
    ------
    gpvi.errors.InputError
        If there are no scores, or they have more than one axis.

    Examples
    --------
    >>> round(
    ...     float(gpvi.metrics.auroc([0.1, 0.2, 0.4], [0.3, 0.5])), 3
    ... )  # 5 of 6 pairs are in order
    0.833
    """
    _require_scores(inliers, outliers)
    inliers, outliers = _floats(inliers, outliers)
    below, at_most = _counts(inliers, outliers)
    return _unless_nan(((below + at_most) / (2 * len(inliers))).mean(), inliers, outliers)


@_metric()
def aupr(inliers: Real[Array, " n"], outliers: Real[Array, " o"]) -> Scalar:
    """Return the average precision of finding the outliers.

    Σ_k (R_k − R_{k−1}) P_k over the thresholds is the mean, over the outliers, of the precision of the threshold that
    just admits each; tied scores share theirs.

    Parameters
    ----------
    inliers
        The scores of inliers.
    outliers
        The scores of outliers, which should be higher.

    Returns
    -------
    Scalar
        The average precision, between 0 and 1; the share of outliers is chance.

    Raises
    ------
    gpvi.errors.InputError
        If there are no scores, or they have more than one axis.

    Examples
    --------
    >>> round(float(gpvi.metrics.aupr([0.1, 0.2, 0.4], [0.3, 0.5])), 3)  # (1 + 2/3)/2
    0.833
    """
    _require_scores(inliers, outliers)
    inliers, outliers = _floats(inliers, outliers)
    false = len(inliers) - _counts(inliers, outliers)[0]
    true = len(outliers) - _counts(outliers, outliers)[0]
    return _unless_nan((true / (true + false)).mean(), inliers, outliers)


@_metric("recall")
def false_positive_rate(
    inliers: Real[Array, " n"], outliers: Real[Array, " o"], recall: float = 0.95
) -> Scalar:
    """Return the share of inliers above the threshold at which at least `recall` of the outliers are detected (FPR@95).

    The outliers are the positives. If the inliers should be the positives, as in some of the literature, swap the
    arguments and negate both.

    Parameters
    ----------
    inliers
        The scores of inliers.
    outliers
        The scores of outliers, which should be higher.
    recall
        The share of outliers to detect, above 0 and at most 1.

    Returns
    -------
    Scalar
        The false-positive rate, between 0 and 1; smaller is better.

    Raises
    ------
    gpvi.errors.InputError
        If there are no scores, or they have more than one axis, or if `recall` is out of range.

    Examples
    --------
    >>> round(float(gpvi.metrics.false_positive_rate([0.1, 0.2, 0.4], [0.3, 0.5])), 3)
    0.333
    """
    _require_scores(inliers, outliers)
    if not 0 < recall <= 1:
        raise InputError(f"recall is {recall!r}; it must be above 0 and at most 1, such as 0.95.")
    inliers, outliers = _floats(inliers, outliers)
    detected = math.ceil(recall * len(outliers) * (1 - 1e-12))
    alarms = inliers >= jnp.sort(outliers)[len(outliers) - detected]
    return _unless_nan(alarms.mean(dtype=inliers.dtype), inliers, outliers)


class Reliability(NamedTuple):
    """Predictions in bins by confidence, which is the probability of the predicted class.

    Parameters
    ----------
    confidence
        The mean confidence in each bin; NaN in an empty one.
    accuracy
        The share of correct predictions in each bin; NaN in an empty one.
    share
        The share of all predictions in each bin.

    Examples
    --------
    >>> bins = gpvi.metrics.reliability([[0.9, 0.1], [0.4, 0.6]], [0, 1], bins=2)
    >>> round(float(bins.error), 3)
    0.25
    """

    confidence: Float[Array, " bins"]
    accuracy: Float[Array, " bins"]
    share: Float[Array, " bins"]

    @property
    def error(self) -> Scalar:
        """The expected calibration error Σ_b share_b |accuracy_b − confidence_b|."""
        with _precision_of(*self):
            gaps = jnp.abs(self.accuracy - self.confidence)
            return jnp.where(self.share > 0, self.share * gaps, 0.0).sum()


@_metric("bins", "equal")
def reliability(
    probabilities: Real[Array, "n c"],
    labels: Int[Array, " n"],
    bins: int = BINS,
    equal: Literal["mass", "width"] = "mass",
) -> Reliability:
    """Sort predictions by confidence into bins, and compare confidence with accuracy in each.

    Bins of equal mass may split predictions of equal confidence. These share their mean accuracy, so the order of the
    data does not matter. A bin of equal width is ((b − 1)/M, b/M] (Guo et al. 2017).

    Parameters
    ----------
    probabilities
        The predicted probability of each class, one row per datum. One column is P(y = 1).
    labels
        The true class of each datum, 0…c − 1.
    bins
        The number M of bins.
    equal
        "mass" for bins with equally many predictions (the paper's), or "width" for equal intervals of [0, 1].

    Returns
    -------
    Reliability
        The mean confidence, the accuracy and the share of each bin.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit, or a label is not a class, or an option is unknown.

    Examples
    --------
    >>> probabilities = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]
    >>> bins = gpvi.metrics.reliability(probabilities, [0, 1, 1, 0], bins=2)
    >>> for name, values in bins._asdict().items():
    ...     print(f"{name:10}", *(f"{value:.2f}" for value in values))
    confidence 0.65 0.85
    accuracy   0.50 1.00
    share      0.50 0.50
    """
    _require_labels(probabilities.shape, labels)
    require_count("bins", bins, f"The paper uses {BINS}.")
    require_choice(equal, ("mass", "width"), "equal")
    probabilities = _classes(probabilities)
    n = len(labels)
    order = jnp.argsort(probabilities.max(1))
    confidence = probabilities.max(1)[order]
    right = (probabilities.argmax(1) == labels)[order].astype(confidence.dtype)
    if equal == "mass":
        bin_of = jnp.asarray(np.arange(n) * bins // n)
        is_new = confidence[1:] != confidence[:-1]
        group = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(is_new)])
        right = _means(right, group, n)[group]
    else:
        bin_of = jnp.clip(jnp.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    share = jnp.zeros(bins, confidence.dtype).at[bin_of].add(1.0 / n)
    return Reliability(_means(confidence, bin_of, bins), _means(right, bin_of, bins), share)


@_metric("bins", "equal")
def calibration_error(
    probabilities: Real[Array, "n c"],
    labels: Int[Array, " n"],
    bins: int = BINS,
    equal: Literal["mass", "width"] = "mass",
) -> Scalar:
    """Return the expected calibration error Σ_b share_b |accuracy_b − confidence_b| over the bins of `reliability`.

    Parameters
    ----------
    probabilities
        The predicted probability of each class, one row per datum. One column is P(y = 1).
    labels
        The true class of each datum, 0…c − 1.
    bins
        The number M of bins.
    equal
        "mass" for bins with equally many predictions (the paper's), or "width" for equal intervals of [0, 1].

    Returns
    -------
    Scalar
        The error, between 0 and 1; smaller is better.

    Raises
    ------
    gpvi.errors.InputError
        If the shapes do not fit, or a label is not a class, or an option is unknown.

    Examples
    --------
    >>> probabilities = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]
    >>> round(float(gpvi.metrics.calibration_error(probabilities, [0, 1, 1, 0], bins=2)), 3)
    0.15
    """
    return reliability(probabilities, labels, bins=bins, equal=equal).error


def _precision_of(*arrays: Array | np.ndarray) -> AbstractContextManager[None]:
    """Return a context in which JAX keeps the precision of all arrays; inside a traced function, do nothing.

    Integers of NumPy count as the floats that NumPy converts them to.
    """
    traced = any(isinstance(array, Tracer) for array in arrays)
    wide = any(
        array.dtype == np.float64
        or (isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.dtype.itemsize > 2)
        for array in arrays
    )
    return jax.enable_x64(True) if wide and not traced else nullcontext()


def _widest_float(*arrays: Array | np.ndarray) -> np.dtype:
    """Return the type of a result: JAX's default float, or float64 if an argument is a JAX array of that type."""
    double = np.dtype(np.float64)
    wide = any(isinstance(array, jax.Array) and array.dtype == double for array in arrays)
    return double if wide else device_dtype(double)


def _converted(result: Result, kind: np.dtype) -> Result:
    """Convert float64 arrays to `kind`."""
    return jax.tree.map(lambda a: a.astype(kind) if a.dtype == np.float64 else a, result)


def _classes(probabilities: Real[Array, "*n c"]) -> Float[Array, "*n k"]:
    """Convert probabilities to floats, of at least two classes."""
    return class_probabilities(*_floats(probabilities))


def _floats(*arrays: Array) -> list[Array]:
    """Convert integers to floats, and leave floats as they are."""
    return [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float) for x in arrays]


def _unless_nan(value: Scalar, *arrays: Array) -> Scalar:
    """Return the value of a metric, or NaN if an array has a NaN, which its comparisons would ignore."""
    unknown = jnp.array([jnp.isnan(array).any() for array in arrays]).any()
    return jnp.where(unknown, jnp.nan, value)


def _log_mean_exp(values: Float[Array, "m n"]) -> Float[Array, " n"]:
    """Return the log of the mean of exp over the first axis."""
    return special.logsumexp(values, axis=0) - math.log(values.shape[0])


def _means(
    values: Float[Array, " n"], group: Int[Array, " n"], groups: int
) -> Float[Array, " groups"]:
    """Return the mean of each group, NaN for an empty one."""
    count = jax.ops.segment_sum(jnp.ones_like(values), group, groups)
    return jax.ops.segment_sum(values, group, groups) / count


def _counts(
    scores: Float[Array, " n"], at: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Count the scores below each point, and at or below it."""
    ordered = jnp.sort(scores)
    below, at_most = (jnp.searchsorted(ordered, at, side) for side in ("left", "right"))
    return below.astype(at.dtype), at_most.astype(at.dtype)


def _require_values(shape: tuple[int, ...], y: Array) -> None:
    """Refuse shapes that would broadcast to anything but one y per prediction."""
    if y.ndim != 1 or shape != y.shape or y.size == 0:
        sides = {"the predictions": shape, "y": y.shape}
        long = [side for side, own in sides.items() if len(own) > 1]
        remedy = f" Take one column of {' and of '.join(long)}, with [..., 0]." if long else ""
        raise InputError(
            f"the predictions have shape {shape} for y of shape {y.shape}; both must be (n,) with n ≥ 1.{remedy}"
        )


def _require_labels(shape: tuple[int, ...], labels: Array) -> None:
    if labels.ndim != 1 or len(shape) != 2 or shape[0] != len(labels) or labels.size == 0:
        raise InputError(
            f"the predictions have shape {shape} for labels of shape {labels.shape}; they must be (n, classes) and "
            "(n,), n ≥ 1, with labels 0, 1, … as columns of the predictions. For one-hot rows pass labels.argmax(1); "
            "for probabilities p of y = 1 alone, p[:, None]."
        )


def _require_scores(inliers: Array, outliers: Array) -> None:
    for name, scores in (("inliers", inliers), ("outliers", outliers)):
        if scores.ndim != 1 or scores.size == 0:
            raise InputError(
                f"the scores of {name} have shape {scores.shape}; give one axis with at least one score."
            )
