"""What a posterior draws from, in the target's own coordinates: a generator, a set of particles, or Markov chains.

Each answers for itself what it can give: new draws or a fixed set, densities or none, chains or not, and its diagnosis.
`approximation` is the only place that asks what a trained model is.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpvi.diagnostics import sampling
from gpvi.diagnostics.diagnosis import (
    Diagnosis,
    diagnose_chains,
    diagnose_generator,
    diagnose_particles,
    diagnose_population,
)
from gpvi.diagnostics.importance import draw_weighted
from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.errors import NotAvailableError
from gpvi.exploration.search import Exploration
from gpvi.generators import AbstractGenerator, Preconditioned
from gpvi.methods.carriers import Chains, Particles, Population
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target

Model = AbstractGenerator | Particles
"""What training leaves behind, in its own coordinates u."""
CHAINS = 4
"""Independent draws are exported as this many chains: ArviZ computes R̂ and ESS between chains."""


class ExportedDraws(NamedTuple):
    """Draws for other libraries: row i·c + j is draw i of chain j, of c chains."""

    x: Float[Array, "n d"]
    log_p: Float[Array, " n"]
    log_q: Float[Array, " n"] | None = None
    divergent: Bool[Array, " n"] | None = None
    chains: int = 1


class Approximation(ABC):
    """The draws of a posterior, whatever they come from; `name` is the method's, for messages."""

    name: str

    @property
    @abstractmethod
    def generator(self) -> Preconditioned:
        """The map from noise to the target's coordinates."""

    @property
    @abstractmethod
    def particles(self) -> Float[Array, "n d"]:
        """The fixed set of draws."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The number of draws in the fixed set; None if any number of new draws can be made."""

    @abstractmethod
    def sample(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """Return n draws."""

    @abstractmethod
    def summarised(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "m d"]:
        """Return the draws of a summary: all of a fixed set, or n new ones."""

    @abstractmethod
    def exported(self, target: Target, n: int, *, key: PRNGKeyArray) -> ExportedDraws:
        """Return at most n draws with what is known of each."""

    @abstractmethod
    def diagnose(
        self,
        density: Whitened,
        initial: InitialEvidence | None,
        exploration: Exploration | None,
        notes: tuple[str, ...],
        draws: int,
        *,
        key: PRNGKeyArray,
    ) -> Diagnosis:
        """Diagnose the draws."""

    def require_density(self, what: str) -> Preconditioned:
        """Return the generator, which has a density, for the method `what` of a posterior; else raise an error."""
        raise NotAvailableError(
            f"{what} needs the density of the draws, and {self.name} has none: its particles are a set of points. "
            "GPVI, the amortised methods and flows have one."
        )

    def by_chain(
        self, rows: Float[Array | np.ndarray, "m d"]
    ) -> Float[Array | np.ndarray, "c n d"] | None:
        """Return rows in the order of the draws with an axis for the chains; None if the draws form no chains."""
        return None


class FromGenerator(Approximation):
    """Any number of new draws, with densities."""

    def __init__(self, name: str, generator: Preconditioned):
        self.name, self._generator = name, generator

    @property
    def generator(self) -> Preconditioned:
        return self._generator

    @property
    def particles(self) -> Float[Array, "n d"]:
        raise NotAvailableError(
            f"{self.name} holds a generator, not particles: use sample(n, key=…)."
        )

    @property
    def size(self) -> None:
        return None

    def sample(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        return sampling.sample(self.generator, n, key)

    def summarised(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "m d"]:
        return self.sample(n, key=key)

    def exported(self, target: Target, n: int, *, key: PRNGKeyArray) -> ExportedDraws:
        drawn = draw_weighted(target, self.generator, -(-n // CHAINS) * CHAINS, key=key)
        return ExportedDraws(drawn.x, drawn.log_p, drawn.log_q, chains=CHAINS)

    def diagnose(self, density, initial, exploration, notes, draws, *, key) -> Diagnosis:
        return diagnose_generator(
            self.generator, density, initial, exploration, notes, draws, key=key
        )

    def require_density(self, what: str) -> Preconditioned:
        return self.generator


class FromParticles(Approximation):
    """A fixed set of draws, without densities."""

    def __init__(self, name: str, model: Particles, affine: Affine):
        self.name, self.model, self.affine = name, model, affine

    @property
    def generator(self) -> Preconditioned:
        raise NotAvailableError(
            f"{self.name} holds a fixed set of {self.size} draws and no generator. "
            "Use GPVI, or an amortised method such as AmortizedSVGD, for new draws."
        )

    @property
    def particles(self) -> Float[Array, "n d"]:
        return jax.vmap(self.affine)(self.model.drawn)

    @property
    def size(self) -> int:
        return len(self.model.drawn)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        if n > self.size:
            raise NotAvailableError(
                f"{self.name} holds {self.size} draws, so {n} draws are not available. Ask for at most "
                f"{self.size}, train with more, or use GPVI or AmortizedSVGD, which draw as many as you like."
            )
        return self.particles[jax.random.permutation(key, self.size)[:n]]

    def summarised(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "m d"]:
        return self.particles

    def exported(self, target: Target, n: int, *, key: PRNGKeyArray) -> ExportedDraws:
        x = self.particles[thinned(self.size, 1, n)]
        return ExportedDraws(x, sampling.log_densities(target, x))

    def diagnose(self, density, initial, exploration, notes, draws, *, key) -> Diagnosis:
        return diagnose_particles(self.model, density, exploration, notes, draws, key=key)


class FromPopulation(FromParticles):
    """The particles of several islands."""

    model: Population

    def diagnose(self, density, initial, exploration, notes, draws, *, key) -> Diagnosis:
        return diagnose_population(self.model, density, exploration, notes, draws, key=key)


class FromChains(FromParticles):
    """The draws of Markov chains."""

    model: Chains

    def exported(self, target: Target, n: int, *, key: PRNGKeyArray) -> ExportedDraws:
        rows = thinned(self.size, self.model.chains, n)
        x = self.particles[rows]
        return ExportedDraws(
            x,
            sampling.log_densities(target, x),
            divergent=self.model.divergent[rows],
            chains=self.model.chains,
        )

    def diagnose(self, density, initial, exploration, notes, draws, *, key) -> Diagnosis:
        return diagnose_chains(self.model, density, exploration, notes, draws, key=key)

    def by_chain(
        self, rows: Float[Array | np.ndarray, "m d"]
    ) -> Float[Array | np.ndarray, "c n d"] | None:
        return self.model.by_chain(rows)


def approximation(name: str, model: Model, affine: Affine) -> Approximation:
    """Return what a trained model is to a posterior; `affine` leads from its coordinates to the target's."""
    if isinstance(model, Chains):
        return FromChains(name, model, affine)
    if isinstance(model, Population):
        return FromPopulation(name, model, affine)
    if isinstance(model, Particles):
        return FromParticles(name, model, affine)
    return FromGenerator(name, Preconditioned(model, affine))


def thinned(rows: int, chains: int, most: int) -> np.ndarray:
    """Return the indices of at most `most` rows: complete draws of all chains, evenly spaced and in order."""
    draws = rows // chains
    kept = np.linspace(0, draws - 1, min(draws, max(1, most // chains))).round().astype(int)
    return (kept[:, None] * chains + np.arange(chains)).ravel()
