"""What the trace of a NumPyro model says of its sites, and which sites are refused."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpvi.errors import InputError, brief

Sites = Mapping[str, Mapping[str, Any]]
"""A trace: what NumPyro knows of each site, by name."""


class Latent(NamedTuple):
    """A continuous latent site: its name, the shape of u, and the axes of u along subsampled plates (negative)."""

    name: str
    shape: tuple[int, ...]
    plate_axes: tuple[tuple[str, int], ...]


class Plate(NamedTuple):
    """A plate that the model subsamples."""

    name: str
    size: int
    subsample: int


def watching_keys(model: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    """The model; while it runs, the types of statements that draw a key of their own are added to `seen`."""
    from numpyro.primitives import Messenger

    class Watch(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] == "prng_key":
                seen.add(msg["type"])

    return Watch(model)


def unconstrained(name: str, site: Mapping[str, Any]) -> Array:
    """The unconstrained value u = T^{-1}(θ) of a latent site."""
    from numpyro.distributions import biject_to

    try:
        return biject_to(site["fn"].support).inv(site["value"])
    except NotImplementedError as error:
        raise InputError(
            f"site {name!r} has support {site['fn'].support}, which no bijection from R^m covers. "
            "Use another parametrisation, or one of numpyro.infer.reparam."
        ) from error


def is_latent(site: Mapping[str, Any]) -> bool:
    """Whether a site is an unknown with a density on R^m."""
    return _is_unknown(site) and not site["fn"].support.is_discrete


def is_state(site: Mapping[str, Any]) -> bool:
    """Whether a site is a discrete unknown."""
    return _is_unknown(site) and site["fn"].support.is_discrete


def is_data(site: Mapping[str, Any]) -> bool:
    """Whether a site is an observation. A `numpyro.factor` is not: it is an observed site with an empty value."""
    return site["type"] == "sample" and site["is_observed"] and np.size(site["value"]) > 0


def is_deterministic(site: Mapping[str, Any]) -> bool:
    """Whether a site is a `numpyro.deterministic` with a value."""
    return site["type"] == "deterministic" and site["value"] is not None


def subsampled_plates(trace: Sites) -> tuple[Plate, ...]:
    """The plates that the model subsamples, in its order."""
    return tuple(
        Plate(name, *site["args"])
        for name, site in trace.items()
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
    )


def plate_axes(site: Mapping[str, Any], names: set[str]) -> dict[str, int]:
    """The axes of a site's batch shape along the plates with these names."""
    frames = site.get("cond_indep_stack", ())
    return {frame.name: frame.dim for frame in frames if frame.name in names}


def plate_depth(trace: Sites) -> int:
    """How many axes at the end of batch shapes belong to plates."""
    return max(
        (-frame.dim for site in trace.values() for frame in site.get("cond_indep_stack", ())),
        default=0,
    )


def axis_names(trace: Sites) -> dict[str, tuple[str, ...]]:
    """The names of the axes of every site: that of the plate an axis runs along, or else `site_dim_i`."""
    sizes: dict[str, set[int]] = {}
    for site in trace.values():
        for frame in site.get("cond_indep_stack", ()):
            sizes.setdefault(frame.name, set()).add(frame.size)
    usable = {
        name
        for name, lengths in sizes.items()
        if len(lengths) == 1 and trace.get(name, {"type": "plate"})["type"] == "plate"
    }
    dims = {}
    for name, site in trace.items():
        if site["type"] not in ("sample", "deterministic") or site["value"] is None:
            continue
        shape = np.shape(site["value"])
        names = [f"{name}_dim_{i}" for i in range(len(shape))]
        event = site["fn"].event_dim if site["type"] == "sample" else 0
        for frame in site.get("cond_indep_stack", ()):
            axis = len(shape) - event + frame.dim
            if frame.name in usable and 0 <= axis < len(shape) and shape[axis] == frame.size:
                names[axis] = frame.name
        dims[name] = tuple(names)
    return dims


def check_sites(trace: Sites) -> None:
    """Refuse sites without a prior or a density."""
    from numpyro.distributions import Delta

    for name, site in trace.items():
        if site["type"] == "mutable":
            raise InputError(
                f"site {name!r} is a numpyro.mutable, which has no prior. Give it one with numpyro.sample "
                "(ImproperUniform for none), or pass its value as an argument."
            )
        if is_latent(site) and isinstance(site["fn"], Delta):
            raise InputError(
                f"site {name!r} has a Delta distribution, which has no density: use numpyro.deterministic."
            )


