"""What `fit` returns: draws, densities, a diagnosis, and a directory that holds it all."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from gpvi import specs
from gpvi._inputs import precision
from gpvi.diagnostics import diagnosis, drawing
from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.diagnostics.importance import effective_share, smoothed_log_weights
from gpvi.diagnostics.verdict import RELIABLE_K_HAT
from gpvi.errors import InputError, NotAvailableError, ReliabilityWarning, warn
from gpvi.generators import AbstractGenerator, Preconditioned
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.methods.carriers import Chains, Particles, Sampler
from gpvi.methods.particle import AmortizedMethod
from gpvi.posterior import arviz as export
from gpvi.posterior import saving
from gpvi.posterior.history import Training
from gpvi.posterior.summary import Summary, summarise
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target

Count = int | np.integer
DRAWS, ENTRIES = 4_000, 2**26
"""Default number of draws of a diagnosis, and the limit on draws × dimension."""
LEAST_DRAWS = 100


class Posterior:
    """A trained posterior; `gpvi.fit` and `gpvi.load` make it.

    Attributes
    ----------
    method, dim, names: what was trained, on how many coordinates, called what.
    affine: the coordinates x = location + L u in which the model was trained.
    training: how it went.
    target: the target, if it is known; a loaded posterior has none (see `with_target`).
    auxiliary: what a solver, critic or sampler had learned, for training to go on from.
    """

    def __init__(
        self,
        method: Method,
        model: AbstractGenerator | Particles,
        affine: Affine,
        names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        training: Training,
        target: Target | None = None,
        auxiliary: PyTree = None,
    ):
        self.method = method
        self.model = model
        self.affine = affine
        self._names = names
        self.training = training
        self.target = target
        self.auxiliary = auxiliary
        self.dim = affine.location.shape[0]
        self.dtype = np.dtype(affine.location.dtype)

    @classmethod
    def from_training(
        cls, method: Method, target: Target, affine: Affine, state: State, training: Training
    ) -> "Posterior":
        """The posterior that a finished state holds."""
        model = state.learner.model
        model = model.generator if isinstance(model, Sampler) else model
        return cls(method, model, affine, lambda: target.names, training, target, state.auxiliary)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds, as copies for other processes are made: all but what may hold functions.

        These are the target, and what a solver or critic had learned, which a saved posterior keeps.
        """
        return self.__dict__ | {"_names": self.names, "target": None, "auxiliary": None}

    @property
    def names(self) -> tuple[str, ...]:
        """One for each coordinate; of a target, made when they are asked for."""
        return self._names() if callable(self._names) else self._names

    def __repr__(self) -> str:
        done, planned = self.training.steps, self.training.planned
        return f"<Posterior of {self.method} in {self.dim} dimensions, {done} of {planned} steps>"

    @property
    def generator(self) -> Preconditioned:
        """f_θ from noise to the target's own coordinates."""
        if isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{self._name} holds a fixed set of {len(self.model.drawn)} draws and no generator. "
                "Use GPVI, or an amortised method such as AmortizedSVGD, for new draws."
            )
        return Preconditioned(self.model, self.affine)

    @property
    def particles(self) -> Float[Array, "n d"]:
        """The particles of a particle method, in the target's own coordinates."""
        if not isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{self._name} holds a generator, not particles: use sample(n, key=…)."
            )
        with self._precision():
            return jax.vmap(self.affine)(self.model.drawn)

    def carrier(self) -> AbstractGenerator | Sampler | Particles:
        """The model as a method's `step` holds it."""
        return Sampler(self.model) if isinstance(self.method, AmortizedMethod) else self.model  # pyright: ignore[reportArgumentType]

    def with_target(self, target: Target) -> "Posterior":
        """The same posterior with the target it approximates, so that it can be diagnosed."""
        if target.dim != self.dim:
            raise InputError(f"the target has dim={target.dim}, the posterior {self.dim}.")
        if target.dtype != self.dtype:
            raise InputError(
                f"the target is in {target.dtype}, the posterior {self.dtype}: "
                f"pass Target(…, dtype={self.dtype.name!r})."
            )
        named = target.naming is not None and self.dim <= saving.LISTED
        if named and target.names != self.names:
            raise InputError(
                f"the target names its coordinates {_first(target.names)}, the posterior {_first(self.names)}: give "
                "the target that was fitted, with its coordinates in the same order."
            )
        return Posterior(
            self.method, self.model, self.affine, self._names, self.training, target, self.auxiliary
        )

    def sample(self, n: Count, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """n draws: new ones from a generator; a random subset from a set of particles."""
        n = self._count(n, key)
        with self._precision():
            if not isinstance(self.model, Particles):
                return drawing.draw(self.generator, n, key)
            particles = self.particles
            if n > len(particles):
                raise NotAvailableError(
                    f"{self._name} holds {len(particles)} draws, so {n} draws are not available. Ask for at most "
                    f"{len(particles)}, train with more, or use GPVI or AmortizedSVGD, which draw as many as you like."
                )
            return particles[jax.random.permutation(key, len(particles))[:n]]

    def sample_and_log_prob(
        self, n: Count, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """n new draws and log q of each (Eq. 1); the draws are those of `sample` with the same key."""
        n = self._count(n, key)
        self._require_density("sample_and_log_prob")
        with self._precision():
            x, log_q, _ = drawing.draw_with_density(self.generator, n, key)
            return x, log_q

    def log_prob(self, x: ArrayLike) -> Float[Array, "*n"]:
        """log q at given points, where the generator inverts exactly."""
        self._require_density("log_prob")
        with self._precision():
            x = jnp.asarray(x, self.dtype)
            if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
                raise InputError(
                    f"x has shape {x.shape}; pass (n, {self.dim}) points, or one of ({self.dim},)."
                )
            values = drawing.log_prob(self.generator, jnp.atleast_2d(x))
            return values if x.ndim == 2 else values[0]

    def diagnose(self, *, key: PRNGKeyArray, draws: Count | None = None) -> Diagnosis:
        """Whether to believe it, in numbers and one sentence; prints as a table.

        It takes 4,000 draws by default, fewer of more than 16,000 coordinates, and never less than 100.

        With a density: ELBO, log evidence, importance ESS, k̂, moments before and after weighting, what is missed, fold
        fraction and conditioning. For chains: R̂, ESS, divergences. For all: Stein's identities and discrepancy.
        """
        draws = self._count(self._affordable() if draws is None else draws, key)
        if draws < LEAST_DRAWS:
            raise InputError(
                f"draws is {draws}; the tail of their weights says nothing below {LEAST_DRAWS}. Leave it out, or ask "
                "for more."
            )
        target = self._require_target("diagnose")
        density = Whitened(target, self.affine)
        with self._precision():
            if isinstance(self.model, Particles):
                return diagnosis.of_particles(
                    self.model, density, self.training.notes, draws, key=key
                )
            known, notes = self.training.evidence, self.training.notes
            return diagnosis.of_generator(self.generator, density, known, notes, draws, key=key)

    def summary(self, *, key: PRNGKeyArray, draws: Count | None = None) -> Summary:
        """Mean, spread and quantiles of every quantity that the model names, in its support; prints as a table.

        They are those of the draws as they are, 4,000 by default (`resample` weights them); of particles and chains, of
        all there are, and chains have R̂ and ESS.
        """
        target = self._require_target("summary")
        n = self._count(self._affordable() if draws is None else draws, key)
        held = isinstance(self.model, Particles)
        with self._precision():
            x = self.particles if held else drawing.draw(self.generator, n, key)
            named = export.flat(export.named(target, x))
        return summarise(named, self.model.by_chain if isinstance(self.model, Chains) else None)

    def resample(
        self, n: Count, *, key: PRNGKeyArray, proposals: Count | None = None
    ) -> Float[Array, "n d"]:
        """n draws, with replacement, by Pareto-smoothed importance resampling of `proposals` new ones.

        There are 10 n of them by default, and no fewer than 1,000. A `ReliabilityWarning` says if their weights cannot
        be relied on (k̂ above 0.7) or leave fewer effective proposals than n.
        """
        n = self._count(n, key)
        proposals = max(10 * n, 1_000) if proposals is None else self._count(proposals, key)
        draw_key, choice_key = jax.random.split(key)
        x, log_weights, k_hat = self._weighted(proposals, draw_key, "resample")
        with self._precision():
            effective = proposals * float(effective_share(log_weights))
            chosen = x[jax.random.categorical(choice_key, log_weights, shape=(n,))]
        heavy = proposals >= LEAST_DRAWS and not k_hat <= RELIABLE_K_HAT
        if heavy or effective < min(n, proposals / 10):
            warn(
                f"{effective:.0f} of {proposals} proposals are effective (k̂ = {k_hat:.2f}), so that many of the {n} "
                "draws are the same few points: q is too far from p for weights to correct it. See diagnose().",
                ReliabilityWarning,
            )
        return chosen

    def sample_and_log_weights(
        self, n: Count, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """n new draws, those of `sample` with the same key, and their Pareto-smoothed, normalised log weights."""
        x, log_weights, _ = self._weighted(self._count(n, key), key, "sample_and_log_weights")
        return x, log_weights

    def _weighted(
        self, n: int, key: PRNGKeyArray, what: str
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"], float]:
        """n new draws, their smoothed log weights, and k̂."""
        target = self._require_target(what)
        self._require_density(what)
        with self._precision():
            x, log_q, _ = drawing.draw_with_density(self.generator, n, key)
            log_weights, k_hat = smoothed_log_weights(drawing.log_densities(target, x) - log_q)
        if not np.isfinite(np.asarray(log_weights)).any():
            raise NotAvailableError(
                f"log p is not finite at any of {n} draws, so none has a weight. Train again (see diagnose()), or "
                "look at target.debug()."
            )
        return x, log_weights, float(k_hat)

    def draws(self, n: Count, *, key: PRNGKeyArray) -> PyTree:
        """n draws by name and in their supports, deterministic sites included, as the target's model knows them."""
        target = self._require_target("draws")
        x = self.sample(n, key=key)
        with self._precision():
            return export.named(target, x)

    def to_arviz(
        self,
        *,
        key: PRNGKeyArray,
        draws: Count = 4_000,
        predictive: bool = True,
        log_likelihood: bool = True,
    ) -> Any:
        """The posterior for ArviZ: InferenceData, or a DataTree for ArviZ ≥ 1.

        Groups: `posterior` (named, constrained), `sample_stats` (`lp` = log p; with a density `lp_q` = log q and the
        Pareto-smoothed `log_weight`, normalised), and for NumPyro models `posterior_predictive`, `log_likelihood` and
        `observed_data`. Particles and chains give at most `draws` of what they hold; chains stay apart.
        """
        draws = self._count(draws, key)
        target = self._require_target("to_arviz")
        export.check(target, draws, predictive=predictive, log_likelihood=log_likelihood)
        draw_key, predict_key = jax.random.split(key)
        chains, log_q, divergent = getattr(self.model, "chains", 1), None, None
        with self._precision():
            if not isinstance(self.model, Particles):
                x, log_q, _ = drawing.draw_with_density(self.generator, draws, draw_key)
            else:
                rows = _thinned(len(self.particles), chains, draws)
                x = self.particles[rows]
                divergent = getattr(self.model, "divergent", None)
                divergent = None if divergent is None else divergent[rows]
            return export.to_arviz(
                target,
                x,
                log_p=drawing.log_densities(target, x),
                log_q=log_q,
                divergent=divergent,
                chains=chains,
                key=predict_key,
                predictive=predictive,
                log_likelihood=log_likelihood,
                attributes={"inference_library": "gpvi", "method": self._name},
            )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a directory of safetensors and JSON that `gpvi.load` reads without the target."""
        saving.write(self.saved(), directory)

    def saved(self) -> saving.Saved:
        """What a file holds of it: all but the target."""
        parts = self.method, self.model, self.affine, self.names, self.training, self.auxiliary
        return saving.Saved(*parts)

    def _affordable(self) -> int:
        """The default number of draws to look at."""
        return max(LEAST_DRAWS, min(DRAWS, ENTRIES // self.dim))

    def _count(self, n: Any, key: Any) -> int:
        """The number of draws as a static value of the compiled programs, which one of NumPy is not."""
        specs.require_key(key)
        if not specs.is_whole(n) or n < 1:
            raise InputError(f"the number of draws is {n!r}; it must be a whole number ≥ 1.")
        return int(n)

    def _require_density(self, what: str) -> None:
        if isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{what} needs the density of the draws, and {self._name} has none: its particles are a set of points. "
                "GPVI, the amortised methods and flows have one."
            )

    def _require_target(self, what: str) -> Target:
        if self.target is None:
            raise NotAvailableError(
                f"{what} needs the target, and a loaded posterior does not hold it: "
                "posterior.with_target(target) first."
            )
        return self.target

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    def _precision(self) -> AbstractContextManager[None]:
        return precision(self.dtype)


def load(directory: str | os.PathLike[str], classes: Iterable[type] = ()) -> Posterior:
    """Read a posterior that `Posterior.save` wrote. Nothing in the files is executed, and no target is needed.

    Parameters
    ----------
    directory
        The directory.
    classes
        Your own classes that the posterior was made with. It is enough that they are decorated with `gpvi.specs.spec`
        and that their module has been imported.

    Returns
    -------
    Posterior
        The posterior, without its target (see `Posterior.with_target`).

    Raises
    ------
    gpvi.errors.StorageError
        If the directory does not hold a posterior, is damaged, or names a class that is not known here.
    gpvi.errors.InputError
        If `classes` holds anything but specifications, or two of the same name.

    Examples
    --------
    >>> import tempfile
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.SVGD(10), key=key, steps=5, progress=False)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     posterior.save(f"{directory}/posterior")
    ...     loaded = gpvi.load(f"{directory}/posterior")
    >>> loaded.method.particles
    10
    """
    return Posterior(**saving.read(directory, classes)._asdict())


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _thinned(rows: int, chains: int, most: int) -> np.ndarray:
    """At most `most` of the rows, whole draws of all chains, evenly apart and in order."""
    draws = rows // chains
    kept = np.linspace(0, draws - 1, min(draws, max(1, most // chains))).round().astype(int)
    return (kept[:, None] * chains + np.arange(chains)).ravel()
