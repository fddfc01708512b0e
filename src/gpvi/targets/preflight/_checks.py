"""The checks of a log-density; each returns what it found."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, subjaxprs
from jaxtyping import Array, Float, PyTree

from gpvi.targets._structure import Fault, paired_data, traced_output
from gpvi.targets.preflight._points import AXES, DISTANCES, LINES, REACHES, units
from gpvi.targets.preflight._report import SHOWN, Finding, Level, listed

GUARD = "guard log, sqrt and division; use log-sum-exp forms where exp overflows."
ROUNDING = {"floor", "ceil", "round", "sign", "argmax", "argmin", "stop_gradient", "sort"}
"""Operations whose gradient is zero, or zero almost everywhere."""

FiniteInDouble = Callable[[Float[np.ndarray, "n d"]], np.ndarray | None]


def structure(function: Callable[..., Any], x: Float[Array, " d"]) -> list[Finding]:
    """What tracing shows: whether the function can be traced at all, and what it returns."""
    output = traced_output(function, x.size, np.dtype(x.dtype))
    if isinstance(output, Fault):
        return [Finding("error", output.what, output.remedy)]
    if jnp.finfo(output.dtype).eps > jnp.finfo(x.dtype).eps:
        return [
            Finding(
                "warning",
                f"the log-density of a {x.dtype} vector is {output.dtype}",
                "Something inside reduces its precision: look for astype, float32 data or constants, and remove it.",
            )
        ]
    return []


def integers(data: PyTree, dtype: np.dtype) -> list[Finding]:
    """Integer data that overflow in arithmetic of their own dtype, or are not exact as floats."""
    findings = []
    for path, leaf in jax.tree.leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(path)
        if not jnp.issubdtype(leaf.dtype, jnp.integer):
            continue
        largest = int(np.abs(np.asarray(leaf, np.int64)).max())
        if np.iinfo(leaf.dtype).bits <= 16:
            findings.append(
                Finding(
                    "warning",
                    f"{name} is {leaf.dtype}: sums and products of it overflow beyond {np.iinfo(leaf.dtype).max}",
                    "Cast it to a float before arithmetic.",
                )
            )
        elif largest > 2 ** (np.finfo(dtype).nmant + 1):
            findings.append(
                Finding(
                    "warning",
                    f"{name} reaches {largest}, which {dtype} cannot represent exactly",
                    "Centre or rescale it, or use dtype='float64'.",
                )
            )
    return findings


def additivity(
    log_likelihood: Callable[..., Any], x: Float[Array, " d"], data: PyTree, size: int
) -> list[Finding]:
    """Whether the log-likelihood is a sum over data: it must double if every datum is repeated."""
    fault = paired_data(log_likelihood, data, x.size, np.dtype(x.dtype))
    if fault is not None:
        return [Finding("error", fault.what, fault.remedy)]
    few = jnp.arange(min(size, 8))

    def total(indices: Array) -> Array:
        batch = jax.tree.map(lambda leaf: leaf[indices], data)
        return jnp.sum(log_likelihood(x, batch))

    once, twice = (float(total(i)) for i in (few, jnp.concatenate([few, few])))
    tolerance = 1e-3 * (abs(once) + 1e-6)
    if not np.isfinite([once, twice]).all() or abs(twice - 2 * once) <= tolerance:
        return []
    if abs(twice - once) <= tolerance:
        return [
            Finding(
                "error",
                "log_likelihood is a mean over the batch: it does not grow with the number of data",
                "Return the sum, or one value per datum; scaling by N/B is done for you.",
            )
        ]
    return [
        Finding(
            "error",
            f"log_likelihood is not a sum over data: {once:.6g} on a batch, {twice:.6g} with every datum twice",
            "Move terms that do not belong to a single datum to log_prior (prior, regulariser), or remove them (N/B).",
        )
    ]


def determinism(log_density: Callable[..., Array], x: Float[Array, " d"]) -> list[Finding]:
    """Whether two traces of the function give the same program or, if not, the same value."""
    one, two = (jax.make_jaxpr(partial(log_density))(x) for _ in range(2))
    findings = []
    if one.effects:
        findings.append(
            Finding(
                "note",
                f"the log-density has side effects: {', '.join(sorted(map(str, one.effects)))}",
                "A callback or print runs at every evaluation and slows training: remove it when done.",
            )
        )
    if _text(one) == _text(two):
        return findings
    first, second = (float(log_density(x)) for _ in range(2))
    if first != second and not (np.isnan(first) and np.isnan(second)):
        findings.append(
            Finding(
                "error",
                f"two calls at the same point give {first:.9g} and {second:.9g}",
                "It contains something random or stateful (numpy.random, time, a counter), which compilation freezes "
                "at an arbitrary value. Draw it once outside, or pass it as data.",
            )
        )
    return findings


def _text(program: Any) -> tuple[str, list[bytes]]:
    """A program as text without object addresses, and its constants as bytes."""
    constants = [np.asarray(c).tobytes() for c in program.consts if eqx.is_array_like(c)]
    return re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)), constants


def start(value: np.ndarray, gradient: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """Whether log p and its gradient are finite at the start."""
    if not np.isfinite(value):
        return [
            Finding(
                "error",
                f"log p is {value} at the start",
                "Pass initial=, a point where it is finite; check for log(0), overflow and data outside the support.",
            )
        ]
    bad = np.flatnonzero(~np.isfinite(gradient))
    if len(bad):
        return [
            Finding(
                "error",
                f"the gradient at the start is not finite in {listed(bad, names)}",
                "Guard the inputs of log, sqrt, division and norm with jnp.where *before* they are applied, or pass "
                "another initial=.",
            )
        ]
    return []


def finiteness(
    values: np.ndarray,
    slopes: np.ndarray,
    points: np.ndarray,
    x: np.ndarray,
    names: Sequence[str],
    dtype: np.dtype,
    finite_in_double: FiniteInDouble | None,
) -> list[Finding]:
    """Whether log p and its gradient are finite at the points around the start."""
    bad = ~np.isfinite(values) | ~np.isfinite(slopes).all(1)
    parts = np.split(bad, len(DISTANCES))
    failing = {name: part.mean() for name, part in zip(DISTANCES, parts, strict=True) if part.any()}
    if not failing:
        return []
    shares = ", ".join(f"{share:.0%} of the points {name}" for name, share in failing.items())
    level: Level = (
        "error"
        if failing.get("near", 0) > 0.5
        else ("note" if set(failing) <= {"ten scales away"} else "warning")
    )
    suspects = _separating(bad, points - x)
    where = f" (related to {listed(suspects, names)})" if len(suspects) else ""
    remedy = (
        "Write a bounded coordinate in terms of an unconstrained one (σ = exp(x), p = sigmoid(x)), with log|dθ/dx| "
        f"added; {GUARD}"
        if finite_in_double is None
        else _cure(points[bad], dtype, finite_in_double)
    )
    return [Finding(level, f"log p or its gradient is not finite at {shares}{where}", remedy)]


def _cure(points: np.ndarray, dtype: np.dtype, finite_in_double: FiniteInDouble) -> str:
    """The remedy if log p is not finite although its coordinates are unconstrained; it depends on float64's values."""
    single = dtype != np.dtype("float64")
    finite = finite_in_double(points) if single else np.zeros(len(points), bool)
    if finite is None:
        return f"Numbers may underflow or overflow in {dtype}: try dtype='float64'; {GUARD}"
    if finite.all():
        return f"Numbers underflow or overflow in {dtype}; in float64 all is finite: use dtype='float64'."
    if finite.any():
        return (
            f"Numbers underflow or overflow in {dtype}; in float64 it is finite at {finite.mean():.0%} of these "
            f"points: use dtype='float64'; {GUARD}"
        )
    return f"Its coordinates are unconstrained already, and float64 is no cure: inside the model {GUARD}"


