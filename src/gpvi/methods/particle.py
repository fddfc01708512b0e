"""Particle methods: a direction φ, and either a fixed set of particles or a generator that follows it.

SVGD, GFSD, GFSF and KSD move a set of particles along φ (Eq. 12). Their amortised versions pull the same φ back through
a generator (Eq. 14). All eight share one step.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from gpvi._compute.outer_products import norm
from gpvi.directions import (
    Direction,
    GFSDDirection,
    GFSFDirection,
    KSDDirection,
    Points,
    SVGDDirection,
)
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import Generator, Mixture, Triangular
from gpvi.kernels import Kernel, as_kernel
from gpvi.methods.base import About, Info, Learner, Method, State, built, require_batches
from gpvi.methods.carriers import Particles, Sampler
from gpvi.methods.pullback import push
from gpvi.specs import require_count, require_instance, require_positive, spec
from gpvi.targets.density import Density, evaluate


@spec
class Annealing:
    """A weight γ(t) of the score in step t, so that particles can spread before the posterior pulls them in.

    γ(t) = (c(t) / (T/C))^p with c(t) = t mod (T/C) for t < T, and 1 from then on (D'Angelo & Fortuin 2021). One cycle
    of power 1 is a linear ramp; several cycles let the particles spread again in between.

    Parameters
    ----------
    steps
        T, the number of annealed steps.
    cycles
        C, the number of rises from 0 to 1.
    power
        p.

    Examples
    --------
    >>> method = gpvi.SVGD(annealing=gpvi.Annealing(steps=2500))
    >>> [float(gpvi.Annealing(4)(jnp.asarray(t))) for t in (0, 2, 4)]
    [0.0, 0.5, 1.0]
    """

    steps: int
    cycles: int = 1
    power: float = 1.0

    def __post_init__(self):
        require_count("steps of the annealing", self.steps, "Half of the training is usual.")
        require_count("cycles of the annealing", self.cycles, "1 is a single rise.")
        if 2 * self.cycles > self.steps:
            raise InputError(
                f"{self.cycles} annealing cycles in {self.steps} steps leave no steps for γ to rise, so the posterior "
                "would have no weight. Use fewer cycles or more steps."
            )
        require_positive("power of the annealing", self.power, "1.0 rises evenly.")

    def __call__(self, taken: Int[Array, ""]) -> Float[Array, ""]:
        """Return γ after `taken` steps."""
        period = self.steps / self.cycles
        return jnp.where(taken < self.steps, (jnp.mod(taken, period) / period) ** self.power, 1.0)


class Progress(NamedTuple):
    """What the direction has learned, and the number of steps taken."""

    direction: PyTree
    taken: Int[Array, ""]


class Transport(Method):
    """The step that all particle methods share: draw, score, find φ, pull it back to the parameters, update."""

    particles: int
    learning_rate: float
    annealing: Annealing | None
    headline: ClassVar[str] = "direction"

    def __post_init__(self):
        require_count("particles", self.particles, "100 is the paper's choice.")
        require_positive(
            "learning_rate", self.learning_rate, "Try 0.05 for particles, 3e-3 for networks."
        )
        if self.annealing is not None:
            require_instance("annealing", self.annealing, Annealing)
        self.direction()

    def gradients(self, history: Mapping[str, np.ndarray], dim: int) -> int:
        """Return the number of particles of all steps."""
        sets = 2 if self.separate_expectation else 1
        return sets * self.particles * history["gradient_norm"].shape[-1]

    @property
    @abstractmethod
    def separate_expectation(self) -> bool:
        """Whether the particles x′ of the expectation are drawn independently of those that φ moves."""

    @abstractmethod
    def direction(self) -> Direction:
        """Return the direction φ."""

    @abstractmethod
    def carrier(self, target: Density, *, key: PRNGKeyArray) -> Particles | Sampler:
        """Make the particles, or the generator, that training starts from."""

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Make the particles or the generator, and what the direction learns."""
        carrier_key, direction_key = jax.random.split(key)
        carrier = self.carrier(target, key=carrier_key)
        auxiliary = self.direction().init(target.dim, key=direction_key, dtype=target.dtype)
        progress = Progress(auxiliary, jnp.zeros((), jnp.int32))
        return State(Learner.start(carrier, optimizer, target.dtype), progress)

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Draw, score, find φ, pull it back, update."""
        carrier, (learned, taken) = state.learner.model, state.auxiliary
        noise_key, prime_key, direction_key = jax.random.split(key, 3)
        x, pull = push(carrier, carrier.noise(self.particles, key=noise_key))
        at = evaluate(target, x, batch)
        x_prime, prime = x, at
        if self.separate_expectation:
            x_prime = carrier.particles(carrier.noise(self.particles, key=prime_key))
            prime = evaluate(target, x_prime, batch)
        weight = 1.0 if self.annealing is None else self.annealing(taken).astype(x.dtype)
        direction, learned = self.direction()(
            learned,
            x_prime,
            weight * prime.score,
            key=direction_key,
            at=Points(x, weight * at.score),
        )
        share = 1.0 if isinstance(carrier, Particles) else 1 / len(x)
        gradient = pull.products(share * direction)
        info = {
            "log_density": at.mean(at.log_density),
            "direction": jnp.sqrt((direction**2).sum(1).mean()),
            "gradient_norm": norm(gradient),
            "rejected": at.rejected,
        }
        progress = Progress(learned, taken + 1)
        return State(state.learner.descend(optimizer, gradient), progress), info


@dataclass(frozen=True)
class ParticleMethod(Transport):
    """A method that moves a fixed set of particles along a direction. There are no new draws, and no density.

    Subclass it, define `direction`, and decorate the subclass with `gpvi.specs.spec`.

    Parameters
    ----------
    particles
        Number of particles.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training; none by default.

    Examples
    --------
    >>> isinstance(gpvi.SVGD(), gpvi.methods.ParticleMethod)
    True
    """

    particles: int = 100
    learning_rate: float = 0.05
    annealing: Annealing | None = None

    generative: ClassVar[bool] = False
    density: ClassVar[bool] = False

    @property
    def fixed_draws(self) -> int:
        """The number of particles."""
        return self.particles

    @property
    def separate_expectation(self) -> bool:
        """False: there is only one set of particles."""
        return False

    def carrier(self, target: Density, *, key: PRNGKeyArray) -> Particles:
        """Make particles at the target's starting points: its own, or N(0, I) in whitened coordinates."""
        return Particles(target.starting_points(self.particles, key=key))


@dataclass(frozen=True)
class AmortizedMethod(Transport):
    """A method that pulls a direction back through a generator.

    It can make any number of new draws, and has a density if the generator is injective.
    Subclass it, define `direction`, and decorate the subclass with `gpvi.specs.spec`.

    Parameters
    ----------
    generator
        The generator.
    particles
        Number of draws per step.
    batches
        2 draws the particles x′ of the expectation independently of those where φ is pulled back; 1 uses one set for
        both.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training; none by default.

    Examples
    --------
    >>> isinstance(gpvi.AmortizedSVGD(), gpvi.methods.AmortizedMethod)
    True
    """

    generator: Generator = Triangular()
    particles: int = 100
    batches: int = 2
    learning_rate: float = 3e-3
    annealing: Annealing | None = None

    def __post_init__(self):
        super().__post_init__()
        require_instance("generator", self.generator, Generator)
        if isinstance(self.generator, Mixture):
            raise NotAvailableError(
                f"generator is {self.generator}, and a direction is pulled back through one map. Use gpvi.GPVI for a "
                "mixture."
            )
        require_batches(self.batches)

    @property
    def separate_expectation(self) -> bool:
        """Whether there are two batches."""
        return self.batches == 2

    def carrier(self, target: Density, *, key: PRNGKeyArray) -> Sampler:
        """Build the generator."""
        return Sampler(built(self.generator, target.dim, target.dtype, key=key))


@dataclass(frozen=True)
class _SVGD:
    kernel: Kernel | str = "rbf"

    def direction(self) -> SVGDDirection:
        """Return φ of Eq. 13."""
        return SVGDDirection(as_kernel(self.kernel))


@dataclass(frozen=True)
class _GFSD:
    kernel: Kernel | str = "rbf"

    def direction(self) -> GFSDDirection:
        """Return φ by a smoothed density."""
        return GFSDDirection(as_kernel(self.kernel))


@dataclass(frozen=True)
class _GFSF:
    kernel: Kernel | str = "rbf"
    ridge: float = 1e-2

    def direction(self) -> GFSFDirection:
        """Return φ by smoothed test functions."""
        return GFSFDirection(as_kernel(self.kernel), self.ridge)


@dataclass(frozen=True)
class _KSD:
    critic: KSDDirection = KSDDirection()

    def direction(self) -> KSDDirection:
        """Return the learned critic."""
        require_instance("critic", self.critic, KSDDirection)
        return self.critic


@spec
class SVGD(_SVGD, ParticleMethod):
    """Stein variational gradient descent (Liu & Wang 2016).

    Parameters
    ----------
    particles
        Number of particles.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.SVGD(particles=20)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "a few draws that repel each other; loses variance as d grows",
        "n G + n² d",
        "Liu & Wang 2016",
    )


@spec
class GFSD(_GFSD, ParticleMethod):
    """Gradient flow with smoothed density (Liu et al. 2019).

    Parameters
    ----------
    particles
        Number of particles.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.GFSD(particles=20)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "SVGD with an explicit density estimate; few dimensions",
        "n G + n² d",
        "Liu et al. 2019",
    )


