r"""Posteriors over networks that predict well: fitted networks to start from, noise held low, several members.

One generator from a random network holds one mode, and may settle where noise explains what the network should (see
`gpvi.bnn._starts`). So, unless another method is asked for,

1. each of `MEMBERS` networks climbs log p(y | w) + log p(w) first;
2. a generator is trained from each, side by side, for half of the steps with the noise held low, or, where y is a
   class, with a part of the data left out that is another one for each (see `gpvi.bnn._cross_fitting`);
3. they go on with the noise free and all data, and predict as their even mixture, classes to the power that suits the
   labels that were left out.
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
from gpvi.bnn._cross_fitting import Crossing, can_cross
from gpvi.bnn._starts import fitted_networks, held
from gpvi.bnn.generators import DRAWS, LARGE, generator, small
from gpvi.bnn.likelihoods import Gaussian, Heteroscedastic, Likelihood, as_likelihood
from gpvi.bnn.model import checked_inputs, require_network, target
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.priors import FanIn, Prior, Sparse
from gpvi.bnn.standardisation import other_units
from gpvi.errors import NotAvailableError, TrainingWarning, warn
from gpvi.methods import GPVI, METHODS, Method
from gpvi.posterior.posterior import Posterior
from gpvi.progress import Meter
from gpvi.specs import (
    hyphenated,
    require_choice,
    require_count,
    require_key,
    require_positive,
    resolve,
)
from gpvi.targets.stream import Stream
from gpvi.targets.target import Target
from gpvi.training.arguments import check_watching, checked_mesh
from gpvi.training.checkpoint import asked
from gpvi.training.fit import fit as fit_one
from gpvi.training.fit import fit_seeds

BATCH = 128
"""batch_size="auto"."""
CHEAP = 4_000
"""Weights of a network beyond which a step has no more draws for few data than for many."""
MEMBERS, MEMBER_DRAWS = 5, 8
"""members="auto" of GPVI, and the draws of each in a step; where the data do not fill a batch, more, up to `DRAWS`."""
CRITIC_STEPS, CRITIC_PACE = 10, 1e-3
"""Steps of the critic to one of the generator it moves, and the generator's learning rate. With one step and 3e-3 the
critic still points where the networks were when they have passed the optimum, and sends them away. Here scores leap
from batch to batch: a critic in units of their size ends too wide, or does not find a line (R² −53,000, 0.76 and 0.94
where this one has 0.95, 0.94 and 0.96)."""
CLIMB = 5
"""GPVI starts at networks that climbed for a fifth of its steps (see `gpvi.bnn._starts`)."""


def fit(
    network: Network,
    likelihood: Likelihood | str,
    X: Any,
    y: Any,
    *,
    key: PRNGKeyArray,
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
    """The predictive distribution of a network of your own, trained as the scikit-learn estimators train theirs.

    Parameters
    ----------
    network, likelihood, X, y, temperature, dtype: as for `gpvi.bnn.target`. Priors and starts are made for inputs and
        outputs of mean 0 and standard deviation 1: standardise both.
    prior: "auto" is `Sparse()` for methods that draw as many networks as they like, `FanIn(2, 2)` for Markov chains,
        and `FanIn()` for methods of a few particles.
    method: "gpvi", another method by its name ("nuts", "mfvi", "ensemble", …), or an object with its options.
    members: posteriors trained side by side from different starts, which predict as their mixture. "auto" is 5 for
        "gpvi", and 1 for any other method, from 20,000 weights on, and without hidden layers.
    steps: of training; the method's own number by default.
    batch_size: data in each step; "auto" is 128, or all for methods that need all. None is all.
    sharpness: the exponent of the predicted probabilities of classes, see `gpvi.bnn.sharpened`; 1 leaves them as the
        networks' average has them. "auto" lets labels decide that members of "gpvi" do not see in the first half of
        their steps, and is 1 for any other method, from 20,000 weights on, without hidden layers, and for few data.
    checkpoint, every: a directory that keeps the run, and the steps between two saves, as for `gpvi.fit`: the same call
        goes on from there, bit for bit as if it had never stopped, and a finished run trains nothing. Of "gpvi" the
        directory holds the networks that were fitted first, and the stages of training in `held` or `crossed` and
        in `free`; fitting those networks is not saved half-way. Ctrl-C returns what there is, in whichever stage.
    mesh: the devices to train on, as for `gpvi.fit`; several members share them out, as many as divide their number.

    The posteriors themselves are the `members` of what is returned.
    """
    require_network(network)
    require_key(key)
    check_watching((), checkpoint, every)
    if isinstance(X, Stream) or isinstance(y, Stream):
        raise NotAvailableError(
            "gpvi.bnn.fit fits networks first, with all data in memory, and these are streamed. Use gpvi.fit("
            "gpvi.bnn.target(…), gpvi.bnn.method(dim), batch_size=…), and gpvi.bnn.Predictive of what it returns."
        )
    likelihood, inputs = as_likelihood(likelihood), checked_inputs(X, network)
    outputs = likelihood.prepare(y, network.outputs(inputs))
    if np.issubdtype(inputs.dtype, np.floating):
        _warn_of_units(inputs, "X")
    if isinstance(likelihood, Gaussian | Heteroscedastic):
        _warn_of_units(outputs, "y")
    found = trained(
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
    return Predictive(found.posteriors, network, likelihood, sharpness=found.sharpness)


class Trained(NamedTuple):
    """The posteriors of all members, and the exponent of the classes' probabilities that their mixture predicts."""

    posteriors: tuple[Posterior, ...]
    sharpness: float


