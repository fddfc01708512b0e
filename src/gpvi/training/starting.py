"""Where training begins: the coordinates in which a posterior is trained, and the first state of a method there."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.diagnostics.missing_mass import FromStart
from gpvi.methods import Method
from gpvi.methods.base import Learner, State
from gpvi.posterior.posterior import Posterior
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.preflight import rounded
from gpvi.targets.target import Target
from gpvi.training.checkpoint import Start

WHITENED_DIMENSIONS = 1_000
"""Up to this dimension `init="auto"` looks for a Gaussian to start from; its dense scale has d² entries."""


def keeps_its_coordinates(target: Target) -> bool:
    """Whether `init="auto"` looks for no Gaussian to start from."""
    return target.draws_its_start or target.dim > WHITENED_DIMENSIONS


def searches(init: Any, target: Target) -> bool:
    """Whether a Gaussian to start from is looked for."""
    return isinstance(init, str) and not (init == "auto" and keeps_its_coordinates(target))


def started(target: Target, method: Method, init: Any, *, key: PRNGKeyArray) -> Start:
    """The coordinates to train in, and how they were found."""
    if isinstance(init, Posterior):
        return Start(init.affine, "continued from a posterior", init.training.evidence)
    if not searches(init, target):
        at = target.starting_points(1, key=key)[0] if target.draws_its_start else target.initial
        scale = Affine.identity(target.dim, target.dtype).scale
        return Start(Affine(at, scale), "the target's own coordinates, around its initial point")
    from gpvi import initialization as start

    assert isinstance(init, str)
    find = {"auto": start.automatic, "variational": start.variational, "laplace": start.laplace}[
        init
    ]
    some, log_density, seen = target.sample(), target.log_density, ""
    if some is not None:
        log_density = jax.tree_util.Partial(log_density, batch=some)
        seen = f", of {jax.tree.leaves(some)[0].shape[0]:,} of {target.size:,} data"
    gaussian = find(log_density, target.initial, key=key)
    scale = np.asarray(gaussian.scale, np.float64)
    if method.coordinates == "diagonal":
        scale = (np.linalg.inv(scale) ** 2).sum(0) ** -0.5
    affine = Affine(jnp.asarray(gaussian.location, target.dtype), jnp.asarray(scale, target.dtype))
    report = gaussian.report
    if some is not None:
        return Start(affine, f"{report}{seen}")
    whole = FromStart.of(Whitened(target, affine), report.log_evidence, report.log_evidence_se)
    return Start(affine, str(report), whole)


def first_state(
    method: Method,
    density: Whitened,
    optimizer: optax.GradientTransformation,
    init: Any,
    *,
    key: PRNGKeyArray,
) -> State:
    """The state that training begins with: fresh, or with the model of a posterior or the particles that `init` is."""
    state = method.init(density, optimizer, key=key)
    if isinstance(init, Posterior):
        learner = Learner.start(init.carrier(), optimizer, density.dtype)
        return State(learner, state.auxiliary if init.auxiliary is None else init.auxiliary)
    if isinstance(init, jax.Array | np.ndarray):
        return _from_points(init, state, density)
    return state


def _from_points(
    points: Float[Array | np.ndarray, "n d"], state: State, density: Whitened
) -> State:
    """The state with its particles at the given points, in the coordinates of training."""
    positions = jax.vmap(density.affine.inverse)(jnp.asarray(points, density.dtype))
    model = eqx.tree_at(lambda model: model.positions, state.learner.model, positions)
    return state._replace(learner=state.learner._replace(model=model))


def coarseness(target: Target, start: Start) -> tuple[str, ...]:
    """Notes where the target's float type is too coarse for its posterior."""
    log_p = None if start.evidence is None else start.evidence.log_density
    return rounded(start.affine.location, start.affine.scale, log_p, lambda: target.names)