@spec
class GFSF(_GFSF, ParticleMethod):
    """Gradient flow with smoothed test functions (Liu et al. 2019).

    Parameters
    ----------
    particles
        Number of particles.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.
    ridge
        ε of the regression.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.GFSF(particles=20)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "score estimates by kernel regression; sensitive to bandwidth and ridge",
        "n G + n² d + n³",
        "Liu et al. 2019",
    )


@spec
class KSD(_KSD, ParticleMethod):
    """The Fisher neural sampler's critic moving particles (Hu et al. 2018).

    Parameters
    ----------
    particles
        Number of particles.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    critic
        The critic and how it is trained.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.KSD(particles=20)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "particles moved by a learned critic",
        "n (G + critic)",
        "Hu et al. 2018",
    )


@spec
class AmortizedSVGD(_SVGD, AmortizedMethod):
    """SVGD pulled back through a generator (Wang & Liu 2016; Eq. 14).

    Parameters
    ----------
    generator
        The generator; injective splines by default.
    particles
        Number of draws per step.
    batches
        2 draws the particles of the expectation independently of those where φ is pulled back; 1 uses one set for both.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.AmortizedSVGD(gpvi.generators.Linear())
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "SVGD with a generator: unlimited new draws",
        "n (G + generator) + n² d",
        "Wang & Liu 2016",
    )


@spec
class AmortizedGFSD(_GFSD, AmortizedMethod):
    """GFSD pulled back through a generator.

    Parameters
    ----------
    generator
        The generator; injective splines by default.
    particles
        Number of draws per step.
    batches
        2 draws the particles of the expectation independently of those where φ is pulled back; 1 uses one set for both.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.AmortizedGFSD(gpvi.generators.Linear())
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "GFSD with a generator",
        "n (G + generator) + n² d",
        "Liu et al. 2019; Ratzlaff et al. 2021",
    )


