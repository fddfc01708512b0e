r"""Posteriors over networks that predict well: fitted networks to start from, noise held low, several members.

One generator from a random network holds one mode, and may settle where noise explains what the network should (see
`gpvi.bnn.starts`). So, unless another method is asked for,

1. each of `MEMBERS` networks climbs log p(y | w) + log p(w) first;
2. a generator is trained from each, side by side, for half of the steps with the noise held low;
3. they go on with the noise free, and predict as their even mixture.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.bnn.generators import DRAWS, LARGE, generator, small
from gpvi.bnn.likelihoods import Gaussian, Heteroscedastic, Likelihood, as_likelihood
from gpvi.bnn.model import checked_inputs, require_network, target
from gpvi.bnn.networks import Network
from gpvi.bnn.predictive import Predictive
from gpvi.bnn.priors import FanIn, Prior, Sparse
from gpvi.bnn.starts import fitted_networks, held
from gpvi.errors import NotAvailableError, TrainingWarning
from gpvi.fit import fit as fit_one
from gpvi.fit import fit_seeds
from gpvi.methods import GPVI, METHODS, Method
from gpvi.methods.base import Selective
from gpvi.posterior import Posterior
from gpvi.progress import Meter
from gpvi.specs import hyphenated, require_choice, require_count, require_key, resolve
from gpvi.stream import Stream
from gpvi.warning import warn

BATCH = 128
"""batch_size="auto"."""
MEMBERS, MEMBER_DRAWS = 5, 8
"""members="auto" of GPVI, and the draws of each in a step; where the data do not fill a batch, more, up to `DRAWS`."""
CRITIC_STEPS, CRITIC_PACE = 10, 1e-3
"""Steps of the critic to one of the generator it moves, and the generator's learning rate. With one step and 3e-3 the
critic still points where the networks were when they have passed the optimum, and sends them away. Here scores leap
from batch to batch: a critic in units of their size ends too wide, or does not find a line (R² −53,000, 0.76 and 0.94
where this one has 0.95, 0.94 and 0.96)."""
USUAL = 0.1, 10.0
"""Root mean squares of X and y for which priors and starts are made, and steps of training suffice."""
CLIMB = 5
"""GPVI starts at networks that climbed for a fifth of its steps (see `gpvi.bnn.starts`)."""


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
    dtype: DTypeLike | None = None,
    progress: bool | Meter = True,
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

    The posteriors themselves are the `members` of what is returned.
    """
    require_network(network)
    require_key(key)
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
    posteriors = trained(
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
        dtype=dtype,
        progress=progress,
    )
    return Predictive(posteriors, network, likelihood)


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
    dtype: DTypeLike | None = None,
    progress: bool | Meter = True,
    start: Sequence[Posterior] = (),
) -> tuple[Posterior, ...]:
    """The posteriors of all members, each going on from where it starts."""
    dim = network.size + len(likelihood.extra(network.outputs(X)))
    has_modes = len(network.layers) > 1 and dim < LARGE
    number = len(start) or _members(members, has_modes and _is(method, "gpvi"))
    chosen = as_method(method, dim, _draws(number, len(X), start))
    weights = default_prior(chosen) if _is(prior, "auto") else prior
    given = partial(
        target,
        network,
        prior=weights,
        X=X,
        y=y,
        temperature=temperature,
        dtype=dtype,
    )
    if steps is None:
        steps = chosen.default_steps(dim)
    require_count("steps", steps, "None is the method's own number.")
    steps = int(steps)
    options: dict[str, Any] = {
        "batch_size": _batch_size(batch_size, chosen, len(X)),
        "progress": progress,
    }
    targets, init = [given(likelihood)] * number, start or "auto"
    if has_modes and isinstance(chosen, GPVI) and not start:
        climb_key, held_key, key = jax.random.split(key, 3)
        first = held(likelihood, y)
        points = fitted_networks(
            network,
            first,
            weights,
            X,
            y,
            number=number,
            steps=-(-steps // CLIMB),
            batch_size=options["batch_size"],
            key=climb_key,
            dtype=dtype,
        )
        begun = given(first)
        climbed = [begun.starting_at(point) for point in points]
        if first == likelihood:
            targets = climbed
        else:
            half = max(1, steps // 2)
            init = fit_seeds(climbed, chosen, key=held_key, steps=half, **options)
            steps = max(1, steps - half)
    if number > 1:
        return tuple(fit_seeds(targets, chosen, key=key, init=init, steps=steps, **options))
    alone = init if isinstance(init, str) else init[0]
    return (fit_one(targets[0], chosen, key=key, init=alone, steps=steps, **options),)


def as_method(given: Method | str, dim: int, draws: int) -> Method:
    """A method from itself or its name, with the generator and scales that networks need."""
    makers = {name: partial(make, dim) for name, make in named_methods().items()}
    makers["gpvi"] = partial(small, dim, draws)
    return resolve(given, makers, "method", Method)


def named_methods() -> dict[str, Callable[[int], Method]]:
    """What makes a method for a target of so many coordinates, by name."""
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
    return FanIn(gain=2.0, bias=2.0) if isinstance(method, Selective) else FanIn()


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


def _members(given: int | str, several: bool) -> int:
    if isinstance(given, str):
        require_choice(given, ("auto",), "members")
        return MEMBERS if several else 1
    require_count("members", given, "1 is a single posterior, 'auto' the usual number.")
    return int(given)


def _draws(members: int, size: int, start: Sequence[Posterior]) -> int:
    """Of GPVI in a step: few data are cheap, and so is less noise; what goes on keeps its number."""
    if start:
        return getattr(start[0].method, "particles", DRAWS)
    return DRAWS if members == 1 else min(DRAWS, max(1, BATCH // size) * MEMBER_DRAWS)


def _batch_size(given: int | str | None, method: Method, size: int) -> int | None:
    if isinstance(given, str):
        require_choice(given, ("auto",), "batch_size")
        return None if isinstance(method, Selective) or size <= BATCH else BATCH
    if given is None:
        return None
    require_count("batch_size", given, "None is all data.")
    return min(int(given), size)


def _warn_of_units(values: np.ndarray, name: str) -> None:
    size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
    if not USUAL[0] <= size <= USUAL[1]:
        warn(
            f"{name} has a root mean square of {size:.3g}, and priors and starts are made for about 1: standardise it, "
            f"({name} − mean) / standard deviation, and turn predictions back.",
            TrainingWarning,
        )


def _is(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name
