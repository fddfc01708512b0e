"""The rows of the image sets: as the paper published them, and as this library recommends them."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import optax

import gpvi
from gpvi import bnn, specs
from gpvi.bnn import FanIn, Prior, StandardNormal
from gpvi.directions import KSDDirection
from gpvi.generators import Residual
from gpvi.methods import Method
from gpvi.solvers import Helper, LeastSquares
from gpvi_paper.experiments.base import Recipe

PARTICLES = 10
DRAWS = 100
"""Networks that predictions average over, if a method can draw any number."""
GPVI_BEST, ONE_GENERATOR = "GPVI (pathwise)", "GPVI (pathwise, one generator)"
HELPER, EXACT = "GPVI (functional, helper)", "GPVI (functional, exact Jacobian)"
SURFACE = "GPVI (functional, least squares)"
ENSEMBLE, SOFTMAX = "Deep ensemble", "Softmax"
COMPARED = (GPVI_BEST, ENSEMBLE, SOFTMAX)
"""Rows that also have the five splits of the literature."""


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
    """Number of networks for predictions, of all generators together; None for all particles."""
    weight_decay: float = 0.0
    """Added to the gradient before Adam, as PyTorch's Adam does."""

    def optimizer(self) -> optax.GradientTransformation | None:
        """Adam with weight decay, if there is any."""
        plain = super().optimizer()
        if plain is None or not self.weight_decay:
            return plain
        return optax.chain(optax.add_decayed_weights(self.weight_decay), plain)

    def temperature(self, data: int) -> float:
        """The temperature for this number of data."""
        if self.entropy_weight is None:
            return self.posterior_temperature
        return self.entropy_weight * PARTICLES * data

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen; newer options are listed only if used, so that older records still match."""
        later = {
            "mirrored": (self.mirrored, False),
            "sharpened": (self.sharpened, False),
            "posterior_temperature": (self.posterior_temperature, 1.0),
            "weight_decay": (self.weight_decay, 0.0),
        }
        return super().to_json() | {
            "epochs": self.epochs,
            "prior": specs.to_json(self.prior),
            "entropy_weight": self.entropy_weight,
            "generators": self.generators,
            "draws": self.draws,
            **{name: value for name, (value, usual) in later.items() if value != usual},
        }


@dataclasses.dataclass(frozen=True)
class PaperSetting:
    """What the appendix prints for one of the image sets."""

    epochs: int
    batch_size: int
    latent: int
    hidden: tuple[int, ...]
    learning_rate: float
    entropy_weight: float
    """The authors' weight for generators; their particle methods have 1."""
    authors_hidden: tuple[int, ...]
    """The layers of g in the authors' code."""
    generator_decay: float
    """The weight decay of generators in the authors' configuration."""
    scale: float = 0.01
    """λ under `paper`: with the printed 1 no weight would be known better than ±1."""


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
    functional = {**shared, "gradient": "functional", "kernel": "full"}
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


WITHOUT_TERM = 1e-6
"""λ of a generator without the term λz, as the authors' are: noise that changes no prediction."""
AUTHORS_RATE, AUTHORS_DECAY, CRITIC_STEPS = 1e-3, 1e-4, 5
"""For particles, and for the critic of KSD."""


def authors_recipes(setting: PaperSetting) -> dict[str, NetworkRecipe]:
    """What the authors' code does for the methods they publish.

    Their GPVI has a d × k Jacobian, and a helper with d outputs learns some y with Jᵀy = ∇k; here it is the shortest,
    which is the one that descends on the KL.
    """
    n = PARTICLES
    generator = Residual(latent=setting.latent, hidden=setting.authors_hidden, scale=WITHOUT_TERM)
    critic = KSDDirection(
        hidden_width=512,
        hidden_layers=2,
        penalty=1.0,
        learning_rate=1e-4,
        critic_steps=CRITIC_STEPS,
    )
    shared: dict[str, Any] = {
        "generator": generator,
        "particles": n,
        "learning_rate": setting.learning_rate,
    }
    by_generator = {
        "Amortized SVGD": gpvi.AmortizedSVGD(**shared),
        "Amortized GFSF": gpvi.AmortizedGFSF(**shared),
        "Amortized KSD": gpvi.AmortizedKSD(**shared, critic=critic),
        SURFACE: gpvi.GPVI(**shared, gradient="functional", solver=LeastSquares()),
    }
    by_particles = {
        "SVGD": gpvi.SVGD(particles=n, learning_rate=AUTHORS_RATE),
        "GFSF": gpvi.GFSF(particles=n, learning_rate=AUTHORS_RATE),
        "KSD": gpvi.KSD(particles=n, learning_rate=AUTHORS_RATE, critic=critic),
        ENSEMBLE: gpvi.DeepEnsemble(n, AUTHORS_RATE),
    }

    def recipe(method: Method, weight: float, decay: float) -> NetworkRecipe:
        return NetworkRecipe(
            method,
            schedule="constant",
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            prior=StandardNormal(10.0),
            entropy_weight=weight,
            weight_decay=decay,
        )

    rows = {label: recipe(m, 1.0, AUTHORS_DECAY) for label, m in by_particles.items()}
    return rows | {
        label: recipe(method, setting.entropy_weight, setting.generator_decay)
        for label, method in by_generator.items()
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
