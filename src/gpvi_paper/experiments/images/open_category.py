r"""Open category (the paper's §4.5): train on some classes of images, and find the images of the others.

A posterior over networks is fitted to the known classes. For each test image it gives the mean prediction p̄ and scores
of its uncertainty: the variance of the networks' predictions, Σ_c Var_w[p_w(c)] (the paper's), the entropy of p̄, the
mutual information between class and network, and 1 − max p̄. AUROC is the probability that an image of an unknown class
scores higher than one of a known class. Accuracy, NLL and calibration are those of the known classes.

A posterior may be a mixture of several generators, each started at its own draw of the network's initialisation and
trained on its own bound. KL is convex, KL(1/M Σ_m q_m ‖ p) ≤ 1/M Σ_m KL(q_m ‖ p), so the mean of their bounds is a
bound for the mixture; if the parts do not overlap, as in thousands of dimensions, it is log M nats too low.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

import gpvi
from gpvi import bnn, metrics, specs
from gpvi.bnn import Categorical, FanIn, Network, Prediction, Predictive, Prior, StandardNormal
from gpvi.directions import KSDDirection
from gpvi.generators import Residual
from gpvi.methods import Method
from gpvi.methods.carriers import Particles
from gpvi.progress import Meter
from gpvi.solvers import Helper
from gpvi_paper.data.images import Images
from gpvi_paper.experiments.base import (
    SECONDS,
    Experiment,
    Metric,
    Published,
    Recipe,
    Results,
    Table,
    grouped,
    higher,
    lower,
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
"""The last tenth of the training set, on which hyper-parameters may be chosen."""
PARTICLES = 10
DRAWS = 100
"""Networks that predictions average over, if a method can draw any number."""
SCORES = ("variance", "entropy", "mutual_information", "confidence")
HISTOGRAM = np.linspace(-8.0, 0.5, 35)
"""The edges of the bins of log₁₀ of a score."""


@dataclasses.dataclass(frozen=True)
class NetworkRecipe(Recipe):
    """A recipe for networks on mini-batches, `epochs` long.

    `entropy_weight` w is the authors' factor on the entropy term beside a loss that is a mean over data: the
    temperature is N times w times the number of particles over which they average. None leaves it to
    `posterior_temperature`.
    """

    epochs: int = 100
    prior: Prior = FanIn()
    entropy_weight: float | None = None
    posterior_temperature: float = 1.0
    """1 is the posterior itself."""
    mirrored: bool = False
    """Whether to train on mirror images of the training images as well."""
    sharpened: bool = False
    """Whether the last tenth of the training images is held out to sharpen the mean prediction."""
    generators: int = 1
    """How many are mixed."""
    draws: int | None = DRAWS
    """Networks for predictions, of all generators together; None for all that a particle method has."""

    def temperature(self, data: int) -> float:
        """T for this number of data."""
        if self.entropy_weight is None:
            return self.posterior_temperature
        return self.entropy_weight * PARTICLES * data

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen; newer options are listed only if used, so that older records still match."""
        later = {
            "mirrored": (self.mirrored, False),
            "sharpened": (self.sharpened, False),
            "posterior_temperature": (self.posterior_temperature, 1.0),
        }
        return super().to_json() | {
            "epochs": self.epochs,
            "prior": specs.to_json(self.prior),
            "entropy_weight": self.entropy_weight,
            "generators": self.generators,
            "draws": self.draws,
            **{name: value for name, (value, usual) in later.items() if value != usual},
        }


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
    """Mean and deviation of each channel, from counts of the 256 values."""
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
    """The generators (or particles) of each seed, all trained side by side."""
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


