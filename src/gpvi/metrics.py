r"""Metrics of predictions: pure, compiled functions of NumPy, JAX or pandas arrays, or of lists.

`m` counts the members of an ensemble or the draws of a posterior, `n` the data, `c` the classes. The predictive
distribution is the mixture of its members, so metrics of probabilities take their mean p̄ = (1/m) Σ_j p_j, and metrics
of the members themselves have a leading axis m. Probabilities with one column are P(y = 1), as predicted by
`Bernoulli`; labels are 0…c − 1. Losses are means over the data. Integers are converted to floats. If a prediction or
score is NaN, so is the metric: a model that diverged finds no outliers.

A metric is computed in the precision of its widest argument, whatever JAX's own setting: in 64 bits where NumPy would,
so that an offset in y, or scores that are close to each other, cost nothing. The result has the type that JAX is set
to. Inside a compiled or differentiated function the precision is that function's.
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

Found = TypeVar("Found")
BINS = 15
"""M of the paper's calibration error (App. B)."""


def _metric(*static: str) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Compile a metric; its non-static arguments may be anything that holds numbers."""

    def compiled(function: Callable[..., Found]) -> Callable[..., Found]:
        program, signature = jax.jit(function, static_argnames=static), inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Found:
            bound = signature.bind(*args, **options)
            given = bound.arguments
            numbers = {
                name: value if isinstance(value, jax.Array) else as_numbers(value, name)
                for name, value in given.items()
                if name not in {*static, "labels"}
            }
            kind = _widest_float(*numbers.values())
            with _precision_of(*numbers.values()):
                given.update({name: jnp.asarray(value) for name, value in numbers.items()})
                if "labels" in given:
                    *_, columns = (2, *next(iter(numbers.values())).shape)
                    given["labels"] = as_labels(given["labels"], max(2, columns))
                return _given_back(program(*bound.args, **bound.kwargs), kind)

        return called

    return compiled


@_metric()
def accuracy(probabilities: Real[Array, "n c"], labels: Int[Array, " n"]) -> Scalar:
    """The share of data whose most probable class is the label."""
    _require_labels(probabilities.shape, labels)
    probabilities = _classes(probabilities)
    right = (probabilities.argmax(1) == labels).mean(dtype=probabilities.dtype)
    return _unless_nan(right, probabilities)


@_metric()
def categorical_nll(logits: Real[Array, "m n c"], labels: Int[Array, " n"]) -> Scalar:
    """−log (1/m) Σ_j p_j(label); log-probabilities are also valid logits."""
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
    """−log (1/m) Σ_j N(y; μ_j, σ_j²)."""
    _require_values(means.shape[1:], y)
    return -_log_mean_exp(stats.norm.logpdf(*_floats(y, means, sds))).mean()


@_metric()
def brier(probabilities: Real[Array, "n c"], labels: Int[Array, " n"]) -> Scalar:
    """Σ_k (p_k − 1[k = label])², between 0 and 2 (Brier 1950)."""
    _require_labels(probabilities.shape, labels)
    probabilities = _classes(probabilities)
    truth = jax.nn.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype)
    return ((probabilities - truth) ** 2).sum(1).mean()


@_metric()
def rmse(mean: Real[Array, " n"], y: Real[Array, " n"]) -> Scalar:
    """√ mean (μ − y)²."""
    _require_values(mean.shape, y)
    mean, y = _floats(mean, y)
    return jnp.sqrt(((mean - y) ** 2).mean())


@_metric()
def crps_ensemble(draws: Real[Array, "m n"], y: Real[Array, " n"]) -> Scalar:
    """The continuous ranked probability score of the empirical distribution: E|x − y| − ½ E|x − x′|.

    With the draws sorted, E|x − x′| = (2/m²) Σ_i (2i − m − 1) x_(i). An empirical distribution of m draws scores
    E|x − x′|/(2m) worse on average than the one it was drawn from (Gneiting & Raftery 2007).
    """
    _require_values(draws.shape[1:], y)
    draws, y = _floats(draws, y)
    m = draws.shape[0]
    weights = (2.0 * jnp.arange(1, m + 1) - m - 1) / m**2
    spread = weights.astype(draws.dtype) @ jnp.sort(draws, axis=0)
    return (jnp.abs(draws - y).mean(0) - spread).mean()


@_metric()
def crps_gaussian(mean: Real[Array, " n"], sd: Real[Array, " #n"], y: Real[Array, " n"]) -> Scalar:
    """The same score of N(μ, σ²): σ (w (2Φ(w) − 1) + 2φ(w) − 1/√π), w = (y − μ)/σ."""
    _require_values(mean.shape, y)
    mean, sd, y = _floats(mean, sd, y)
    w = (y - mean) / sd
    scaled = w * (2 * stats.norm.cdf(w) - 1) + 2 * stats.norm.pdf(w) - 1 / math.sqrt(math.pi)
    return (sd * scaled).mean()


@_metric()
def interval_coverage(
    lower: Real[Array, " n"], upper: Real[Array, " n"], y: Real[Array, " n"]
) -> Scalar:
    """The share of data inside their closed intervals."""
    _require_values(lower.shape, y)
    _require_values(upper.shape, y)
    lower, upper, y = _floats(lower, upper, y)
    return _unless_nan(((lower <= y) & (y <= upper)).mean(dtype=y.dtype), lower, upper, y)


@_metric()
def entropy(probabilities: Real[Array, "*n c"]) -> Float[Array, "*n"]:
    """−Σ_k p_k log p_k of each row, in nats."""
    return special.entr(_classes(probabilities)).sum(-1)


@_metric()
def predictive_entropy(probabilities: Real[Array, "m n c"]) -> Float[Array, " n"]:
    """H[p̄]: the total uncertainty about the class."""
    (probabilities,) = _floats(probabilities)
    return entropy(probabilities.mean(0))


@_metric()
def mutual_information(probabilities: Real[Array, "m n c"]) -> Float[Array, " n"]:
    """H[p̄] − (1/m) Σ_j H[p_j] ≥ 0: the part due to disagreement of the members (Houlsby et al. 2011)."""
    return jnp.maximum(predictive_entropy(probabilities) - entropy(probabilities).mean(0), 0.0)


@_metric()
def auroc(inliers: Real[Array, " n"], outliers: Real[Array, " o"]) -> Scalar:
    """P(score of an outlier > score of an inlier) + ½ P(they are equal)."""
    _require_scores(inliers, outliers)
    inliers, outliers = _floats(inliers, outliers)
    below, at_most = _counts(inliers, outliers)
    return _unless_nan(((below + at_most) / (2 * len(inliers))).mean(), inliers, outliers)


@_metric()
def aupr(inliers: Real[Array, " n"], outliers: Real[Array, " o"]) -> Scalar:
    """Average precision of finding the outliers.

    Σ_k (R_k − R_{k−1}) P_k over the thresholds is the mean, over the outliers, of the precision of the threshold that
    just admits each; tied scores share theirs.
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
    """The share of inliers above the threshold at which at least `recall` of the outliers are detected (FPR@95).

    The outliers are the positives. If the inliers should be the positives, as in some of the literature, swap the
    arguments and negate both.
    """
    _require_scores(inliers, outliers)
    if not 0 < recall <= 1:
        raise InputError(f"recall is {recall!r}; it must be above 0 and at most 1, such as 0.95.")
    inliers, outliers = _floats(inliers, outliers)
    found = math.ceil(recall * len(outliers) * (1 - 1e-12))
    alarms = inliers >= jnp.sort(outliers)[len(outliers) - found]
    return _unless_nan(alarms.mean(dtype=inliers.dtype), inliers, outliers)


