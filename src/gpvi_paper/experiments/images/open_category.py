r"""Open category (the paper's §4.5): train on some classes of images, and find the images of the others.

A posterior over networks is fitted to the known classes. For each test image it gives the mean prediction p̄ and scores
of its uncertainty: the variance of the networks' predictions, Σ_c Var_w[p_w(c)] (the paper's), the entropy of p̄, the
mutual information between class and network, and 1 − max p̄. AUROC is the probability that an image of an unknown class
scores higher than one of a known class. Accuracy, NLL and calibration are those of the known classes.

A posterior may be a mixture of several generators, each started at its own draw of the network's initialisation and
trained on its own bound. KL is convex, KL(1/M Σ_m q_m ‖ p) ≤ 1/M Σ_m KL(q_m ‖ p), so the mean of their bounds is a
bound for the mixture; if the parts do not overlap, as in thousands of dimensions, it is log M nats too low.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

import gpvi
from gpvi import bnn, metrics
from gpvi.bnn import Categorical, Network, Prediction, Predictive
from gpvi.errors import InputError
from gpvi.methods.carriers import Particles
from gpvi.progress import Meter
from gpvi_paper.data.images import Images
from gpvi_paper.experiments.base import (
    SECONDS,
    Metric,
    Published,
    Results,
    RunsCases,
    Table,
    grouped,
    higher,
    lower,
)
from gpvi_paper.experiments.images.recipes import (
    COMPARED,
    ENSEMBLE,
    GPVI_BEST,
    BestSetting,
    NetworkRecipe,
    PaperSetting,
    authors_recipes,
    best_recipes,
    paper_recipes,
    sharpened_recipes,
    shortened,
)

SPLIT, CLEAN = "split", "clean"
UNKNOWN: dict[str, tuple[int, ...]] = {
    SPLIT: (6, 7, 8, 9),
    CLEAN: (),
    "neal1": (3, 6, 7, 8),
    "neal2": (1, 2, 4, 6),
    "neal3": (2, 3, 4, 9),
    "neal4": (0, 1, 2, 6),
    "neal5": (4, 5, 6, 9),
}
"""The classes that training does not see: the authors' split, none, and the five of Neal et al. (2018)."""
TITLES: dict[str, str] = {
    SPLIT: "classes 0–5 known",
    CLEAN: "all classes known",
    **{
        case: f"{', '.join(map(str, classes))} unknown"
        for case, classes in UNKNOWN.items()
        if case.startswith("neal")
    },
}
HELD_OUT = 0.1
"""The share of the training set, its last part, on which hyper-parameters may be chosen."""
SCORES = ("variance", "entropy", "mutual_information", "confidence")
HISTOGRAM = np.linspace(-8.0, 0.5, 35)
"""The edges of the bins of log₁₀ of a score."""


class Task(NamedTuple):
    """What to train on and what to score, standardised by the training images."""

    inputs: Float[np.ndarray, "n h w c"]
    labels: Int[np.ndarray, " n"]
    inliers: Float[np.ndarray, "i h w c"]
    inlier_labels: Int[np.ndarray, " i"]
    outliers: Float[np.ndarray, "o h w c"]


def task(images: Images, unknown: Sequence[int]) -> Task:
    """Train on the known classes, and score the test set."""
    train, labels, test, test_labels = images
    known, test_known = (~np.isin(y, unknown) for y in (labels, test_labels))
    mean, sd = _moments(train[known])

    def standard(x: np.ndarray) -> np.ndarray:
        return (x.astype(np.float32) - mean) / sd

    return Task(
        standard(train[known]),
        labels[known],
        standard(test[test_known]),
        test_labels[test_known],
        standard(test[~test_known]),
    )


def hold_out(images: Images, share: float) -> tuple[Images, Images]:
    """The images without the last part of their training set, and the same with that part as their test set."""
    first = len(images.train) - max(1, round(share * len(images.train)))
    shorter = images._replace(train=images.train[:first], train_labels=images.train_labels[:first])
    test, test_labels = images.train[first:], images.train_labels[first:]
    return shorter, shorter._replace(test=test, test_labels=test_labels)


