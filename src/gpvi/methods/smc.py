r"""Tempered sequential Monte Carlo as a method: particles from far out to the posterior, on independent islands.

A step is one temperature of every island (`gpvi.exploration.tempering.advance`); an island that has arrived rests.
Averages weigh each island by its estimate of Z.
"""

from typing import ClassVar

import jax
import optax
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from gpvi.exploration.search import halves, pilot, wide_scale
from gpvi.exploration.tempering import Islands, advance, begin
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.methods.carriers import Population
from gpvi.specs import require_between, require_count, spec
from gpvi.targets.density import Density


@spec
class SMC(Method):
    """Adaptive tempered sequential Monte Carlo on independent islands (Del Moral, Doucet & Jasra 2006).

    It weighs modes that are far apart, and estimates log Z with a standard error. Narrow necks, as hierarchies have
    them, are not its strength: its particles do not follow into them.

    Parameters
    ----------
    islands
        Independent populations, whose spread is the standard error. Half of them begin four times as far out.
    particles
        Particles of each island.
    kept_share
        The effective share of the particles' weights that each temperature keeps: near 1 there are many temperatures.
    temperatures
        The largest number of temperatures; steps after the last island has arrived cost nothing.

    Examples
    --------
    >>> target = gpvi.Target(
    ...     lambda x: jnp.logaddexp(-0.5 * (x[0] - 9) ** 2, -0.5 * (x[0] + 9) ** 2), dim=1
    ... )
    >>> posterior = gpvi.fit(target, gpvi.SMC(particles=64), key=key, progress=False)
    >>> posterior.particles.shape
    (512, 1)
    """

    islands: int = 8
    particles: int = 2_048
    kept_share: float = 0.95
    temperatures: int = 500

    generative: ClassVar[bool] = False
    density: ClassVar[bool] = False
    headline: ClassVar[str] = "temperature"
    full_data: ClassVar[bool] = True
    about: ClassVar[About] = About(
        "several modes far apart, and log Z with a standard error; full data only",
        "islands · particles · 8 G to a temperature",
        "Del Moral, Doucet & Jasra 2006",
    )

    def __post_init__(self):
        require_count(
            "islands", self.islands, "8 are usual; the standard error needs 2 or more.", least=2
        )
        require_count("particles", self.particles, "2,048 of each island are usual.", least=2)
        require_between("kept_share", self.kept_share, 0, 1)
        require_count("temperatures", self.temperatures, "500 are usual.")

    @property
    def fixed_draws(self) -> int:
        """islands · particles."""
        return self.islands * self.particles

    def default_steps(self) -> int:
        """Return the largest number of temperatures."""
        return self.temperatures

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Return the identity, since the particles are moved by Hamiltonian Monte Carlo."""
        return optax.identity()

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Draw the particles as far out as log p itself suggests."""
        scale_key, key = jax.random.split(key)
        narrow, _ = wide_scale(target, key=scale_key)
        return self._begun(target, optimizer, narrow, key)

    def from_afar(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Return a first state whose particles begin as far out as a pilot run, on the host, finds necessary."""
        pilot_key, key = jax.random.split(key)
        return self._begun(target, optimizer, pilot(target, key=pilot_key).scale, key)

    def _begun(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        narrow: float | Scalar,
        key: PRNGKeyArray,
    ) -> State:
        islands = begin(target, halves(self.islands, narrow), self.particles, key=key)
        return State(Learner.start(_population(islands), optimizer, target.dtype), islands)

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Bring every island to its next temperature."""
        islands = advance(target, state.auxiliary, self.kept_share, key=key)
        learner = state.learner._replace(model=_population(islands))
        info = {
            "temperature": islands.temperature.min(),
            "log_evidence": islands.log_evidence.mean(),
            "acceptance": islands.acceptance.mean(),
            "gradients": islands.gradients.sum(),
        }
        return State(learner, islands), info


def _population(islands: Islands) -> Population:
    return Population(
        islands.points.reshape(-1, islands.points.shape[-1]),
        islands.log_evidence,
        islands.temperature,
    )