class OpenCategory(Experiment[NetworkRecipe]):
    """What the image sets have in common."""

    figures: Mapping[str, tuple[float, Published | None, Published | None]]
    """Label → the paper's clean accuracy, AUC and ECE."""
    reasons: Mapping[str, str] = MappingProxyType({})
    """Label → why our figures under `paper` differ."""
    as_published: "PaperSetting | None" = None
    recommended: "BestSetting"
    shortest: "BestSetting"
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
            ("auroc_variance", "auroc_entropy", "auroc_mutual_information", "auroc_confidence"),
            "The probability that an image of an unknown class scores higher than one of a known class. One network "
            "has no variance to use.",
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
        """As published, as recommended and some of these sharpened, or a few steps."""
        if preset == "paper":
            return {} if self.as_published is None else paper_recipes(self.as_published)
        if preset == "smoke":
            return shortened(self.own_recipes(self.shortest), steps=4)
        return self.own_recipes(self.recommended) if preset == "best" else {}

    def own_recipes(self, setting: "BestSetting") -> dict[str, NetworkRecipe]:
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
        if preset == "smoke":
            return (SPLIT,)
        return tuple(UNKNOWN) if preset == "best" and label in COMPARED else (SPLIT, CLEAN)

    def measure(self, results: Results[NetworkRecipe]) -> None:
        """Train on each split, all seeds side by side, and score the test set."""
        recipe, seeds, images = results.recipe, results.seeds, self.images()
        network, held_out = self.network(images), None
        if recipe.sharpened:
            images, held_out = hold_out(images, HELD_OUT)
        for case in self.problems(results.label, results.preset):
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


GPVI_BEST, ONE_GENERATOR = "GPVI (pathwise)", "GPVI (pathwise, one generator)"
HELPER, EXACT = "GPVI (functional, helper)", "GPVI (functional, exact Jacobian)"
ENSEMBLE, SOFTMAX = "Deep ensemble", "Softmax"
COMPARED = (GPVI_BEST, ENSEMBLE, SOFTMAX)


@dataclasses.dataclass(frozen=True)
class PaperSetting:
    """What the appendix prints for one of the image sets."""

    epochs: int
    batch_size: int
    latent: int
    hidden: tuple[int, ...]
    learning_rate: float
    entropy_weight: float
    """Of the generators; the authors' particle methods have 1."""
    scale: float
    """λ. The authors' image experiments leave the term λz out, which makes f a map from R^k without an inverse; a small
    fixed λ comes nearest to it."""


def paper_recipes(setting: PaperSetting) -> dict[str, NetworkRecipe]:
    """The rows of the paper's table, the exact Jacobian beside the helper, and one network."""
    rate, n = setting.learning_rate, PARTICLES
    generator = Residual(latent=setting.latent, hidden=setting.hidden, scale=setting.scale)
    critic = KSDDirection(hidden_width=512, hidden_layers=2, penalty=1.0, learning_rate=1e-4)
    helper = Helper(width=512, learning_rate=1e-4)
    flat = StandardNormal(10.0)
    blundell = bnn.ScaleMixture(share=0.5, wide=1.0, narrow=float(np.exp(-6)))

    def recipe(method: Method, weight: float | None, prior: Prior = flat) -> NetworkRecipe:
        return NetworkRecipe(
            method,
            schedule="constant",
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            prior=prior,
            entropy_weight=weight,
            draws=PARTICLES,
        )

    shared: dict[str, Any] = {"generator": generator, "particles": n, "learning_rate": rate}
    functional = {**shared, "gradient": "functional"}
    by_generator = {
        "Amortized SVGD": gpvi.AmortizedSVGD(**shared),
        "Amortized GFSF": gpvi.AmortizedGFSF(**shared),
        "Amortized KSD": gpvi.AmortizedKSD(**shared, critic=critic),
        HELPER: gpvi.GPVI(**functional, solver=helper),
        EXACT: gpvi.GPVI(**functional, solver="block"),
    }
    by_particles = {
        "SVGD": gpvi.SVGD(particles=n, learning_rate=rate),
        "GFSF": gpvi.GFSF(particles=n, learning_rate=rate),
        "KSD": gpvi.KSD(particles=n, learning_rate=rate, critic=critic),
        ENSEMBLE: gpvi.DeepEnsemble(n, rate),
        SOFTMAX: gpvi.DeepEnsemble(1, rate),
    }
    mean_field = gpvi.MeanFieldVI(particles=n, learning_rate=rate, gradient="pathwise")
    return {
        **{label: recipe(method, 1.0) for label, method in by_particles.items()},
        **{label: recipe(m, setting.entropy_weight) for label, m in by_generator.items()},
        "MF-VI": recipe(mean_field, None, blundell),
    }