def with_mirror_images(problem: Task) -> Task:
    """Twice as many training images: a mirrored photograph is as plausible as the original."""
    inputs, labels = problem.inputs, problem.labels
    return problem._replace(
        inputs=np.concatenate([inputs, inputs[:, :, ::-1]]), labels=np.concatenate([labels, labels])
    )


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel, computed from the counts of the 256 values."""
    values = np.arange(256.0)
    counts = np.stack([np.bincount(c.ravel(), minlength=256) for c in np.moveaxis(x, -1, 0)])
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ values
    sd = np.sqrt(np.maximum(share @ values**2 - mean**2, 1.0))
    return mean.astype(np.float32), sd.astype(np.float32)


def trained(
    problem: Task,
    network: Network,
    recipe: NetworkRecipe,
    seeds: int,
    *,
    key: PRNGKeyArray,
    progress: bool | Meter = False,
) -> list[list[gpvi.Posterior]]:
    """The posteriors of each seed, one per generator of its mixture, all trained side by side."""
    if recipe.mirrored:
        problem = with_mirror_images(problem)
    n = len(problem.labels)
    batch_size = min(recipe.batch_size or n, n)
    posterior = bnn.target(
        network,
        Categorical(),
        recipe.prior,
        problem.inputs,
        problem.labels,
        temperature=recipe.temperature(n),
    )
    posteriors = recipe.fit_seeds(
        [posterior] * (seeds * recipe.generators),
        key=key,
        steps=recipe.steps or recipe.epochs * (n // batch_size),
        batch_size=batch_size,
        progress=progress,
    )
    return grouped(posteriors, recipe.generators)


def predicted(
    parts: Sequence[gpvi.Posterior],
    network: Network,
    inputs: np.ndarray,
    draws: int | None,
    *,
    key: PRNGKeyArray,
) -> Prediction:
    """What the mixture of the parts predicts: by `draws` networks in all, or by all particles."""
    number = None if isinstance(parts[0].model, Particles) else draws
    return Predictive(parts, network, Categorical()).predict(inputs, key=key, draws=number)


def scores(prediction: Prediction) -> dict[str, Float[Array, " b"]]:
    """The uncertainty of each image by four scores, named in `SCORES`."""
    assert prediction.entropy is not None and prediction.mutual_information is not None
    return {
        "variance": prediction.epistemic.sum(1),
        "entropy": prediction.entropy,
        "mutual_information": prediction.mutual_information,
        "confidence": 1.0 - prediction.mean.max(1),
    }


class Outcome(NamedTuple):
    """The measurements of one posterior, and the arrays for its pictures."""

    values: dict[str, float]
    arrays: dict[str, np.ndarray]


def measured(
    parts: Sequence[gpvi.Posterior],
    network: Network,
    problem: Task,
    draws: int | None,
    *,
    key: PRNGKeyArray,
    exponent: float = 1.0,
) -> Outcome:
    """Accuracy, NLL and calibration on the known classes; AUROC if there are unknown ones."""
    inside = len(problem.inliers)
    inputs = np.concatenate([problem.inliers, problem.outliers])
    prediction = predicted(parts, network, inputs, draws, key=key)
    p, labels = prediction.mean[:inside], jnp.asarray(problem.inlier_labels)
    p = p if exponent == 1 else bnn.temperature_scaled(p, exponent)
    chosen = jnp.take_along_axis(p, labels[:, None], axis=1)
    by_mass, by_width = (metrics.reliability(p, labels, equal=e) for e in ("mass", "width"))
    values = {
        "accuracy": float(metrics.accuracy(p, labels)),
        "nll": float(-jnp.log(jnp.maximum(chosen, jnp.finfo(p.dtype).tiny)).mean()),
        "ece": float(by_mass.error),
        "ece_width": float(by_width.error),
    }
    arrays = {"reliability": np.nan_to_num(np.stack([np.asarray(p) for p in by_width])).round(5)}
    if len(problem.outliers):
        one = _is_one_network(parts)
        doubts = {k: np.asarray(v) for k, v in scores(prediction).items()}
        for name, score in doubts.items():
            if not one or name in ("entropy", "confidence"):
                auroc = metrics.auroc(jnp.asarray(score[:inside]), jnp.asarray(score[inside:]))
                values[f"auroc_{name}"] = float(auroc)
        if not one:
            values["disagreement"] = float(doubts["mutual_information"][inside:].mean())
        shown = doubts["entropy" if one else "variance"]
        arrays |= {
            "inlier_scores": _shares(shown[:inside]),
            "outlier_scores": _shares(shown[inside:]),
        }
    return Outcome(values, arrays)


def best_exponent(
    parts: Sequence[gpvi.Posterior],
    network: Network,
    held_out: Task,
    draws: int | None,
    *,
    key: PRNGKeyArray,
) -> float:
    """The exponent of the mean prediction that fits the held-out images of the known classes best."""
    prediction = predicted(parts, network, held_out.inliers, draws, key=key)
    return bnn.fit_sharpness(prediction.mean, held_out.inlier_labels)


def _is_one_network(parts: Sequence[gpvi.Posterior]) -> bool:
    return (
        len(parts) == 1 and isinstance(parts[0].model, Particles) and len(parts[0].particles) == 1
    )


def _shares(score: np.ndarray) -> np.ndarray:
    """The share of scores in each bin of `HISTOGRAM`; scores beyond its ends count in the first or last bin."""
    logs = np.log10(np.clip(score, 10.0 ** HISTOGRAM[0], 10.0 ** HISTOGRAM[-1]))
    return (np.histogram(logs, HISTOGRAM)[0] / len(score)).round(5)


class OpenCategory(RunsCases[NetworkRecipe]):
    """What the image sets have in common."""

    figures: Mapping[str, tuple[float, Published | None, Published | None]]
    """Label → the paper's clean accuracy, AUC and ECE."""
    reasons: Mapping[str, str] = MappingProxyType({})
    """Label → why our figures under `paper` differ."""
    as_published: PaperSetting | None = None
    recommended: BestSetting
    shortest: BestSetting
    cases = MappingProxyType(TITLES)
    metrics = (
        higher("accuracy", "accuracy", "on test images of the known classes"),
        higher(
            "auroc_variance",
            "AUROC, variance",
            "detection of unknown classes by the networks' variance",
        ),
        higher("auroc_entropy", "AUROC, entropy", "by the entropy of the mean prediction"),
        higher("auroc_mutual_information", "AUROC, mutual inf.", "by the networks' disagreement"),
        higher("auroc_confidence", "AUROC, 1 − max p", "by the largest probability"),
        Metric(
            "disagreement",
            "disagreement",
            "mutual information between class and network on images of unknown classes, mean, in nats",
        ),
        lower("ece", "ECE", "calibration error, 15 bins of equal mass (the paper's)"),
        lower("ece_width", "ECE, equal width", "calibration error, 15 bins of equal width"),
        lower("nll", "NLL", "−log of the probability of the correct class"),
        Metric("sharpness", "exponent s", "of the mean prediction, from held-out training images"),
        SECONDS,
    )
    tables = (
        Table(
            "Known classes",
            ("accuracy", "ece", "nll"),
            "Test images of the known classes, by the mean prediction of the networks.",
        ),
        Table(
            "Unknown classes",
            (
                "auroc_variance",
                "auroc_entropy",
                "auroc_mutual_information",
                "auroc_confidence",
                "disagreement",
            ),
            "The probability that an image of an unknown class scores higher than one of a known class, and how much "
            "the networks disagree on those of unknown classes. One network has no variance to use.",
        ),
    )
    headline = ("auroc_variance", "ece", "nll")

    @abstractmethod
    def images(self) -> Images:
        """The data."""

    @abstractmethod
    def network(self, images: Images) -> Network:
        """The classifier, always with ten outputs."""

    def recipes(self, preset: str) -> dict[str, NetworkRecipe]:
        """`paper` and `authors` have the published rows, `best` the recommended ones, `smoke` a few steps of these."""
        if preset == "paper":
            return {} if self.as_published is None else paper_recipes(self.as_published)
        if preset == "authors":
            return {} if self.as_published is None else authors_recipes(self.as_published)
        if preset == "smoke":
            return shortened(self.own_recipes(self.shortest), steps=4)
        return self.own_recipes(self.recommended) if preset == "best" else {}

    def own_recipes(self, setting: BestSetting) -> dict[str, NetworkRecipe]:
        """What this library recommends under a setting."""
        recipes = best_recipes(setting)
        return recipes | sharpened_recipes(recipes, (GPVI_BEST, ENSEMBLE))

    @property
    def published(self) -> dict[str, dict[str, Published]]:
        """The paper's table."""
        rows: dict[str, dict[str, Published]] = {}
        for label, (accuracy, auc, ece) in self.figures.items():
            rows[label] = {f"{CLEAN}/accuracy": Published(accuracy, math.nan)}
            rows[label] |= {f"{SPLIT}/auroc_variance": auc} if auc else {}
            rows[label] |= {f"{SPLIT}/ece": ece} if ece else {}
            reason = self.reasons.get(label, "")
            rows[label] = {row: f._replace(reason=reason) for row, f in rows[label].items()}
        return rows

    def problems(self, label: str, preset: str) -> Sequence[str]:
        """The cases of a row; rows that are compared with the literature also have its five splits."""
        every = (SPLIT, CLEAN)
        if preset == "smoke":
            every = (SPLIT,)
        elif preset == "best" and label in COMPARED:
            every = tuple(UNKNOWN)
        return tuple(case for case in every if case in self.cases)

    def measure(self, results: Results[NetworkRecipe]) -> None:
        """Train on each split, all seeds side by side, and score the test set."""
        recipe, seeds, images = results.recipe, results.seeds, self.images()
        network, held_out = self.network(images), None
        if recipe.sharpened:
            images, held_out = hold_out(images, HELD_OUT)
        problems = self.problems(results.label, results.preset)
        if not problems:
            raise InputError(f"{results.label} has none of the cases {', '.join(self.cases)}.")
        for case in problems:
            problem = task(images, UNKNOWN[case])
            key = jax.random.fold_in(jax.random.key(seeds[0]), list(UNKNOWN).index(case))
            meter = results.meter(self.cases[case])
            posteriors = trained(problem, network, recipe, len(seeds), key=key, progress=meter)
            for seed, parts in zip(seeds, posteriors, strict=True):
                results.follow(parts[0].training, case)
                own_key, exponent, chosen = jax.random.key(seed), 1.0, {}
                if held_out is not None:
                    choice = task(held_out, UNKNOWN[case])
                    exponent = best_exponent(parts, network, choice, recipe.draws, key=own_key)
                    chosen = {"sharpness": exponent}
                outcome = measured(
                    parts, network, problem, recipe.draws, key=own_key, exponent=exponent
                )
                seconds = {"seconds": parts[0].training.seconds}
                results.add(outcome.values | chosen | seconds, case)
                if seed == seeds[0]:
                    results.arrays |= {f"{case}/{k}": v for k, v in outcome.arrays.items()}