@spec
class AmortizedGFSF(_GFSF, AmortizedMethod):
    """GFSF pulled back through a generator; its estimate uses a single set of particles.

    Parameters
    ----------
    generator
        The generator; injective splines by default.
    particles
        Number of draws per step.
    batches
        1: a second set of draws has no use here.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    kernel
        "rbf", "imq" or a `gpvi.kernels.Kernel`.
    ridge
        ε of the regression.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.AmortizedGFSF(gpvi.generators.Linear())
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "GFSF with a generator",
        "n (G + generator) + n² d + n³",
        "Liu et al. 2019; Ratzlaff et al. 2021",
    )

    batches: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.batches != 1:
            raise NotAvailableError(
                f"batches is {self.batches}, but GFSF estimates ∇ log q on the particles that it moves and cannot use "
                "a second set. Omit it."
            )


@spec
class AmortizedKSD(_KSD, AmortizedMethod):
    """The Fisher neural sampler (Hu et al. 2018).

    Parameters
    ----------
    generator
        The generator; injective splines by default.
    particles
        Number of draws per step.
    batches
        2 draws the particles of the expectation independently of those where φ is pulled back; 1 uses one set for both.
    learning_rate
        Of the default optimiser, before decay.
    annealing
        A weight of the score that rises during training (`Annealing`); none by default.
    critic
        The critic and how it is trained.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.AmortizedKSD(gpvi.generators.Linear())
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "the Fisher neural sampler",
        "n (G + generator + critic)",
        "Hu et al. 2018",
    )
