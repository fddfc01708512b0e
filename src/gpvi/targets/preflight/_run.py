"""All checks of a log-density, in order: what tracing shows, then values near the start, then values far away."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.targets.preflight import _checks as checks
from gpvi.targets.preflight._points import along_axes, along_lines, cloud, scales, units
from gpvi.targets.preflight._report import Preflight
from gpvi.targets.preflight._resolution import resolution


def preflight(
    log_density: Callable[..., Array],
    initial: Float[Array, " d"],
    *,
    names: tuple[str, ...],
    key: PRNGKeyArray,
    unscaled: Callable[..., Any] | None = None,
    log_likelihood: Callable[..., Any] | None = None,
    data: PyTree = None,
    finite_in_double: checks.FiniteInDouble | None = None,
) -> Preflight:
    """Check a log-density around a starting point.

    Parameters
    ----------
    log_density
        (d,) → scalar.
    initial
        The starting point.
    names
        The names of the coordinates.
    key
        Draws the points of evaluation.
    unscaled
        The user's own function if `log_density` scales its result. Its shape and dtype are checked.
    log_likelihood, data
        Those of the mini-batch form.
    finite_in_double
        For a model whose coordinates are already unconstrained: tells at which points log p and its gradient are
        finite in float64, or None if that cannot be computed.

    Returns
    -------
    Preflight
        What was found. Later checks are skipped after an error that makes them meaningless.
    """
    dtype = np.dtype(initial.dtype)
    leaves = jax.tree.leaves(data)
    size = leaves[0].shape[0] if leaves else None
    log_density = partial(log_density)  # a bound method of a pytree cannot be hashed by jit
    findings = checks.structure(unscaled or log_density, initial)
    findings += checks.integers(data, dtype)
    report = Preflight(names, dtype, tuple(findings), size)
    if not report.ok:
        return report
    if log_likelihood is not None and size is not None:
        findings += checks.additivity(log_likelihood, initial, data, size)
    findings += checks.determinism(log_density, initial)
    evaluate = jax.jit(
        lambda points: jax.lax.map(jax.value_and_grad(log_density), points, batch_size=64)
    )
    value, gradient = map(np.asarray, jax.jit(jax.value_and_grad(log_density))(initial))
    findings += checks.start(value, gradient, names)
    report = Preflight(
        names,
        dtype,
        tuple(findings),
        size,
        initial=np.asarray(initial),
        value=float(value),
        gradient=gradient,
        scale=np.full(len(names), np.nan),
    )
    if not report.ok:
        return report
    curvature_key, points_key = jax.random.split(key)
    scale = scales(log_density, initial, key=curvature_key)
    difference_key, points_key = jax.random.split(points_key)
    lines_key = jax.random.fold_in(difference_key, 1)
    x = np.asarray(initial, np.float64)
    near = cloud(x, scale, key=points_key)
    move = np.asarray(jax.random.normal(difference_key, x.shape), np.float64) * units(scale)
    move *= 3 * float(np.finfo(dtype).eps) ** (1 / 3)
    parts = [
        near,
        along_axes(x, scale),
        np.stack([x + move, x - move]),
        along_lines(x, scale, key=lines_key),
    ]
    values, slopes = map(np.asarray, evaluate(jnp.asarray(np.concatenate(parts), dtype)))
    around, far, pair, lines = np.split(values, np.cumsum([len(part) for part in parts])[:-1])
    near_slopes = slopes[: len(near)]
    findings += checks.finiteness(around, near_slopes, near, x, names, dtype, finite_in_double)
    findings += checks.ignored(log_density, initial, np.vstack([gradient, slopes]), names)
    findings += checks.flat_direction(near_slopes, scale, names)
    findings += checks.flipped_sign(float(value), lines) or checks.tails(far, names)
    findings += resolution(float(value), scale, dtype, names)
    findings += checks.differences(float(value), pair, gradient, move)
    return dataclasses.replace(report, findings=tuple(findings), scale=scale)