class Reliability(NamedTuple):
    """Predictions binned by confidence, the probability of the predicted class; means of an empty bin are NaN."""

    confidence: Float[Array, " bins"]
    """The mean confidence in each bin."""
    accuracy: Float[Array, " bins"]
    """The share of correct predictions in each bin."""
    share: Float[Array, " bins"]
    """The share of all predictions in each bin."""

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
    """Predictions sorted by confidence into bins of equal "mass" (the paper's) or equal "width" in [0, 1].

    Bins of equal mass may split predictions of equal confidence, so these share their mean accuracy and the order of
    the data does not matter. A bin of equal width is ((b − 1)/M, b/M] (Guo et al. 2017).
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
    """ECE = Σ_b share_b |accuracy_b − confidence_b|, see `reliability`."""
    return reliability(probabilities, labels, bins=bins, equal=equal).error


def _precision_of(*arrays: Array | np.ndarray) -> AbstractContextManager[None]:
    """A context in which JAX holds all arrays as they are; the present one inside a function that is being traced.

    Whole numbers of NumPy are held as the floats that NumPy makes of them.
    """
    traced = any(isinstance(array, Tracer) for array in arrays)
    wide = any(
        array.dtype == np.float64
        or (isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.dtype.itemsize > 2)
        for array in arrays
    )
    return jax.enable_x64(True) if wide and not traced else nullcontext()


def _widest_float(*arrays: Array | np.ndarray) -> np.dtype:
    """What a float64 result is given back as: in 32 bits where JAX is set to these, unless an array of JAX has 64."""
    double = np.dtype(np.float64)
    held = any(isinstance(array, jax.Array) and array.dtype == double for array in arrays)
    return double if held else device_dtype(double)


def _given_back(found: Found, kind: np.dtype) -> Found:
    return jax.tree.map(lambda a: a.astype(kind) if a.dtype == np.float64 else a, found)


def _classes(probabilities: Real[Array, "*n c"]) -> Float[Array, "*n k"]:
    """As floats, of at least two classes."""
    return class_probabilities(*_floats(probabilities))


def _floats(*arrays: Array) -> list[Array]:
    """The arrays as floats, keeping the precision of floating-point arrays."""
    return [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float) for x in arrays]


def _unless_nan(value: Scalar, *arrays: Array) -> Scalar:
    """The value of a metric based on comparisons, or NaN if a score is NaN, which comparisons would ignore."""
    unknown = jnp.array([jnp.isnan(array).any() for array in arrays]).any()
    return jnp.where(unknown, jnp.nan, value)


def _log_mean_exp(values: Float[Array, "m n"]) -> Float[Array, " n"]:
    return special.logsumexp(values, axis=0) - math.log(values.shape[0])


def _means(
    values: Float[Array, " n"], group: Int[Array, " n"], groups: int
) -> Float[Array, " groups"]:
    """The mean of each group, NaN for an empty one."""
    count = jax.ops.segment_sum(jnp.ones_like(values), group, groups)
    return jax.ops.segment_sum(values, group, groups) / count


def _counts(
    scores: Float[Array, " n"], at: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """The number of scores below each point, and at or below it."""
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
