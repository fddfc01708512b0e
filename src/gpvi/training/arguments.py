"""Argument checks of `gpvi.fit`, before anything is compiled; messages give the value, the reason and the remedy."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import Mesh

from gpvi.errors import InputError, NotAvailableError, brief
from gpvi.generators import Residual, Triangular
from gpvi.methods import Method
from gpvi.parallel.mesh import as_mesh
from gpvi.posterior.posterior import Posterior
from gpvi.specs import is_whole, require_choice, require_count, require_flag
from gpvi.targets.target import Target


def check_arguments(
    target: Target,
    method: Method,
    steps: int | None,
    batch_size: int | None,
    init: Any,
    optimizer: Any = None,
) -> None:
    """Refuse arguments of `fit` that cannot be used."""
    if not isinstance(target, Target):
        raise InputError(
            f"target is {brief(target)}; wrap the log-density: gpvi.Target(log_density, dim=d)."
        )
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise InputError(
            f"optimizer is {brief(optimizer)}; pass an Optax optimizer, such as optax.adam(1e-3), or omit it."
        )
    if steps is not None:
        require_count("steps", steps, "Omit it for the method's own number.")
    if batch_size is not None:
        _check_batch_size(target, batch_size)
    generator = getattr(method, "generator", None)
    if isinstance(generator, Residual | Triangular):
        generator.head_size(target.dim)
    if target.stream is not None:
        _check_stream(target, method, batch_size)
    method.check_run(method.default_steps() if steps is None else int(steps), batch_size)
    if isinstance(init, Posterior):
        _check_continuation(init, method, target)
    elif isinstance(init, jax.Array | np.ndarray):
        _check_points(init, method, target)
    elif init is not None:
        require_choice(init, ("auto", "variational", "laplace"), "init")


def check_watching(callbacks: Any, checkpoint: Any, every: Any, exact: Any = False) -> None:
    """Refuse callbacks that are no functions, `every` without a checkpoint, and `exact` that is no flag."""
    require_flag("exact", exact)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(f"callbacks is {callbacks!r}; pass a list of functions, [f].")
    if every is not None and checkpoint is None:
        raise InputError(
            f"every is {every!r}, but no checkpoint is saved: pass checkpoint=, a directory, or omit every."
        )


def checked_mesh(mesh: Mesh | int | None, method: Method) -> Mesh | None:
    """The mesh of a run."""
    if mesh is not None and method.sequential:
        raise NotAvailableError(
            f"mesh is {mesh}, but {type(method).__name__} follows one path at a time, with nothing to distribute. "
            "Omit mesh, or use another method."
        )
    return as_mesh(mesh)


def _check_batch_size(target: Target, batch_size: Any) -> None:
    if target.size is None:
        raise InputError(
            f"batch_size is {brief(batch_size)}, but the target has no data: use the mini-batch form, "
            "Target(log_likelihood=…, log_prior=…, data=…)."
        )
    if not is_whole(batch_size) or not 1 <= batch_size <= target.size:
        raise InputError(
            f"batch_size is {brief(batch_size)}; it must be between 1 and the {target.size} data."
        )


def _check_stream(target: Target, method: Method, batch_size: int | None) -> None:
    if method.full_data:
        raise NotAvailableError(
            f"{type(method).__name__} needs all data at every step, but these are streamed: use a method that accepts "
            "batches, such as GPVI, SVGD or MeanFieldVI."
        )
    if batch_size is None and target.batch_size is None:
        raise InputError(
            "the data are streamed, so a step cannot use all of them: pass batch_size=, say 128."
        )


def _check_points(points: Any, method: Method, target: Target) -> None:
    n = getattr(method, "particles", None)
    if method.generative or n is None:
        raise NotAvailableError(
            f"init is an array of points, but {type(method).__name__} has no particles to start there. "
            "Use a particle method such as SVGD, or pass Target(initial=point)."
        )
    if np.shape(points) != (n, target.dim) or not np.isfinite(np.asarray(points)).all():
        raise InputError(
            f"init has shape {np.shape(points)}; pass finite points of shape ({n}, {target.dim}), one for each of the "
            f"method's particles={n}."
        )


def _check_continuation(init: Posterior, method: Method, target: Target) -> None:
    if init.method != method:
        raise InputError(
            f"init is a posterior of {init.method}, but the method is {method}. Continue with the same method, "
            "or omit method."
        )
    if init.dim != target.dim:
        raise InputError(
            f"init is a posterior of dimension {init.dim}, but the target has dim={target.dim}. "
            "Continue on a target of the same coordinates."
        )
    if init.dtype != target.dtype:
        raise InputError(
            f"init is a posterior in {init.dtype}, but the target has dtype {target.dtype}. "
            f"Continue with Target(…, dtype={init.dtype.name!r})."
        )


def check_targets(targets: Any) -> None:
    """Refuse anything but a list of targets."""
    if isinstance(targets, str) or not isinstance(targets, Sequence):
        raise InputError(
            f"targets is {brief(targets)}; pass a list, with one target for each seed."
        )


def check_one_form(targets: Sequence[Target]) -> None:
    """Refuse targets that differ in more than their arrays: one program serves all of them."""
    if not targets:
        raise InputError("targets is empty; pass one target for each seed.")
    if any(target.stream is not None for target in targets):
        raise NotAvailableError(
            "targets trained side by side need their data in memory, but these are streamed: call fit for each."
        )

    def form(target: Target) -> tuple:
        leaves = jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf,
            jax.tree.leaves(target),
        )
        return target.dim, target.temperature, target.dtype, target.naming, leaves

    for index, target in enumerate(targets):
        if form(target) != form(targets[0]):
            raise InputError(
                f"targets[{index}] differs from targets[0] in more than the values of data and initial. "
                "Define the functions once, and pass what differs as data."
            )


def served_together(targets: Sequence[Target]) -> list[Target]:
    """The targets, all of one form, with everything but their arrays from the first, so that its trace serves all.

    A target of plain functions is retraced for every fit, since what they close over may have changed.
    """
    check_one_form(targets)
    structure = jax.tree.structure(targets[0])
    return [jax.tree.unflatten(structure, jax.tree.leaves(target)) for target in targets]