def _separating(bad: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Coordinates that were moved to the same side at every failed point, and rarely to that side elsewhere."""
    if bad.all() or bad.sum() < 4:
        return np.zeros(0, int)
    signs = np.sign(moves)
    one_sided = np.abs(signs[bad].mean(0)) == 1
    contrast = np.abs(signs[~bad].mean(0) - signs[bad].mean(0)) > 0.5
    return np.flatnonzero(one_sided & contrast)


def ignored(
    log_density: Callable[..., Array],
    x: Float[Array, " d"],
    slopes: np.ndarray,
    names: Sequence[str],
) -> list[Finding]:
    """Coordinates in which every gradient is zero."""
    unused = np.flatnonzero((slopes == 0).all(0))
    if not len(unused):
        return []
    rounding = sorted(_primitives(jax.make_jaxpr(log_density)(x).jaxpr) & ROUNDING)
    hint = f"It uses {', '.join(rounding)}, whose gradient is zero. " if rounding else ""
    return [
        Finding(
            "error",
            f"the gradient is zero everywhere in {listed(unused, names)}: log p ignores it, or has no gradient there",
            f"{hint}Give it a prior, or remove it from x: a flat coordinate has no posterior.",
        )
    ]


def _primitives(jaxpr: Jaxpr) -> set[str]:
    """The names of all operations, including those of inner programs."""
    names = {equation.primitive.name for equation in jaxpr.eqns}
    return names.union(*map(_primitives, subjaxprs(jaxpr)))


def flat_direction(slopes: np.ndarray, scale: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """A direction that is orthogonal to every gradient, along which log p is constant."""
    used = (slopes != 0).any(0) & np.isfinite(slopes).all(0)
    rows = slopes[np.isfinite(slopes).all(1)][:, used] * units(scale)[used]
    rows = rows[np.abs(rows).max(1, initial=0) > 0]
    if used.sum() < 2 or used.sum() > AXES or len(rows) < 2 * used.sum():
        return []
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    _, strengths, directions = np.linalg.svd(np.asarray(rows, np.float64), full_matrices=False)
    tolerance = 30 * np.finfo(slopes.dtype).eps * np.sqrt(len(rows))
    if strengths[-1] > tolerance * strengths[0]:
        return []
    direction = directions[-1] * units(scale)[used]
    direction = direction / np.abs(direction).max()
    largest = np.flatnonzero(np.abs(direction) > 0.05)[:4]
    coordinates = np.flatnonzero(used).tolist()
    terms = " ".join(f"{direction[i]:+.2g}·{names[coordinates[i]]}" for i in largest.tolist())
    return [
        Finding(
            "error",
            f"log p does not change along a direction: {terms}{' …' if len(largest) == 4 else ''}",
            "The data identify only a combination of these: give each a proper prior, fix one, or drop one.",
        )
    ]


def flipped_sign(start: float, values: np.ndarray) -> list[Finding]:
    """Whether log p rises all the way out on both sides of every random line, as no density can."""
    stages = np.vstack([np.full((1, 2 * LINES), start), values.reshape(len(REACHES), -1)])
    risen = (stages[1:] > stages[:-1]) | (stages[1:] == np.inf)
    if not risen.all():
        return []
    return [
        Finding(
            "error",
            "log p grows without bound in every direction, as if its sign were flipped",
            "Return the log-density, not its negative (a loss or an energy); a density falls far out.",
        )
    ]


def tails(values: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """Axes along which log p is no lower at 10⁶ scales than at 10³."""
    if not len(values):
        return []
    right, further_right, left, further_left = values.reshape(4, -1)
    with np.errstate(invalid="ignore"):
        rises = [(further_right > right - 0.1, "+"), (further_left > left - 0.1, "−")]
    axes = [f"{side}{names[i]}" for marks, side in rises for i in np.flatnonzero(marks).tolist()]
    if not axes:
        return []
    shown = ", ".join(axes[:SHOWN]) + (" …" if len(axes) > SHOWN else "")
    return [
        Finding(
            "warning",
            f"log p does not fall far out along {shown}",
            "The posterior may not be normalisable: give the coordinate a proper prior, and if it is transformed check "
            "that log|dθ/dx| is added.",
        )
    ]


def differences(
    start: float, pair: np.ndarray, gradient: np.ndarray, move: np.ndarray
) -> list[Finding]:
    """Compare the gradient with log p(x + m) − log p(x − m) for a small random move m.

    They may differ by a tenth of what log p changes, or of what it bends: at a mode the gradient is nothing, and the
    next term of the difference, of third order in m, is small beside the second.
    """
    terms = 2 * np.asarray(gradient, np.float64) * move
    expected, measured = float(terms.sum()), float(pair[0]) - float(pair[1])
    rounding = 10 * float(np.finfo(gradient.dtype).eps) * (np.abs(pair).max() + 1)
    bend = abs(float(pair.sum()) - 2 * start)
    curvature = 0.1 * max(abs(measured), np.abs(terms).max(), bend)
    if not np.isfinite(measured) or abs(measured - expected) <= rounding + curvature:
        return []
    return [
        Finding(
            "warning",
            f"along a small random move log p changes by {measured:.4g}, but its gradient predicts {expected:.4g}",
            "Check for stop_gradient, custom derivatives, rounding, jumps, or a kink at the start.",
        )
    ]
