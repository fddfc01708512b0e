r"""Discrete sites of a NumPyro model: summed out of the log-density, and drawn again given everything else.

log p(θ, y) = log Σ_z p(θ, z, y) by funsor's variable elimination, as `numpyro.infer.MCMC` does it; for a chain of
states this is the forward recursion. The states are then drawn from p(z | θ, y), those of a chain jointly.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from gpvi.errors import require_extra

Model = Callable[..., Any]
PREVIOUS = "_PREV_"
"""What NumPyro puts before the name of a site of an earlier step of a `scan`."""


def require_funsor(states: str) -> None:
    """Raise `NotAvailableError` unless funsor is installed; `states` names the sites that need it."""
    require_extra("discrete", "funsor", f"the sum over discrete latents ({states})")


def plain(model: Any) -> Model:
    """The model without the handler `enum`, if its user has applied it: the target applies it itself."""
    imported = sys.modules.get("numpyro.contrib.funsor")
    while imported is not None and isinstance(model, imported.enum) and model.fn is not None:
        model = model.fn
    return model


def summed_log_density(
    model: Model, args: tuple, kwargs: Mapping[str, Any], u: Mapping[str, Array], depth: int
) -> Scalar:
    """log Σ_z p(θ(u), z, y) + log|det θ′(u)|, for a model whose plates take the last `depth` axes."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.infer.util import potential_energy

    enumerated = enum(config_enumerate(model), first_available_dim=-depth - 1)
    return jnp.asarray(-potential_energy(enumerated, args, kwargs, u, enum=True))


def drawn_states(
    model: Model,
    args: tuple,
    kwargs: Mapping[str, Any],
    values: Mapping[str, Array],
    names: tuple[str, ...],
    depth: int,
    *,
    key: PRNGKeyArray,
) -> dict[str, Array]:
    """A joint draw of the discrete sites with these names, given the values of all others."""
    from numpyro.handlers import substitute
    from numpyro.infer import Predictive

    given = substitute(model, data=dict(values))
    chain = _chain(given, args, kwargs, depth)
    if chain is not None:
        return {chain.name: _drawn_chain(chain, key=key)}
    infer = Predictive(
        model, dict(values), infer_discrete=True, batch_ndims=0, return_sites=list(names)
    )
    return infer(key, *args, **kwargs)


class _Chain(NamedTuple):
    """The states z_1 … z_T of a `scan`, by their factors given all else; any plates come first."""

    name: str
    first: Float[Array, "... k"]
    """log p(z_1, y_1)."""
    steps: Float[Array, "t ... k k"]
    """log p(z_t, y_t | z_{t−1}) of the T − 1 steps that follow."""


def _chain(model: Model, args: tuple, kwargs: Mapping[str, Any], depth: int) -> _Chain | None:
    """The chain of a model whose only discrete site lies in a `scan`; None if no discrete site lies in one.

    NumPyro's `infer_discrete` does not cover `scan`. Its enumerated trace does: there the first state is the site
    `_PREV_z`, and `z` has an axis of time.
    """
    import funsor
    from numpyro.contrib.funsor import config_enumerate, enum, plate_to_enum_plate
    from numpyro.contrib.funsor import trace as named_trace

    with plate_to_enum_plate():
        enumerated = enum(config_enumerate(model), first_available_dim=-depth - 1)
        trace = named_trace(enumerated).get_trace(*args, **kwargs)
    sampled = {name: site for name, site in trace.items() if site["type"] == "sample"}
    states = {name for name, site in sampled.items() if _is_state(site)}
    before = next((name for name in states if name.startswith(PREVIOUS)), None)
    if before is None:
        return None
    name = before.removeprefix(PREVIOUS)
    if states != {before, name}:
        raise NotImplementedError(
            "a scan over one discrete site, which depends on the state before it, can be the only place of discrete "
            "sites: join several into one, or write the scan as a loop over numpyro.contrib.funsor.markov"
        )
    frames = sorted(sampled[before]["cond_indep_stack"], key=lambda frame: frame.dim)
    axes = [frame.name for frame in frames] + [before, name]
    first, steps = funsor.Number(0.0), funsor.Number(0.0)
    for site in sampled.values():
        factor = funsor.to_funsor(
            site["fn"].log_prob(site["value"]),
            output=funsor.Real,
            dim_to_name=site["infer"]["dim_to_name"],
        )
        times = [axis for axis in factor.inputs if axis.startswith("_time")]
        others = frozenset(factor.inputs) - {*axes, *times}
        if name in factor.inputs:
            steps = steps + factor.reduce(funsor.ops.add, others)
        elif before in factor.inputs and not times:
            first = first + factor.reduce(funsor.ops.add, others)
    (time,) = (axis for axis in steps.inputs if axis.startswith("_time"))
    sizes = {**first.inputs, **steps.inputs}

    def array(total: Any, axes: list[str]) -> Array:
        named = OrderedDict((axis, sizes[axis]) for axis in axes)
        zeros = jnp.zeros([size.size for size in named.values()])
        return (funsor.Tensor(zeros, named) + total).align(tuple(axes)).data

    return _Chain(name, array(first, axes[:-1]), array(steps, [time, *axes]))


def _drawn_chain(chain: _Chain, *, key: PRNGKeyArray) -> Int[Array, "t ..."]:
    """A draw of all states: likelihoods of what follows backward, states forward."""

    def backward(later: Array, step: Array) -> tuple[Array, Array]:
        scores = step + later[..., None, :]
        return jax.nn.logsumexp(scores, -1), scores

    none = jnp.zeros_like(chain.first)
    later, scores = jax.lax.scan(backward, none, chain.steps, reverse=True)
    first_key, key = jax.random.split(key)
    first = jax.random.categorical(first_key, chain.first + later)

    def forward(state: Array, step: tuple[Array, PRNGKeyArray]) -> tuple[Array, Array]:
        scores, key = step
        own = jnp.take_along_axis(scores, state[..., None, None], -2)[..., 0, :]
        state = jax.random.categorical(key, own)
        return state, state

    _, rest = jax.lax.scan(forward, first, (scores, jax.random.split(key, len(chain.steps))))
    return jnp.concatenate([first[None], rest])


def _is_state(site: Mapping[str, Any]) -> bool:
    return not site["is_observed"] and site["fn"].support.is_discrete