def check_states(trace: Sites) -> None:
    """Refuse discrete unknowns that NumPyro cannot sum out exactly."""
    states = {name: site for name, site in trace.items() if is_state(site)}
    for name, site in states.items():
        kind = type(site["fn"]).__name__
        if not site["fn"].has_enumerate_support:
            raise InputError(
                f"site {name!r} is a discrete latent ({kind}) with infinitely many values, which cannot be summed out. "
                "Use a continuous or a bounded distribution, or one with the sum in closed form "
                "(NegativeBinomial2 is a Poisson with a Gamma rate). If it is data, pass it as obs=."
            )
        if site["infer"].get("enumerate", "parallel") != "parallel":
            raise InputError(
                f"site {name!r} is marked infer={{'enumerate': {site['infer']['enumerate']!r}}}; discrete latents are "
                "summed out in parallel: leave the mark out."
            )
    plates = subsampled_plates(trace)
    if states and plates:
        raise InputError(
            f"the model subsamples plate {plates[0].name!r} and has discrete latents ({', '.join(states)}), whose sum "
            "cannot be estimated from a part of the data. Leave subsample_size out, or use "
            "numpyro.distributions.MixtureSameFamily."
        )
    for name, site in trace.items() if states else ():
        if site["type"] != "sample":
            continue
        scale = site["scale"]
        if scale is not None and not (isinstance(scale, int | float) and scale == 1):
            raise InputError(
                f"site {name!r} is scaled (numpyro.handlers.scale), and the model has discrete latents: the scaled sum "
                "is not that of a model. Leave the handler out."
            )
        _check_plated(name, site)


def _check_plated(name: str, site: Mapping[str, Any]) -> None:
    """Refuse an axis that no plate declares, which enumeration would take for one of its own."""
    event = site["fn"].event_dim
    value = np.shape(site["value"])
    shape = jnp.broadcast_shapes(tuple(site["fn"].batch_shape), value[: len(value) - event])
    declared = {frame.dim for frame in site["cond_indep_stack"]}
    for axis in range(-len(shape), 0):
        scanned = axis == -len(shape) and site.get("_control_flow_done", False)
        if shape[axis] > 1 and axis not in declared and not scanned:
            raise InputError(
                f"site {name!r} has an axis of length {shape[axis]} outside of any plate, and the model has discrete "
                "latents: put it into a numpyro.plate, or declare the axis with .to_event(1)."
            )


def check_terms(trace: Sites) -> None:
    """Refuse an observed site that compares every datum with the mean of every other one, as (N, 1) against (N,) does.

    The sum over such pairs looks like any other. Allowed are data repeated along a plate, and a single value that
    broadcasts.
    """
    for name, site in trace.items():
        if not is_data(site):
            continue
        if not isinstance(site["value"], jax.Array) and not _is_numeric(site["value"]):
            raise InputError(f"site {name!r} observes {brief(site['value'])}, which is no number.")
        fn_shape = (*site["fn"].batch_shape, *site["fn"].event_shape)
        shape = jnp.broadcast_shapes(fn_shape, np.shape(site["value"]))
        value, means = (_padded(each, len(shape)) for each in (np.shape(site["value"]), fn_shape))
        event = site["fn"].event_dim
        plates = {frame.dim - event for frame in site["cond_indep_stack"]}
        axes = range(-len(shape), 0)
        data = {i for i in axes if value[i] > 1 and (i < -event or means[i] == 1)}
        lengths = {value[i] for i in data - plates}
        if data and any(
            shape[i] > value[i] and (i not in plates or shape[i] in lengths) for i in axes
        ):
            raise InputError(
                f"site {name!r} has a value of shape {np.shape(site['value'])} and a distribution of shape {fn_shape}, "
                f"which broadcast to {shape}: data are paired with the means of others. Give both the same shape "
                "(compare (N, 1) with (N,)), or repeat the data by a numpyro.plate."
            )


def _is_numeric(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _is_unknown(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _padded(shape: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The shape with ones in front, up to this length."""
    return (1,) * (length - len(shape)) + shape
