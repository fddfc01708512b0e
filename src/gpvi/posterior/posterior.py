"""What `gpvi.fit` returns: draws, densities, summaries, a diagnosis, and a file that holds it all."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from gpvi import specs
from gpvi._html import paragraph, table
from gpvi._inputs import precision
from gpvi.diagnostics import sampling
from gpvi.diagnostics.diagnosis import Diagnosis, with_second_witness
from gpvi.diagnostics.importance import (
    DEFAULT_DRAWS,
    draw_weighted,
    effective_share,
    importance,
    smoothed_log_weights,
)
from gpvi.diagnostics.verdict import FEWEST_DRAWS, RELIABLE_K_HAT
from gpvi.errors import (
    InputError,
    NotAvailableError,
    ReliabilityWarning,
    brief,
    require_extra,
    warn,
)
from gpvi.exploration.modes import Modes, tabulated
from gpvi.exploration.search import Exploration, once_explored
from gpvi.generators import Preconditioned
from gpvi.methods import Method
from gpvi.methods.base import State
from gpvi.methods.carriers import Chains, Sampler
from gpvi.posterior import arviz, plots, saving
from gpvi.posterior.approximation import Approximation, Model, approximation
from gpvi.posterior.history import Training
from gpvi.posterior.naming import MODEL, Naming, named, named_by, naming_of
from gpvi.posterior.start import Start
from gpvi.posterior.summary import Summary, columns_of, summarise
from gpvi.progress import Meter
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target

Count = int | np.integer
PREDICTIONS = 1_000
"""The default number of draws of `predict`."""
MOST_NUMBERS = 2**26
"""Default numbers of draws are reduced so that draws × dimension stays below this."""


class Posterior:
    """A trained posterior. `gpvi.fit` and `gpvi.load` make it; users do not construct it.

    Parameters
    ----------
    method
        The method that was trained.
    model
        What it trained, in the coordinates of training: a generator, particles or chains.
    start
        The coordinates of training, and how they were found.
    names
        One name per coordinate, or a function that returns them.
    training
        How training went.
    target
        The target; None for a loaded posterior (see `with_target`).
    auxiliary
        What a solver, critic or sampler had learned, from which training can be continued.
    naming
        How draws are named without a target; "model" if that needs the target.
    explored
        A function that returns what islands of particles found, or None; by default they explore when that is needed.
    trained
        Of a refined posterior, whose draws are Markov chains: the posterior of the generator that they started from,
        with new draws, densities and evidence. None for all others.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
    >>> posterior.sample(1_000, key=key).shape
    (1000, 2)
    """

    _refined: ClassVar[Callable[..., "Posterior"]]
    """What `refine` calls. `gpvi.training.refinement` sets it: chains run in the loop of training, a layer below."""

    def __init__(
        self,
        method: Method,
        model: Model,
        start: Start,
        names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        training: Training,
        target: Target | None = None,
        auxiliary: PyTree = None,
        naming: Naming = MODEL,
        explored: Callable[[], Exploration | None] | None = None,
        trained: "Posterior | None" = None,
    ):
        self.method = method
        self.model = model
        self.start = start
        self._names = names
        self.training = training
        self.target = target
        self.auxiliary = auxiliary
        self.trained = trained
        self._explored = explored
        self._naming = naming
        self.dim = self.affine.location.shape[0]
        self.dtype = np.dtype(self.affine.location.dtype)

    @classmethod
    def from_training(
        cls,
        method: Method,
        target: Target,
        start: Start,
        state: State,
        training: Training,
        explored: Callable[[], Exploration | None] | None = None,
    ) -> "Posterior":
        """Make the posterior of a finished training state.

        Parameters
        ----------
        method, target, start, training, explored
            As for the constructor.
        state
            The last state of the method.

        Returns
        -------
        Posterior
            The trained posterior.
        """
        model = state.learner.model
        model = model.generator if isinstance(model, Sampler) else model
        return cls(
            method,
            model,
            start,
            lambda: target.names,
            training,
            target,
            state.auxiliary,
            explored=explored,
        )

    @classmethod
    def from_saved(cls, saved: saving.Saved) -> "Posterior":
        """Make the posterior that a file holds, without its target.

        Parameters
        ----------
        saved
            What was read.

        Returns
        -------
        Posterior
            The posterior, and the generator that its chains started from, if they did.
        """
        posterior = cls(**saved._replace(trained=None)._asdict())
        posterior.trained = None if saved.trained is None else cls.from_saved(saved.trained)
        return posterior

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what may hold functions, so that copies can be sent to other processes.

        These are the target, its exploration, and what a solver or critic had learned, which a saved posterior keeps.
        """
        without = {"target": None, "auxiliary": None, "_explored": None}
        return self.__dict__ | {"_names": self.names, "_naming": self.naming} | without

    def __repr__(self) -> str:
        done, planned = self.training.steps, self.training.planned
        name = type(self.method).__name__
        if self.trained is not None:
            name = f"{name} from {type(self.trained.method).__name__}"
        return f"<Posterior by {name} in {self.dim:,} dimensions, {done:,} of {planned:,} steps>"

    def _repr_html_(self) -> str:
        training = self.training
        names = f": {_first(self.names)}" if self.dim <= saving.LISTED else ""
        held = "any number" if self.size is None else f"{self.size:,}"
        rows = [
            ("method", str(self.method)),
            ("dimensions", f"{self.dim:,}{names}"),
            ("draws", f"{held}, in {self.dtype}"),
            (
                "training",
                f"{training.steps:,} of {training.planned:,} steps, {training.seconds:.1f} s",
            ),
            *([("", training.chosen)] if training.chosen else []),
            *([("start", self.start.report)] if self.start.report else []),
        ]
        ask = "posterior.diagnose() says whether to trust it"
        if self.target is None:
            ask += ", after posterior.with_target(target)"
        notes = "".join(map(paragraph, training.notes))
        return table(rows, left=(0, 1), caption="Posterior") + notes + paragraph(f"{ask}.")

    @property
    def affine(self) -> Affine:
        """The coordinates x = location + L u in which the model was trained."""
        return self.start.affine

    @property
    def names(self) -> tuple[str, ...]:
        """One name per coordinate."""
        return self._names() if callable(self._names) else self._names

    @property
    def naming(self) -> Naming:
        """How draws are named: "vector", "coordinates", their `gpvi.supports.Supports`, or "model"."""
        return self._naming if self.target is None else naming_of(self.target)

    @property
    def size(self) -> int | None:
        """The number of draws that a particle method or Markov chains hold; None if any number can be made."""
        return self._approximation.size

    @property
    def generator(self) -> Preconditioned:
        """The generator f_θ, from noise to the target's own coordinates.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method ends with a fixed set of draws.
        """
        return self._approximation.generator

    @property
    def particles(self) -> Float[Array, "n d"]:
        """The draws of a particle method or of Markov chains, in the target's own coordinates.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method trains a generator.
        """
        with self._precision():
            return self._approximation.particles

    def with_target(self, target: Target) -> "Posterior":
        """Attach the target, which a loaded posterior lacks, so that it can be diagnosed.

        Parameters
        ----------
        target
            The target that was fitted; its dimension, dtype and names must agree.

        Returns
        -------
        Posterior
            The same posterior with its target.

        Raises
        ------
        gpvi.errors.InputError
            If the target is of another dimension, dtype or naming.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.with_target(target).dim
        2
        """
        if not isinstance(target, Target):
            raise InputError(f"target is {brief(target)}; pass the gpvi.Target that was fitted.")
        if target.dim != self.dim:
            raise InputError(f"the target has dim={target.dim}, the posterior {self.dim}.")
        if target.dtype != self.dtype:
            raise InputError(
                f"the target is in {target.dtype}, the posterior {self.dtype}: "
                f"pass Target(…, dtype={self.dtype.name!r})."
            )
        comparable = target.naming is not None and self.dim <= saving.LISTED
        if comparable and target.names != self.names:
            raise InputError(
                f"the target names its coordinates {_first(target.names)}, the posterior {_first(self.names)}: give "
                "the target that was fitted, with its coordinates in the same order."
            )
        return Posterior(
            self.method,
            self.model,
            self.start,
            self._names,
            self.training,
            target,
            self.auxiliary,
            naming=self._naming,
            trained=None if self.trained is None else self.trained.with_target(target),
        )

    def with_chains(self, method: Method, model: Chains, training: Training) -> "Posterior":
        """Return the posterior of Markov chains that started from this one, which it keeps as `trained`.

        Parameters
        ----------
        method, training
            As for the constructor.
        model
            The draws, in the coordinates of training.

        Returns
        -------
        Posterior
            The posterior of the chains, of the same target.
        """
        return Posterior(
            method,
            model,
            self.start,
            self._names,
            training,
            self.target,
            naming=self._naming,
            explored=self._explored,
            trained=self,
        )

    def refine(
        self,
        *,
        key: PRNGKeyArray | int,
        draws: Count = 1_000,
        chains: Count = 4,
        progress: bool | Meter = True,
    ) -> "Posterior":
        """Run Markov chains from the trained generator: draws that are exact in the limit, with R̂ and ESS.

        NUTS runs in the noise z of the generator, on log p(f(z)) + log|det J(z)|, where the posterior is nearly
        N(0, I). It starts at draws that are chosen by their importance weights. Where 250 draws mix badly there, the
        whitened coordinates of training are tried, and those with more effective draws for a gradient are used. There
        chains also jump to draws of the generator, accepted by their exact densities; of a generator of several
        components, which has no single noise, chains always run so.

        Parameters
        ----------
        key
            A JAX random key, or a seed; the same key gives the same chains.
        draws
            The draws of each chain, made in blocks of 250 after a warm-up of 250: the number is rounded up.
        chains
            The number of chains, run in parallel.
        progress
            As for `gpvi.fit`.

        Returns
        -------
        Posterior
            Of the chains. It names, diagnoses, exports and saves as any other; its diagnosis also compares the chains
            with the importance weights of the generator. `training.notes` says what was done, `training.gradients`
            what it cost, and `trained` is the posterior of the generator.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If there is no target or no generator, if the generator may fold, if the data come in batches or are
            streamed, or if log p is finite at hardly any draw.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> refined = posterior.refine(key=key, draws=250, chains=2, progress=False)
        >>> refined.particles.shape, refined.trained is posterior
        ((500, 2), True)
        """
        self._require_target("refine")
        return self._refined(self, key=key, draws=draws, chains=chains, progress=progress)

    def sample(self, n: Count, *, key: PRNGKeyArray | int) -> Float[Array, "n d"]:
        """Draw n points.

        Parameters
        ----------
        n
            The number of draws.
        key
            A JAX random key, or a seed; the same key gives the same draws.

        Returns
        -------
        Array
            New draws of a generator, one in each row; of particles and chains a random subset.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If particles or chains hold fewer than n draws.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.sample(5, key=key).shape
        (5, 2)
        """
        n, key = self._asked(n, key)
        with self._precision():
            return self._approximation.sample(n, key=key)

    def sample_and_log_prob(
        self, n: Count, *, key: PRNGKeyArray | int
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Draw n points with their log-densities (Eq. 1).

        Parameters
        ----------
        n
            The number of draws.
        key
            A JAX random key, or a seed; the draws are those of `sample` with the same key.

        Returns
        -------
        tuple[Array, Array]
            The draws, and log q of each.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method has no density.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> x, log_q = posterior.sample_and_log_prob(5, key=key)
        >>> log_q.shape
        (5,)
        """
        n, key = self._asked(n, key)
        generator = self._approximation.require_density("sample_and_log_prob")
        with self._precision():
            return sampling.sample_with_density(generator, n, key)

    def log_prob(self, x: ArrayLike) -> Float[Array, "*n"]:
        """Evaluate log q at given points.

        Parameters
        ----------
        x
            Points of shape (n, d), or one point of shape (d,).

        Returns
        -------
        Array
            log q at each point.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method has no density, or its generator no exact inverse.
        gpvi.errors.InputError
            If x has another shape.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.log_prob(np.zeros((3, 2))).shape
        (3,)
        """
        generator = self._approximation.require_density("log_prob")
        with self._precision():
            try:
                x = jnp.asarray(x, self.dtype)
            except (TypeError, ValueError) as error:
                raise InputError(f"x cannot be read as points: {error}.") from error
            if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
                raise InputError(
                    f"x has shape {x.shape}; pass (n, {self.dim}) points, or one of ({self.dim},)."
                )
            values = sampling.log_prob(generator, jnp.atleast_2d(x))
            return values if x.ndim == 2 else values[0]

    def diagnose(self, *, key: PRNGKeyArray | int = 0, draws: Count | None = None) -> Diagnosis:
        """Say whether to trust the posterior, in numbers and one sentence.

        With a density: ELBO, log evidence, importance ESS, k̂, moments before and after weighting, missing mass, fold
        fraction and conditioning. For chains: R̂, ESS, divergences; of a refined posterior also log evidence by bridge
        sampling, and where the chains and the generator's importance weights differ most. For all: Stein's identities
        and discrepancy.

        Parameters
        ----------
        key
            A JAX random key, or a seed; seed 0 by default, so that the same posterior has the same diagnosis.
        draws
            The number of draws to examine: 4,000 by default, fewer of more than 16,000 coordinates, at least 100.

        Returns
        -------
        gpvi.diagnostics.Diagnosis
            It prints as a table that ends in the verdict.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the posterior was loaded and has no target yet.
        gpvi.errors.InputError
            If `draws` is below 100.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=500, key=key, progress=False)
        >>> posterior.diagnose(key=key).verdict.level
        'good'
        """
        draws, key = self._asked(self._default_draws() if draws is None else draws, key)
        if draws < FEWEST_DRAWS:
            raise InputError(
                f"draws is {draws}; the tail of their weights says nothing below {FEWEST_DRAWS}. Leave it out, or ask "
                "for more."
            )
        density = Whitened(self._require_target("diagnose"), self.affine)
        initial, notes = self.start.evidence, self.training.notes
        with self._precision():
            found = self._exploration(density, key)
            diagnosis = self._approximation.diagnose(density, initial, found, notes, draws, key=key)
            if self.trained is None or not isinstance(self.model, Chains):
                return diagnosis
            generator, key = self.trained.generator, jax.random.fold_in(key, 1)
            return with_second_witness(diagnosis, self.model, generator, density, draws, key=key)

    def modes(self, *, key: PRNGKeyArray | int = 0) -> Modes:
        """List the modes of the posterior that independent islands of particles found, whether it is drawn from or not.

        Parameters
        ----------
        key
            A JAX random key or a seed, for the exploration; not used if training has already explored the posterior.

        Returns
        -------
        gpvi.exploration.modes.Modes
            Of each mode its share with a standard error, mean, standard deviation, highest log p, the number of
            islands that found it, and whether it mirrors or permutes another. It prints as a table.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the posterior has no target, or is too large or too expensive to be explored.

        Examples
        --------
        >>> target = gpvi.Target(
        ...     lambda x: jnp.logaddexp(-0.5 * (x[0] - 9) ** 2, -0.5 * (x[0] + 9) ** 2), dim=1
        ... )
        >>> posterior = gpvi.fit(target, gpvi.SVGD(), steps=10, key=key, progress=False)
        >>> len(posterior.modes())
        2
        """
        key = specs.as_key(key)
        density = Whitened(self._require_target("modes"), self.affine)
        with self._precision():
            found = self._exploration(density, key)
        if found is None:
            raise NotAvailableError(
                "modes() explores the posterior, and this one cannot be explored: it has more than 200 dimensions, "
                "streamed data, or the weights of a network, or its log-density is expensive or nowhere finite."
            )
        shares, errors = found.shares
        return tabulated(found.points, found.log_density, found.labels, shares, errors)

    def _exploration(self, density: Whitened, key: PRNGKeyArray) -> Exploration | None:
        """What islands find of the posterior, explored once; None if it cannot be explored."""
        if self._explored is None:
            self._explored = once_explored(density, key=key)
        return self._explored()

    def summary(self, *, key: PRNGKeyArray | int = 0, draws: Count | None = None) -> Summary:
        """Tabulate mean, spread and quantiles of every quantity that the model names, in its support.

        Parameters
        ----------
        key
            A JAX random key, or a seed; seed 0 by default, so that the same posterior has the same summary.
        draws
            The number of new draws, 4,000 by default; particles and chains use all they hold. Draws are not weighted
            (see `resample`).

        Returns
        -------
        gpvi.posterior.Summary
            It prints as a table; chains add R̂ and ESS.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the posterior was loaded, has no target yet, and a model must name the draws.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2, names=("a", "b"))
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=500, key=key, progress=False)
        >>> posterior.summary(key=key).names
        ('a', 'b')
        """
        self._require_naming("summary")
        n, key = self._asked(self._default_draws() if draws is None else draws, key)
        with self._precision():
            x = self._approximation.summarised(n, key=key)
            variables = arviz.flat(self._named(x, key))
        return summarise(variables, self._approximation.by_chain)

    def plot(
        self,
        names: Sequence[str] | str | None = None,
        *,
        kind: Literal["pairs", "marginals"] = "pairs",
        key: PRNGKeyArray | int = 0,
        draws: Count = plots.DRAWS,
        ax: Any = None,
    ) -> Any:
        """Draw the posterior: marginals on the diagonal and pairs below it, or marginals alone.

        In two dimensions, lines enclose 50, 90 and 99 % of the target's mass within the panel, if log p is cheap and
        takes just the two coordinates that are shown.

        Parameters
        ----------
        names
            What to show: names of quantities, as `summary` lists them; the name of an array stands for all its
            entries. By default the first five for pairs, the first twelve for marginals.
        kind
            "pairs" or "marginals".
        key
            A JAX random key, or a seed; seed 0 by default, so that the same posterior has the same picture.
        draws
            The number of new draws; particles and chains show all they hold.
        ax
            Matplotlib axes to draw on; new ones by default. Single axes hold one marginal, or one pair.

        Returns
        -------
        matplotlib.axes.Axes or np.ndarray
            The axes: an array of them if there are several.

        Raises
        ------
        gpvi.errors.InputError
            If a name is unknown, or `ax` holds another number of axes than are needed.
        gpvi.errors.NotAvailableError
            If Matplotlib is not installed, or a model must name the draws and there is no target.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2, names=("a", "b"))
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.plot().shape, posterior.plot("a").get_xlabel()
        ((2, 2), 'a')
        """
        specs.require_choice(kind, ("pairs", "marginals"), "kind")
        require_extra("plots", "matplotlib", "a plot")
        self._require_naming("plot")
        n, key = self._asked(draws, key)
        with self._precision():
            variables = arviz.flat(self._named(self._approximation.summarised(n, key=key), key))
        labels, x = columns_of(variables)
        columns = plots.chosen(labels, names, kind, ax)
        plain = self.target is not None and self.target.model is None and columns == [0, 1]
        contours = plots.contours_of(self.target) if plain and self.target is not None else None
        shown = [labels[i] for i in columns]
        return plots.plot_draws(x[:, columns], shown, kind, ax, contours)

    def plot_weights(
        self, *, key: PRNGKeyArray | int = 0, draws: Count | None = None, ax: Any = None
    ) -> Any:
        """Draw the importance weights of new draws by rank, before and after Pareto smoothing, with k̂.

        A level line is what draws of the posterior itself would give; a steep rise at the left are few draws that
        carry most of the weight.

        Parameters
        ----------
        key
            A JAX random key, or a seed; seed 0 by default.
        draws
            The number of new draws, 4,000 by default, at least 100.
        ax
            Matplotlib axes to draw on; new ones by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method has no density, there is no target, or Matplotlib is not installed.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.plot_weights().get_ylabel()
        'weight, 1 on average'
        """
        require_extra("plots", "matplotlib", "a plot")
        n, key = self._asked(self._default_draws() if draws is None else draws, key)
        if n < FEWEST_DRAWS:
            raise InputError(f"draws is {n}; k̂ needs {FEWEST_DRAWS} or more.")
        target = self._require_target("plot_weights")
        generator = self._approximation.require_density("plot_weights")
        with self._precision():
            ratios = draw_weighted(target, generator, n, key=key).log_ratios
            summary, log_weights = importance(ratios)
        return plots.plot_weights(
            np.asarray(ratios, np.float64),
            np.asarray(log_weights, np.float64),
            summary.k_hat,
            summary.effective_share,
            ax,
        )

    def resample(
        self, n: Count, *, key: PRNGKeyArray | int, proposals: Count | None = None
    ) -> Float[Array, "n d"]:
        """Draw n points, with replacement, by Pareto-smoothed importance resampling.

        Parameters
        ----------
        n
            The number of draws.
        key
            A JAX random key, or a seed.
        proposals
            The number of new draws to choose from; by default 10 n, and at least 1,000.

        Returns
        -------
        Array
            The chosen draws, one in each row. A `gpvi.errors.ReliabilityWarning` says if their weights cannot be
            relied on (k̂ above 0.7), or leave fewer effective proposals than n.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method has no density, there is no target, or log p is finite at no draw.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.resample(50, key=key).shape
        (50, 2)
        """
        n, key = self._asked(n, key)
        proposals = max(10 * n, 1_000) if proposals is None else _count(proposals)
        draw_key, choice_key = jax.random.split(key)
        x, log_weights, k_hat = self._smoothed(proposals, draw_key, "resample")
        with self._precision():
            effective = proposals * float(effective_share(log_weights))
            chosen = x[_chosen(log_weights, n, choice_key)]
        heavy = proposals >= FEWEST_DRAWS and not k_hat <= RELIABLE_K_HAT
        if heavy or effective < min(n, proposals / 10):
            warn(
                f"{effective:.0f} of {proposals} proposals are effective (k̂ = {k_hat:.2f}), so that many of the {n} "
                "draws are the same few points: q is too far from p for weights to correct it. See diagnose().",
                ReliabilityWarning,
            )
        return chosen

    def sample_and_log_weights(
        self, n: Count, *, key: PRNGKeyArray | int
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Draw n points with their Pareto-smoothed, normalised log importance weights.

        Parameters
        ----------
        n
            The number of draws.
        key
            A JAX random key, or a seed; the draws are those of `sample` with the same key.

        Returns
        -------
        tuple[Array, Array]
            The draws, and the log weight of each.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the method has no density, there is no target, or log p is finite at no draw.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> x, log_weights = posterior.sample_and_log_weights(200, key=key)
        >>> log_weights.shape
        (200,)
        """
        n, key = self._asked(n, key)
        x, log_weights, _ = self._smoothed(n, key, "sample_and_log_weights")
        return x, log_weights

    def draws(self, n: Count, *, key: PRNGKeyArray | int) -> PyTree:
        """Draw n points by name and in their supports, as the target's model knows them.

        Parameters
        ----------
        n
            The number of draws.
        key
            A JAX random key, or a seed; the draws are those of `sample` with the same key.

        Returns
        -------
        PyTree
            A dictionary of arrays (or the tree of a pytree target), each with a first axis of n; deterministic sites
            of a NumPyro or PyMC model are included, and discrete sites drawn anew.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the posterior was loaded, has no target yet, and a model must name the draws.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2, names=("a", "b"))
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.draws(5, key=key)["a"].shape
        (5,)
        """
        self._require_naming("draws")
        x = self.sample(n, key=key)
        with self._precision():
            return self._named(x, key)

    def predict(
        self, *args: Any, key: PRNGKeyArray | int, draws: Count | None = None, **kwargs: Any
    ) -> dict[str, Array]:
        """Draw from the target's model at other arguments, such as new covariates: NumPyro's `Predictive`.

        The model is called as `model(*args, **kwargs)`, without data for `obs=`, and takes the unknowns of each draw.
        Unknowns of another shape at these arguments, such as effects of new groups, are drawn from their priors.

        Parameters
        ----------
        *args, **kwargs
            The arguments of the NumPyro model.
        key
            A JAX random key, or a seed.
        draws
            The number of draws, 1,000 by default, or at most all particles.

        Returns
        -------
        dict[str, Array]
            The sites that were drawn, and the deterministic ones, each with a first axis of `draws`.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If there is no target, or it was not made of a NumPyro model.
        gpvi.errors.InputError
            If the model fails with these arguments.

        Examples
        --------
        >>> import numpyro, numpyro.distributions as dist
        >>> def model(x, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(slope * x, 0.1), obs=y)
        >>> target = gpvi.Target.from_numpyro(model, np.arange(3.0), np.arange(3.0))
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.predict(np.linspace(0, 1, 5), key=key)["y"].shape
        (1000, 5)
        """
        target = self._require_target("predict")
        if draws is None:
            draws = min(PREDICTIONS, PREDICTIONS if self.size is None else self.size)
        draw_key, predict_key = jax.random.split(specs.as_key(key))
        x = self.sample(draws, key=draw_key)
        with self._precision():
            return arviz.predicted(target, x, args, kwargs, key=predict_key)

    def to_arviz(
        self,
        *,
        key: PRNGKeyArray | int,
        draws: Count = DEFAULT_DRAWS,
        predictive: bool = True,
        log_likelihood: bool = True,
    ) -> Any:
        """Export the posterior to ArviZ.

        Groups: `posterior` (named, constrained), `sample_stats` (`lp` = log p; with a density `lp_q` = log q and the
        Pareto-smoothed `log_weight`, normalised), and for NumPyro and PyMC models `posterior_predictive`,
        `log_likelihood`, `observed_data` and `constant_data`.

        Parameters
        ----------
        key
            A JAX random key, or a seed.
        draws
            The number of new draws, rounded up to four chains of equal length; they are independent, within chains and
            between them. Particles (one chain) and Markov chains give at most this many of what they hold.
        predictive, log_likelihood
            Whether to add these groups.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            A DataTree for ArviZ ≥ 1.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If ArviZ is not installed, or there is no target.
        gpvi.errors.InputError
            If a group would be too large.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> posterior.to_arviz(key=key, draws=100)["posterior"]["x"].shape
        (4, 25, 2)
        """
        draws, key = self._asked(draws, key)
        target = self._require_target("to_arviz")
        arviz.check(target, draws, predictive=predictive, log_likelihood=log_likelihood)
        draw_key, predict_key = jax.random.split(key)
        with self._precision():
            return arviz.to_arviz(
                target,
                self._approximation.exported(target, draws, key=draw_key),
                key=predict_key,
                predictive=predictive,
                log_likelihood=log_likelihood,
                attributes={"inference_library": "gpvi", "method": type(self.method).__name__},
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the posterior, without its target, for `gpvi.load`.

        Parameters
        ----------
        path
            The file to write, such as "banana.gpvi". An earlier save there is replaced; anything else is not.

        Raises
        ------
        gpvi.errors.StorageError
            If it cannot be written, or would replace something that is not a saved posterior.

        Examples
        --------
        >>> import tempfile
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/normal.gpvi")
        ...     gpvi.load(f"{folder}/normal.gpvi").dim
        2
        """
        saving.write(saving.Saved.of(self), path)

    @property
    def _approximation(self) -> Approximation:
        name = type(self.method).__name__
        if self.trained is not None:
            name = f"a refined posterior (its generator is .trained, its chains are by {name})"
        return approximation(name, self.model, self.affine)

    def _smoothed(
        self, n: int, key: PRNGKeyArray, what: str
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"], float]:
        """Return n new draws, their smoothed log weights, and k̂."""
        target = self._require_target(what)
        generator = self._approximation.require_density(what)
        with self._precision():
            drawn = draw_weighted(target, generator, n, key=key)
            log_weights, k_hat = smoothed_log_weights(drawn.log_ratios)
        if not np.isfinite(np.asarray(log_weights)).any():
            raise NotAvailableError(
                f"log p is not finite at any of {n} draws, so none has a weight. Train again (see diagnose()), or "
                "look at target.debug()."
            )
        return drawn.x, log_weights, float(k_hat)

    def _default_draws(self) -> int:
        return max(FEWEST_DRAWS, min(DEFAULT_DRAWS, MOST_NUMBERS // self.dim))

    def _asked(self, n: Any, key: Any) -> tuple[int, PRNGKeyArray]:
        """Return the number of draws and the key that a caller asks for, after checking them."""
        return _count(n), specs.as_key(key)

    def _require_target(self, what: str) -> Target:
        if self.target is None:
            raise NotAvailableError(
                f"{what} needs the target, and a loaded posterior does not hold it: "
                "posterior.with_target(target) first."
            )
        return self.target

    def _require_naming(self, what: str) -> None:
        """Raise an error if draws can only be named by the model of a target, and there is none."""
        if self.naming == MODEL:
            self._require_target(what)

    def _named(self, x: Float[Array, "n d"], key: PRNGKeyArray | int) -> PyTree:
        """Return draws by name and in their supports; `key` draws what x does not determine."""
        if self.target is not None:
            return named(self.target, x, key=specs.as_key(key))
        return named_by(self._naming, lambda: self.names, x)

    def _precision(self) -> AbstractContextManager[None]:
        return precision(self.dtype)


def load(path: str | os.PathLike[str], classes: Iterable[Any] = ()) -> Posterior:
    """Read a posterior that `Posterior.save` wrote; nothing in the file is executed, and no target is needed.

    Parameters
    ----------
    path
        The file. A directory that an earlier version of gpvi saved is read, too.
    classes
        Your own classes that the posterior was made with. They need not be given if they are decorated with
        `gpvi.specs.spec` and their module has been imported.

    Returns
    -------
    Posterior
        Without its target: `with_target(target)` attaches it.

    Raises
    ------
    gpvi.errors.StorageError
        If there is no saved posterior, it is damaged or of a newer format, or it names a class that is not known here.
    gpvi.errors.InputError
        If `classes` holds anything but dataclasses, or two of one name.

    Examples
    --------
    >>> import tempfile
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), steps=200, key=key, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     posterior.save(f"{folder}/normal.gpvi")
    ...     gpvi.load(f"{folder}/normal.gpvi").dim
    2
    """
    return Posterior.from_saved(saving.read(path, classes))


def _count(n: Any) -> int:
    """Return the number of draws as a Python int: a static argument of the compiled programs."""
    if not specs.is_whole(n) or not 1 <= n <= specs.MOST:
        raise InputError(
            f"the number of draws is {brief(n)}; it must be a whole number from 1 to {specs.MOST:,}."
        )
    return int(n)


def _chosen(log_weights: Float[Array, " m"], n: int, key: PRNGKeyArray) -> np.ndarray:
    """Return n indices drawn with replacement in proportion to the weights, in memory m + n."""
    cumulative = np.cumsum(np.exp(np.asarray(log_weights, np.float64)))
    uniform = np.asarray(jax.random.uniform(key, (n,)), np.float64)
    found = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return np.minimum(found, len(cumulative) - 1)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
