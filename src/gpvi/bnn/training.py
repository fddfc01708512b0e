r"""Train posteriors over networks that predict well: `gpvi.bnn.fit`, and what the estimators share with it.

One generator that starts at a random network covers one mode, and may attribute the signal to noise (see
`gpvi.bnn._map_networks`). So, unless another method is asked for:

1. each of `MEMBERS` networks maximises log p(y | w) + log p(w);
2. a generator is trained from each, side by side, for half of the steps: with the noise kept low, or, if y is a class,
   with one fold of the data held out for each member (see `gpvi.bnn._cross_fitting`);
3. training continues with the noise free and all data. The members predict as an equally weighted mixture, whose class
   probabilities are temperature-scaled as suits the held-out labels.

Microcanonical chains need no generators: they start at networks that maximise the posterior with the noise learned.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi.bnn._checkpoints import Stages
from gpvi.bnn._cross_fitting import CrossFitting, can_cross_fit
from gpvi.bnn._map_networks import map_networks, maximised, with_low_noise
from gpvi.bnn.generators import DRAWS, LARGE, default_gpvi, generator
from gpvi.bnn.likelihoods import Gaussian, Heteroscedastic, Likelihood, as_likelihood
from gpvi.bnn.microcanonical import MCLMC
from gpvi.bnn.model import checked_inputs, require_network, target
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.priors import FanIn, Prior, Sparse, StandardNormal
from gpvi.bnn.standardisation import standardisation_advice
from gpvi.errors import NotAvailableError, TrainingWarning, warn
from gpvi.methods import GPVI, METHODS, SHORT_NAMES, DeepEnsemble, Method, method_name
from gpvi.methods import as_method as general_method
from gpvi.posterior.posterior import Posterior
from gpvi.progress import Meter
from gpvi.specs import (
    as_key,
    hyphenated,
    require_choice,
    require_count,
    require_positive,
)
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target
from gpvi.training.arguments import check_watching, checked_mesh
from gpvi.training.checkpoint import asked
from gpvi.training.context import check_context
from gpvi.training.fit import fit as fit_one
from gpvi.training.fit import fit_seeds

BATCH = 128
"""batch_size="auto"."""
CHEAP = 4_000
"""The number of weights up to which small data sets get more draws per step."""
MEMBERS, MEMBER_DRAWS = 5, 8
"""members="auto" of GPVI, and the draws of each in a step; more, up to `DRAWS`, if the data do not fill a batch."""
CRITIC_STEPS, CRITIC_LEARNING_RATE = 10, 1e-3
"""Critic steps per generator step, and the generator's learning rate. With one step and 3e-3 the critic lags behind: it
still points where the networks were when they have passed the optimum, and drives them away. Scores vary strongly from
batch to batch here: a critic in units of their size ends too wide, or does not find a line (R² −53,000, 0.76 and 0.94
where this one has 0.95, 0.94 and 0.96)."""
MAP_SHARE = 5
"""MAP networks are trained for a fifth of the steps of GPVI."""
FITTED_STEPS = 10_000
"""The steps in which the networks are fitted that microcanonical chains start from."""
LOW_NOISE_STAGE, HELD_OUT_STAGE, FINAL_STAGE = "held", "crossed", "free"
"""The directories of a checkpoint that keep the first half of training (noise kept low, or a fold held out) and the
second. Renaming them would make older checkpoints start again."""


def fit(
    network: Network,
    likelihood: Likelihood | str,
    X: Any,
    y: Any,
    *,
    key: PRNGKeyArray | int,
    prior: Prior | str = "auto",
    method: Method | str = "gpvi",
    members: int | str = "auto",
    steps: int | None = None,
    batch_size: int | str | None = "auto",
    temperature: float = 1.0,
    sharpness: float | str = "auto",
    dtype: DTypeLike | None = None,
    progress: bool | Meter = True,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    mesh: Mesh | int | None = None,
) -> Predictive:
    """Train a network of your own as the scikit-learn estimators train theirs.

    Parameters
    ----------
    network, likelihood, X, y, temperature, dtype
        As for `gpvi.bnn.target`. Nothing is standardised for you, and priors and starting points assume inputs and
        outputs with mean 0 and standard deviation 1.
    key
        A JAX key, or a seed.
    prior
        As for `gpvi.bnn.target`. "auto" is `Sparse()` for methods that draw as many networks as they like,
        `FanIn(2.0, 2.0)` for Markov chains, N(0, 1) for those of `gpvi.bnn.MCLMC`, and `FanIn()` for methods with a few
        particles.
    method
        "gpvi", another method by its name ("nuts", "mfvi", "ensemble", …), or an object such as `gpvi.SVGD()`. The
        chains of `gpvi.bnn.MCLMC` start at networks that were fitted first, those of each member at its own.
    members
        The number of posteriors, which are trained side by side from different starting points and predict as an
        equally weighted mixture. "auto" is 5 for "gpvi", and 1 for any other method, from 20,000 weights on, and
        without hidden layers.
    steps
        The steps of training; the method's own number by default. For `MCLMC`, the steps in which networks are fitted:
        10,000 by default.
    batch_size
        The rows of a step. "auto" is 128, or all for methods that need all; None is all.
    sharpness
        Temperature scaling of class probabilities (Guo et al. 2017): the inverse temperature, see
        `gpvi.bnn.temperature_scaled`. 1 leaves the average over networks as it is. "auto" finds it by cross-fitting:
        each member of "gpvi" skips one fold of the data during the first half of training, and predicts its labels. It
        is 1 for any other method, from 20,000 weights on, without hidden layers, and for fewer than ten rows.
    progress
        Whether to show a progress bar, or a meter.
    checkpoint, every
        A directory that keeps the run, and the number of steps between two saves, as for `gpvi.fit`. The same call
        resumes, bit for bit as if it had never stopped; a finished run trains nothing. With "gpvi" the directory holds
        the MAP networks, the first half of training in `held` or `crossed`, and the second half in `free`. A run that
        is interrupted while MAP networks are trained starts again. Ctrl-C returns what there is.
    mesh
        The devices to train on, as for `gpvi.fit`. Several members share them, as many as divide their number.

    Returns
    -------
    Predictive
        The predictive distribution; its `members` are the posteriors.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used; raised before anything is compiled.
    gpvi.errors.NotAvailableError
        If X or y is a `gpvi.Stream`.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> predictive = gpvi.bnn.fit(
    ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
    ...     "gaussian",
    ...     X,
    ...     X,
    ...     key=key,
    ...     method="svgd",
    ...     steps=50,
    ...     progress=False,
    ... )
    >>> len(predictive.members), predictive.predict(X, key=key).mean.shape
    (1, (20, 1))
    """
    require_network(network)
    check_context("gpvi.bnn.fit", key)
    key = as_key(key)
    check_watching((), checkpoint, every)
    if isinstance(X, Stream) or isinstance(y, Stream):
        raise NotAvailableError(
            "gpvi.bnn.fit trains MAP networks first, with all data in memory, and these are streamed. Use gpvi.fit("
            "gpvi.bnn.target(…), gpvi.bnn.method(dim), batch_size=…), and gpvi.bnn.Predictive of what it returns."
        )
    likelihood, inputs = as_likelihood(likelihood), checked_inputs(X, network)
    outputs = likelihood.prepare(y, network.outputs(inputs))
    if np.issubdtype(inputs.dtype, np.floating):
        _warn_unless_standardised(inputs, "X")
    if isinstance(likelihood, Gaussian | Heteroscedastic):
        _warn_unless_standardised(outputs, "y")
    trained = train_members(
        network,
        likelihood,
        inputs,
        outputs,
        key=key,
        prior=prior,
        method=method,
        members=members,
        steps=steps,
        batch_size=batch_size,
        temperature=temperature,
        sharpness=sharpness,
        dtype=dtype,
        progress=progress,
        stages=Stages(checkpoint, every),
        mesh=mesh,
    )
    return Predictive(trained.posteriors, network, likelihood, sharpness=trained.sharpness)


class TrainedMembers(NamedTuple):
    """The posteriors of all members, and the sharpness of the class probabilities that their mixture predicts."""

    posteriors: tuple[Posterior, ...]
    sharpness: float


def train_members(
    network: Network,
    likelihood: Likelihood,
    X: np.ndarray,
    y: np.ndarray,
    *,
    key: PRNGKeyArray,
    prior: Prior | str,
    method: Method | str,
    members: int | str,
    steps: int | None,
    batch_size: int | str | None,
    temperature: float,
    sharpness: float | str,
    dtype: DTypeLike | None = None,
    progress: bool | Meter = True,
    start: Sequence[Posterior] = (),
    stages: Stages | None = None,
    mesh: Mesh | int | None = None,
) -> TrainedMembers:
    """Train the posteriors of all members, continuing from those in `start` if there are any."""
    fixed_sharpness = _fixed_sharpness(sharpness)
    outputs = network.outputs(X)
    dim = network.size + len(likelihood.extra(outputs))
    multimodal = is_multimodal(network, dim)
    by_default = isinstance(method, str) and method_name(method) == "gpvi"
    number = len(start) or _members(members, multimodal and by_default)
    chosen = as_method(method, dim, _draws(number, len(X), dim, start))
    from_fitted = isinstance(chosen, MCLMC) and not start
    if steps is None or (start and isinstance(chosen, MCLMC)):
        steps = FITTED_STEPS if from_fitted else chosen.default_steps()
    require_count("steps", steps, "None is the method's own number.")
    by_method = isinstance(prior, str) and prior == "auto"
    weight_prior = default_prior(chosen) if by_method else prior
    size = None if isinstance(chosen, MCLMC) else _batch_size(batch_size, chosen, len(X))
    setup = _Setup(
        network=network,
        likelihood=likelihood,
        prior=weight_prior,
        make_target=partial(
            target, network, prior=weight_prior, temperature=temperature, dtype=dtype
        ),
        X=X,
        y=y,
        key=key,
        method=chosen,
        members=number,
        steps=int(steps),
        batch_size=size,
        dtype=dtype,
        options={
            "batch_size": size,
            "progress": progress,
            "mesh": checked_mesh(mesh, chosen),
        },
        stages=Stages(None, None) if stages is None else stages,
    )
    full_target = setup.make_target(likelihood, X=X, y=y)
    s = 1.0 if fixed_sharpness is None else fixed_sharpness
    if from_fitted:
        fitted_size = _batch_size(batch_size, DeepEnsemble(), len(X))
        return TrainedMembers(_chains_from_fitted_networks(setup, full_target, fitted_size), s)
    if start or not multimodal or not isinstance(chosen, GPVI):
        targets = [full_target] * number
        posteriors = setup.trained(targets, start, key=key, steps=setup.steps, stage="")
        return TrainedMembers(posteriors, s)
    folds = None
    if fixed_sharpness is None and can_cross_fit(likelihood.classes(outputs), X, y, number):
        folds = CrossFitting.of(y, number, key=jax.random.fold_in(key, 3))
    return _trained_from_map_networks(setup, full_target, folds, s)


class _Setup(NamedTuple):
    """What all stages of one training share."""

    network: Network
    likelihood: Likelihood
    prior: Prior | str
    make_target: Callable[..., Target]
    X: np.ndarray
    y: np.ndarray
    key: PRNGKeyArray
    method: Method
    members: int
    steps: int
    batch_size: int | None
    dtype: DTypeLike | None
    options: dict[str, Any]
    stages: Stages

    def trained(
        self,
        targets: Sequence[Target],
        start: Sequence[Posterior],
        *,
        key: PRNGKeyArray,
        steps: int,
        stage: str,
    ) -> tuple[Posterior, ...]:
        """Train posteriors of targets of one form side by side, continuing from those in `start` if any."""
        options = self.options | self.stages.options(stage) | {"key": key, "steps": steps}
        if len(targets) > 1:
            return tuple(fit_seeds(targets, self.method, init=start or "auto", **options))
        return (fit_one(targets[0], self.method, init=start[0] if start else "auto", **options),)

    def identity(self, full_target: Target, sharpness: str) -> dict[str, str]:
        """Return what tells this run from others in a checkpoint."""
        own = {"members": repr(self.members), "sharpness": sharpness}
        return own | asked([full_target], self.method, self.steps, self.batch_size, self.key)


def _trained_from_map_networks(
    setup: _Setup, full_target: Target, folds: CrossFitting | None, sharpness: float
) -> TrainedMembers:
    """Train generators that start at MAP networks, in two stages if noise is kept low or folds are held out."""
    map_key, first_key, final_key = jax.random.split(setup.key, 3)
    X, y, total = setup.X, setup.y, setup.steps
    likelihood = with_low_noise(setup.likelihood, y)
    parts = [(X, y)] if folds is None else [(X[rows], y[rows]) for rows in folds.training]
    members_per_part = setup.members // len(parts)

    def starting_networks() -> Float[Array, "m d"]:
        keys = [map_key] if folds is None else jax.random.split(map_key, len(parts))
        networks = [
            map_networks(
                setup.network,
                likelihood,
                setup.prior,
                *part,
                number=members_per_part,
                steps=-(-total // MAP_SHARE),
                batch_size=setup.batch_size,
                key=key,
                dtype=setup.dtype,
            )
            for part, key in zip(parts, keys, strict=True)
        ]
        with full_target.precision():
            return jnp.concatenate(networks)

    identity = partial(setup.identity, full_target, "given" if folds is None else "found")
    with setup.stages.held():
        points = np.asarray(
            setup.stages.networks(setup.members, full_target, identity, starting_networks)
        )
        one_stage = likelihood == setup.likelihood and folds is None
        first_targets = (
            [full_target]
            if one_stage
            else [setup.make_target(likelihood, X=part_X, y=part_y) for part_X, part_y in parts]
        )
        targets = [
            each.starting_at(point)
            for each, point in zip(first_targets * members_per_part, points, strict=True)
        ]
        if one_stage:
            posteriors = setup.trained(targets, (), key=final_key, steps=total, stage=FINAL_STAGE)
            return TrainedMembers(posteriors, sharpness)
        half = max(1, total // 2)
        first_stage = LOW_NOISE_STAGE if folds is None else HELD_OUT_STAGE
        options = setup.options | setup.stages.options(first_stage)
        halfway = tuple(fit_seeds(targets, setup.method, key=first_key, steps=half, **options))
        if halfway[0].training.unfinished:
            return TrainedMembers(halfway, sharpness)
        if folds is not None:
            sharpness = folds.sharpness(
                halfway, setup.network, setup.likelihood, X, y, key=first_key
            )
        posteriors = setup.trained(
            [full_target] * setup.members,
            halfway,
            key=final_key,
            steps=max(1, total - half),
            stage=FINAL_STAGE,
        )
        return TrainedMembers(posteriors, sharpness)


def _chains_from_fitted_networks(
    setup: _Setup, full_target: Target, batch_size: int | None
) -> tuple[Posterior, ...]:
    """Run chains that start at networks which maximise the posterior, with the noise learned: each at its own."""
    fit_key, key = jax.random.split(setup.key)

    def starting_networks() -> Float[Array, "m d"]:
        with full_target.precision():
            ensemble = DeepEnsemble(members=setup.members)
            return maximised(full_target, ensemble, setup.steps, batch_size, fit_key)[-1]

    with setup.stages.held():
        identity = partial(setup.identity, full_target, "fitted")
        points = setup.stages.networks(setup.members, full_target, identity, starting_networks)
        targets = [full_target.starting_at(point) for point in np.asarray(points)]
        steps = setup.method.default_steps()
        return setup.trained(targets, (), key=key, steps=steps, stage=FINAL_STAGE)


def is_multimodal(network: Network, dim: int) -> bool:
    """Return whether a posterior over `dim` coordinates has several modes, and is small enough for several members."""
    return len(network.layers) > 1 and dim < LARGE


def as_method(method: Method | str, dim: int, draws: int) -> Method:
    """Return a method, given itself or its name; by name, with the generator and scales that networks need."""
    makers = {name: partial(make, dim) for name, make in named_methods().items()}
    makers["gpvi"] = partial(default_gpvi, dim, draws)
    return general_method(method, makers)


def named_methods() -> dict[str, Callable[[int], Method]]:
    """Return, by name, functions that make a method for a target of `dim` coordinates."""
    makers = {hyphenated(kind.__name__): _maker(kind) for kind in METHODS}
    return makers | {"gpvi": default_gpvi} | {a: makers[b] for a, b in SHORT_NAMES.items()}


def default_prior(method: Method) -> Prior:
    """Return the prior that suits a method.

    Methods that average over the posterior get a prior wide enough for functions that bend several times over the data.
    Those that fit a family of densities need one that lets them drop units (see `Sparse`); chains do not. A few
    particles, each near a mode, would follow the noise of the data: they get a narrower prior. Microcanonical chains
    are for several narrow layers; N(0, 1) is usual there.
    """
    if method.generative:
        return Sparse()
    if isinstance(method, MCLMC):
        return StandardNormal()
    return FanIn(gain=2.0, bias=2.0) if method.full_data else FanIn()


def _maker(kind: type) -> Callable[[int], Method]:
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}

    def make(dim: int) -> Method:
        options: dict[str, Any] = {}
        if "generator" in fields:
            options["generator"] = generator(dim)
        if fields.get("particles", 0) is None:
            options["particles"] = DRAWS
        if {"generator", "critic"} <= fields.keys():
            critic = dataclasses.replace(fields["critic"], critic_steps=CRITIC_STEPS, size=None)
            options |= {"critic": critic, "learning_rate": CRITIC_LEARNING_RATE}
        return kind(**options)

    return make


def _fixed_sharpness(sharpness: float | str) -> float | None:
    """Return the sharpness; None if it is to be found."""
    if isinstance(sharpness, str):
        require_choice(sharpness, ("auto",), "sharpness")
        return None
    require_positive("sharpness", sharpness, "1 leaves probabilities as they are.")
    return float(sharpness)


def _members(members: int | str, several: bool) -> int:
    if isinstance(members, str):
        require_choice(members, ("auto",), "members")
        return MEMBERS if several else 1
    require_count("members", members, "1 is a single posterior, 'auto' the usual number.")
    return int(members)


def _draws(members: int, size: int, dim: int, start: Sequence[Posterior]) -> int:
    """Return the draws of GPVI in a step: more if rows and weights are few; a continued fit keeps its number."""
    if start:
        return getattr(start[0].method, "particles", DRAWS)
    if members == 1:
        return DRAWS
    return min(DRAWS, max(1, min(BATCH // size, CHEAP // dim)) * MEMBER_DRAWS)


def _batch_size(batch_size: int | str | None, method: Method, rows: int) -> int | None:
    if isinstance(batch_size, str):
        require_choice(batch_size, ("auto",), "batch_size")
        return None if method.full_data or rows <= BATCH else BATCH
    if batch_size is None:
        return None
    require_count("batch_size", batch_size, "None is all data.")
    return min(int(batch_size), rows)


def _warn_unless_standardised(values: np.ndarray, name: str) -> None:
    advice = standardisation_advice(values, name)
    if advice is not None:
        warn(advice, TrainingWarning)