def trained(
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
) -> Trained:
    """The posteriors of all members, each going on from where it starts."""
    given_sharpness = _sharpness(sharpness)
    stages = Stages(None, None) if stages is None else stages
    dim = network.size + len(likelihood.extra(network.outputs(X)))
    has_modes = len(network.layers) > 1 and dim < LARGE
    number = len(start) or _members(members, has_modes and _is(method, "gpvi"))
    chosen = as_method(method, dim, _draws(number, len(X), dim, start))
    weights = default_prior(chosen) if _is(prior, "auto") else prior
    given = partial(target, network, prior=weights, temperature=temperature, dtype=dtype)
    if steps is None:
        steps = chosen.default_steps()
    require_count("steps", steps, "None is the method's own number.")
    total = int(steps)
    size = _batch_size(batch_size, chosen, len(X))
    options: dict[str, Any] = {
        "batch_size": size,
        "progress": progress,
        "mesh": checked_mesh(mesh, chosen),
    }
    whole = given(likelihood, X=X, y=y)
    fixed = 1.0 if given_sharpness is None else given_sharpness
    if start or not has_modes or not isinstance(chosen, GPVI):
        options |= stages.options("")
        found = _side_by_side([whole] * number, chosen, start, key=key, steps=total, **options)
        return Trained(found, fixed)

    climb_key, early_key, free_key = jax.random.split(key, 3)
    first, crossing, parts = held(likelihood, y), None, [(X, y)]
    if given_sharpness is None and can_cross(likelihood, X, y, number):
        crossing = Crossing.of(y, number, key=jax.random.fold_in(key, 3))
        parts = [(X[rows], y[rows]) for rows in crossing.seen]
    alike = number // len(parts)
    early = options | stages.options("held" if crossing is None else "crossed")
    free = options | stages.options("free")

    def fitted() -> Float[Array, "m d"]:
        keys = [climb_key] if crossing is None else jax.random.split(climb_key, number)
        climb = partial(fitted_networks, network, first, weights, batch_size=size, dtype=dtype)
        found = [
            climb(*part, number=alike, steps=-(-total // CLIMB), key=own)
            for part, own in zip(parts, keys, strict=True)
        ]
        with whole.precision():
            return jnp.concatenate(found)

    def who() -> dict[str, str]:
        own = {"members": repr(number), "sharpness": "given" if crossing is None else "found"}
        return own | asked([whole], chosen, total, size, key)

    with stages.held():
        points = np.asarray(stages.networks(number, whole, who, fitted))
        one_stage = first == likelihood and crossing is None
        begun = [whole] if one_stage else [given(first, X=own, y=of) for own, of in parts]
        climbed = [each.starting_at(at) for each, at in zip(begun * alike, points, strict=True)]
        if one_stage:
            alone = _side_by_side(climbed, chosen, (), key=free_key, steps=total, **free)
            return Trained(alone, fixed)
        half = max(1, total // 2)
        spread = tuple(fit_seeds(climbed, chosen, key=early_key, steps=half, **early))
        if spread[0].training.unfinished:
            return Trained(spread, fixed)
        if crossing is not None:
            fixed = crossing.sharpness(spread, network, likelihood, X, y, key=early_key)
        rest = max(1, total - half)
        ended = _side_by_side([whole] * number, chosen, spread, key=free_key, steps=rest, **free)
        return Trained(ended, fixed)


def _side_by_side(
    targets: Sequence[Target], method: Method, start: Sequence[Posterior], **options: Any
) -> tuple[Posterior, ...]:
    """The posteriors of several targets of one form, going on from others where there are any."""
    if len(targets) > 1:
        return tuple(fit_seeds(targets, method, init=start or "auto", **options))
    return (fit_one(targets[0], method, init=start[0] if start else "auto", **options),)


def as_method(given: Method | str, dim: int, draws: int) -> Method:
    """A method from itself or its name, with the generator and scales that networks need."""
    makers = {name: partial(make, dim) for name, make in named_methods().items()}
    makers["gpvi"] = partial(small, dim, draws)
    return resolve(given, makers, "method", Method)


def named_methods() -> dict[str, Callable[[int], Method]]:
    """Functions that make a method for a target of `dim` coordinates, by name."""
    makers = {hyphenated(kind.__name__): _maker(kind) for kind in METHODS}
    short = {"mfvi": "mean-field-vi", "ensemble": "deep-ensemble"}
    return makers | {"gpvi": small} | {a: makers[b] for a, b in short.items()}


def default_prior(method: Method) -> Prior:
    """Wide enough for functions that bend several times over the data, for methods that average over it all.

    Those that fit a family of densities need a prior that lets them drop units (see `Sparse`); chains find the way
    themselves. A few particles, each near a mode, would follow the noise of the data: they get a narrower one.
    """
    if method.generative:
        return Sparse()
    return FanIn(gain=2.0, bias=2.0) if method.full_data else FanIn()


def _maker(kind: type) -> Callable[[int], Method]:
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}

    def make(dim: int) -> Method:
        narrow = {"generator": generator(dim)} if "generator" in fields else {}
        fewer = {"particles": DRAWS} if fields.get("particles", 0) is None else {}
        ahead: dict[str, Any] = {}
        if {"generator", "critic"} <= fields.keys():
            critic = dataclasses.replace(fields["critic"], critic_steps=CRITIC_STEPS, size=None)
            ahead = {"critic": critic, "learning_rate": CRITIC_PACE}
        return kind(**narrow, **fewer, **ahead)

    return make


def _sharpness(given: float | str) -> float | None:
    """None where it is to be found."""
    if isinstance(given, str):
        require_choice(given, ("auto",), "sharpness")
        return None
    require_positive("sharpness", given, "1 leaves probabilities as they are.")
    return float(given)


def _members(given: int | str, several: bool) -> int:
    if isinstance(given, str):
        require_choice(given, ("auto",), "members")
        return MEMBERS if several else 1
    require_count("members", given, "1 is a single posterior, 'auto' the usual number.")
    return int(given)


def _draws(members: int, size: int, dim: int, start: Sequence[Posterior]) -> int:
    """Draws of GPVI in a step: more where data and weights are few, and cheap; a continued fit keeps its number."""
    if start:
        return getattr(start[0].method, "particles", DRAWS)
    if members == 1:
        return DRAWS
    return min(DRAWS, max(1, min(BATCH // size, CHEAP // dim)) * MEMBER_DRAWS)


def _batch_size(given: int | str | None, method: Method, size: int) -> int | None:
    if isinstance(given, str):
        require_choice(given, ("auto",), "batch_size")
        return None if method.full_data or size <= BATCH else BATCH
    if given is None:
        return None
    require_count("batch_size", given, "None is all data.")
    return min(int(given), size)


def _warn_of_units(values: np.ndarray, name: str) -> None:
    advice = other_units(values, name)
    if advice is not None:
        warn(advice, TrainingWarning)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name