BEHIND = 5
"""Factor by which a generator that follows a critic learns slower: with a lagging critic it diverges."""


@dataclasses.dataclass(frozen=True)
class BestSetting:
    """What this library recommends for a network of `dim` weights, under a budget of members × epochs."""

    dim: int
    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    generator_rate: float = 1e-3
    members: int = PARTICLES
    generators: int = 5
    latent: int = 64
    hidden: tuple[int, ...] = (128, 128)
    rank: int | None = 16
    scale: float = 0.01
    gain: float = 0.05
    prior: Prior = FanIn(gain=2**0.5)
    point_prior: Prior = FanIn(gain=2**0.5)
    """Prior of methods that only maximise log p, chosen separately: the mode under a prior that suits averaging is
    too smooth."""
    draws: int = DRAWS


def best_recipes(setting: BestSetting) -> dict[str, NetworkRecipe]:
    """Every method on the posterior itself, each step with as many networks as the ensemble has members."""
    n, rate = setting.members, setting.learning_rate
    critic = KSDDirection(hidden_width=512, hidden_layers=2, penalty=1.0, learning_rate=1e-4)
    generator = dataclasses.replace(
        bnn.generator(
            setting.dim,
            latent=setting.latent,
            hidden=setting.hidden,
            rank=setting.rank,
            scale=setting.scale,
            scale_form="constant",
        ),
        gain=setting.gain,
    )

    def recipe(method: Method, generators: int = 1) -> NetworkRecipe:
        point = isinstance(method, gpvi.DeepEnsemble)
        return NetworkRecipe(
            method,
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            prior=setting.point_prior if point else setting.prior,
            generators=generators,
            draws=setting.draws,
        )

    def mixture(generators: int, **options: Any) -> NetworkRecipe:
        method = gpvi.GPVI(
            generator=generator,
            particles=n // generators,
            learning_rate=setting.generator_rate,
            **options,
        )
        return recipe(method, generators)

    amortized: dict[str, Any] = {
        "generator": generator,
        "particles": n,
        "learning_rate": setting.generator_rate,
    }
    behind: dict[str, Any] = amortized | {
        "learning_rate": setting.generator_rate / BEHIND,
        "critic": dataclasses.replace(critic, learning_rate=1e-3),
    }
    return {
        "SVGD": recipe(gpvi.SVGD(particles=n, learning_rate=rate)),
        "GFSF": recipe(gpvi.GFSF(particles=n, learning_rate=rate)),
        "KSD": recipe(gpvi.KSD(particles=n, learning_rate=rate, critic=critic)),
        "Amortized SVGD": recipe(gpvi.AmortizedSVGD(**amortized)),
        "Amortized GFSF": recipe(gpvi.AmortizedGFSF(**amortized)),
        "Amortized KSD": recipe(gpvi.AmortizedKSD(**behind)),
        EXACT: mixture(1, gradient="functional", solver="block"),
        GPVI_BEST: mixture(setting.generators),
        ONE_GENERATOR: mixture(1),
        "MF-VI": recipe(gpvi.MeanFieldVI(particles=n, learning_rate=rate)),
        ENSEMBLE: recipe(gpvi.DeepEnsemble(n, rate)),
        SOFTMAX: recipe(gpvi.DeepEnsemble(1, rate)),
    }


def sharpened_recipes(
    recipes: Mapping[str, NetworkRecipe], labels: Iterable[str]
) -> dict[str, NetworkRecipe]:
    """These rows again, with a tenth of their training images held out for sharpening."""
    return {
        f"{label}, sharpened": dataclasses.replace(recipes[label], sharpened=True)
        for label in labels
    }


def colder(recipe: NetworkRecipe, temperature: float) -> NetworkRecipe:
    """The same row on p^{1/T}."""
    return dataclasses.replace(recipe, posterior_temperature=temperature)


def shortened(recipes: Mapping[str, NetworkRecipe], steps: int) -> dict[str, NetworkRecipe]:
    """The same methods for a few steps and draws."""
    return {
        label: dataclasses.replace(recipe, steps=steps, draws=4)
        for label, recipe in recipes.items()
    }
