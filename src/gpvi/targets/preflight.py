r"""Checks of a log-density before training: what is wrong, where, and what to do about it.

Scales come from curvature, s_i = |∂²log p/∂x_i²|^{-1/2} at the start. In these units the log-density is evaluated near
the start, one scale away, ten scales away, and far out along each axis.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, subjaxprs
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

POINTS = 16
"""Number of points at each distance; more if the rank of their gradients is needed."""
DISTANCES = {"near": 0.1, "a scale away": 1.0, "ten scales away": 10.0}
AXES = 256
"""Up to this dimension every axis is followed outwards, and gradients are searched for a flat direction."""
EXACT_CURVATURES = 1_000
"""Up to this dimension each ∂²log p/∂x_i² is computed; beyond it they are estimated from random probes."""
PROBES = 32
SHOWN = 10
GUARD = "guard log, sqrt and division; use log-sum-exp forms where exp overflows."
LINES, REACHES = 4, (10.0, 100.0, 1e4, 1e8)
"""Random lines that are followed to both sides, and how far, in scales; no mode lies at the last."""
COARSE, COARSE_LOG_DENSITY = 0.02, 0.25
"""Float spacing, in standard deviations and in nats, above which the user is warned."""

Level = Literal["error", "warning", "note"]
InDouble = Callable[[Float[np.ndarray, "n d"]], np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding about a log-density; an error will stop or spoil training."""

    level: Level
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level.upper()}: {self.what}\n    {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The results of the checks of a log-density; `str` gives a table."""

    names: tuple[str, ...]
    dtype: np.dtype
    findings: tuple[Finding, ...]
    size: int | None = None
    initial: np.ndarray | None = None
    value: float | None = None
    """log p at the start."""
    gradient: np.ndarray | None = None
    """∇ log p at the start."""
    scale: np.ndarray | None = None
    """|∂²log p/∂x_i²|^{-1/2} at the start; infinite without curvature."""

    @property
    def ok(self) -> bool:
        """Whether no error was found."""
        return not any(finding.level == "error" for finding in self.findings)

    def __str__(self) -> str:
        data = "" if self.size is None else f", {self.size} data"
        lines = [f"log-density on R^{len(self.names)} in {self.dtype}{data}"]
        if self.value is not None:
            lines.append(f"log p at the start: {self.value:.6g}")
        lines += self._coordinates()
        lines += [str(finding) for finding in self.findings] or ["no problems found"]
        return "\n".join(lines)

    __repr__ = __str__

    def _coordinates(self) -> list[str]:
        """A table of the coordinates: all if there are few, else those with the smallest and largest scales."""
        if self.initial is None or self.gradient is None or self.scale is None:
            return []
        order = np.arange(len(self.names))
        if len(order) > SHOWN:
            by_scale = np.argsort(self.scale, kind="stable")
            order = np.concatenate([by_scale[: SHOWN // 2], by_scale[-SHOWN // 2 :]])
        rows = [("coordinate", "start", "gradient", "scale")]
        rows += [
            (
                self.names[i],
                f"{self.initial[i]:.4g}",
                f"{self.gradient[i]:.4g}",
                f"{self.scale[i]:.4g}",
            )
            for i in order.tolist()
        ]
        if len(self.names) > SHOWN:
            rows.insert(1 + SHOWN // 2, ("…", "…", "…", "…"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return [
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}"
            for row in rows
        ]


def preflight(
    log_density: Callable[..., Array],
    initial: Float[Array, " d"],
    *,
    names: tuple[str, ...],
    key: PRNGKeyArray,
    returned: Callable[..., Any] | None = None,
    log_likelihood: Callable[..., Any] | None = None,
    data: PyTree = None,
    in_double: InDouble | None = None,
) -> Preflight:
    """Check `log_density` around `initial`.

    Parameters
    ----------
    returned: the function whose shape and dtype are checked, if `log_density` scales its result.
    log_likelihood, data: for the mini-batch form.
    in_double: for a model whose coordinates are unconstrained already: at which points log p and its gradient are
        finite in float64, or None if that is not known.
    """
    dtype = np.dtype(initial.dtype)
    leaves = jax.tree.leaves(data)
    size = leaves[0].shape[0] if leaves else None
    log_density = partial(log_density)  # a bound method of a pytree cannot be hashed by jit
    findings = _structure(returned or log_density, initial)
    findings += _integers(data, dtype)
    seen = Preflight(names, dtype, tuple(findings), size)
    if not seen.ok:
        return seen
    if log_likelihood is not None and size is not None:
        findings += _additivity(log_likelihood, initial, data, size)
    findings += _determinism(log_density, initial)
    evaluate = jax.jit(
        lambda points: jax.lax.map(jax.value_and_grad(log_density), points, batch_size=64)
    )
    value, gradient = map(np.asarray, jax.jit(jax.value_and_grad(log_density))(initial))
    findings += _start(value, gradient, names)
    start = {
        "initial": np.asarray(initial),
        "value": float(value),
        "gradient": gradient,
        "scale": np.full(len(names), np.nan),
    }
    seen = Preflight(names, dtype, tuple(findings), size, **start)
    if not seen.ok:
        return seen
    curvature_key, points_key = jax.random.split(key)
    scale = _scales(log_density, initial, key=curvature_key)
    difference_key, points_key = jax.random.split(points_key)
    rays_key = jax.random.fold_in(difference_key, 1)
    x = np.asarray(initial, np.float64)
    cloud, outward = _points(x, scale, key=points_key)
    rays = _rays(x, scale, key=rays_key)
    move = np.asarray(jax.random.normal(difference_key, x.shape), np.float64) * _units(scale)
    move *= 3 * float(np.finfo(dtype).eps) ** (1 / 3)
    parts = [cloud, outward, np.stack([x + move, x - move]), rays]
    values, slopes = map(np.asarray, evaluate(jnp.asarray(np.concatenate(parts), dtype)))
    around, far, pair, along = np.split(values, np.cumsum([len(part) for part in parts])[:-1])
    findings += _finiteness(around, slopes[: len(cloud)], cloud, x, names, dtype, in_double)
    findings += _ignored(log_density, initial, np.vstack([gradient, slopes]), names)
    findings += _flat(slopes[: len(cloud)], scale, names)
    findings += _flipped(float(value), along) or _tails(far, names)
    findings += _resolution(float(value), scale, dtype, names)
    findings += _differences(pair, gradient, move)
    return dataclasses.replace(seen, findings=tuple(findings), scale=scale)


def _structure(function: Callable[..., Any], x: Float[Array, " d"]) -> list[Finding]:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    try:
        out = jax.eval_shape(function, shape)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        said = str(error).strip().split("\n")[0]
        return [
            Finding(
                "error",
                f"the log-density turns a traced value into a NumPy array or a Python number: {said}",
                "Use jax.numpy instead of numpy (and of float(), int(), .item()), jnp.where or jax.lax.cond instead of "
                "if, and jax.scipy instead of scipy.",
            )
        ]
    except Exception as error:
        return [
            Finding(
                "error",
                f"the log-density fails on a vector of shape {x.shape}: {type(error).__name__}: {error}",
                "Check dim, and that the function takes one point.",
            )
        ]
    if not isinstance(out, jax.ShapeDtypeStruct) or out.shape != ():
        return [
            Finding(
                "error",
                f"the log-density returns {getattr(out, 'shape', out)} at one point, not a scalar",
                "Sum over data inside it; batching over points is done for you.",
            )
        ]
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return [Finding("error", f"the log-density returns dtype {out.dtype}", "Return a float.")]
    if jnp.finfo(out.dtype).eps > jnp.finfo(x.dtype).eps:
        return [
            Finding(
                "warning",
                f"the log-density of a {x.dtype} vector is {out.dtype}",
                "Something inside reduces its precision: look for astype, float32 data or constants, and remove it.",
            )
        ]
    return []


def _integers(data: PyTree, dtype: np.dtype) -> list[Finding]:
    """Data whose integers overflow in arithmetic of their own dtype, or are not exact as floats."""
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


def _additivity(
    log_likelihood: Callable[..., Any], x: Float[Array, " d"], data: PyTree, size: int
) -> list[Finding]:
    """Check that a batch with every datum twice has twice the log-likelihood."""
    few = jnp.arange(min(size, 8))

    def total(indices: Array) -> Array:
        batch = jax.tree.map(lambda leaf: leaf[indices], data)
        return jnp.sum(log_likelihood(x, batch))

    once, twice = (float(total(i)) for i in (few, jnp.concatenate([few, few])))
    room = 1e-3 * (abs(once) + 1e-6)
    if not np.isfinite([once, twice]).all() or abs(twice - 2 * once) <= room:
        return []
    if abs(twice - once) <= room:
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


def _determinism(log_density: Callable[..., Array], x: Float[Array, " d"]) -> list[Finding]:
    """Check that two traces of the function give one program, or else the same values."""
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
    """A program as text without object addresses, and its constants."""
    constants = [np.asarray(c).tobytes() for c in program.consts if eqx.is_array_like(c)]
    return re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)), constants


def _start(value: np.ndarray, gradient: np.ndarray, names: Sequence[str]) -> list[Finding]:
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
                f"the gradient at the start is not finite in {_listed(bad, names)}",
                "Guard the inputs of log, sqrt, division and norm with jnp.where *before* they are applied, or pass "
                "another initial=.",
            )
        ]
    return []


def _scales(
    log_density: Callable[..., Array], x: Float[Array, " d"], *, key: PRNGKeyArray
) -> np.ndarray:
    """|H_ii|^{-1/2}, exact or from Rademacher probes: E[v ⊙ Hv] is the diagonal of H."""
    gradient = jax.grad(log_density)

    def product(v: Float[Array, " d"]) -> Float[Array, " d"]:
        return v * jax.jvp(gradient, (x,), (v,))[1]

    if x.size <= EXACT_CURVATURES:
        probes = jnp.eye(x.size, dtype=x.dtype)
        diagonal = jax.jit(lambda p: jax.lax.map(product, p, batch_size=64).sum(0))(probes)
    else:
        probes = jax.random.rademacher(key, (PROBES, x.size), x.dtype)
        diagonal = jax.jit(lambda p: jax.lax.map(product, p).mean(0))(probes)
    curvature = np.abs(np.asarray(diagonal, np.float64))
    with np.errstate(divide="ignore"):
        return np.where(np.isfinite(curvature), curvature, 0.0) ** -0.5


def _units(scale: np.ndarray) -> np.ndarray:
    """Step scales; a coordinate without one gets that of the others."""
    usual = np.median(scale[np.isfinite(scale)]) if np.isfinite(scale).any() else 1.0
    return np.where(np.isfinite(scale), scale, usual)


def _points(
    x: np.ndarray, scale: np.ndarray, *, key: PRNGKeyArray
) -> tuple[np.ndarray, np.ndarray]:
    """A cloud at each distance, and points at 10³ and at 10⁶ scales on either side of every axis."""
    units = _units(scale)
    many = max(POINTS, 2 * x.size + 8) if x.size <= AXES else POINTS
    noise = np.asarray(jax.random.normal(key, (len(DISTANCES), many, x.size)), np.float64)
    cloud = x + units * noise * np.array(list(DISTANCES.values()))[:, None, None]
    if x.size > AXES:
        return cloud.reshape(-1, x.size), np.zeros((0, x.size))
    steps = np.array([1e3, 1e6, -1e3, -1e6])
    outward = x + steps[:, None, None] * np.diag(units)
    return cloud.reshape(-1, x.size), outward.reshape(-1, x.size)


def _rays(x: np.ndarray, scale: np.ndarray, *, key: PRNGKeyArray) -> np.ndarray:
    """Points ever further out on both sides of x, along random lines."""
    lines = np.asarray(jax.random.normal(key, (LINES, x.size)), np.float64)
    steps = np.multiply.outer(REACHES, np.concatenate([lines, -lines]) * _units(scale))
    return (x + steps).reshape(-1, x.size)


def _finiteness(
    values: np.ndarray,
    slopes: np.ndarray,
    points: np.ndarray,
    x: np.ndarray,
    names: Sequence[str],
    dtype: np.dtype,
    in_double: InDouble | None,
) -> list[Finding]:
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
    where = f" (related to {_listed(suspects, names)})" if len(suspects) else ""
    remedy = (
        "Write a bounded coordinate in terms of an unconstrained one (σ = exp(x), p = sigmoid(x)), with log|dθ/dx| "
        f"added; {GUARD}"
        if in_double is None
        else _cure(points[bad], dtype, in_double)
    )
    return [Finding(level, f"log p or its gradient is not finite at {shares}{where}", remedy)]


def _cure(points: np.ndarray, dtype: np.dtype, in_double: InDouble) -> str:
    """The remedy for points where log p is not finite although coordinates are unconstrained: does float64 help?"""
    single = dtype != np.dtype("float64")
    finite = in_double(points) if single else np.zeros(len(points), bool)
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
    """Coordinates whose direction of move is the same at every failed point, and rarely elsewhere."""
    if bad.all() or bad.sum() < 4:
        return np.zeros(0, int)
    signs = np.sign(moves)
    one_sided = np.abs(signs[bad].mean(0)) == 1
    contrast = np.abs(signs[~bad].mean(0) - signs[bad].mean(0)) > 0.5
    return np.flatnonzero(one_sided & contrast)


def _ignored(
    log_density: Callable[..., Array],
    x: Float[Array, " d"],
    slopes: np.ndarray,
    names: Sequence[str],
) -> list[Finding]:
    unused = np.flatnonzero((slopes == 0).all(0))
    if not len(unused):
        return []
    rounding = sorted(
        _primitives(jax.make_jaxpr(log_density)(x).jaxpr)
        & {"floor", "ceil", "round", "sign", "argmax", "argmin", "stop_gradient", "sort"}
    )
    hint = f"It uses {', '.join(rounding)}, whose gradient is zero. " if rounding else ""
    return [
        Finding(
            "error",
            f"the gradient is zero everywhere in {_listed(unused, names)}: log p ignores it, or has no gradient there",
            f"{hint}Give it a prior, or remove it from x: a flat coordinate has no posterior.",
        )
    ]


def _primitives(jaxpr: Jaxpr) -> set[str]:
    """The names of all operations, including those of inner programs."""
    names = {equation.primitive.name for equation in jaxpr.eqns}
    return names.union(*map(_primitives, subjaxprs(jaxpr)))


def _flat(slopes: np.ndarray, scale: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """A direction orthogonal to every gradient: log p is constant along it."""
    used = (slopes != 0).any(0) & np.isfinite(slopes).all(0)
    rows = slopes[np.isfinite(slopes).all(1)][:, used] * _units(scale)[used]
    rows = rows[np.abs(rows).max(1, initial=0) > 0]
    if used.sum() < 2 or used.sum() > AXES or len(rows) < 2 * used.sum():
        return []
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    _, strengths, directions = np.linalg.svd(np.asarray(rows, np.float64), full_matrices=False)
    room = 30 * np.finfo(slopes.dtype).eps * np.sqrt(len(rows))
    if strengths[-1] > room * strengths[0]:
        return []
    direction = directions[-1] * _units(scale)[used]
    direction = direction / np.abs(direction).max()
    loud = np.flatnonzero(np.abs(direction) > 0.05)[:4]
    own = np.flatnonzero(used).tolist()
    terms = " ".join(f"{direction[i]:+.2g}·{names[own[i]]}" for i in loud.tolist())
    return [
        Finding(
            "error",
            f"log p does not change along a direction: {terms}{' …' if len(loud) == 4 else ''}",
            "The data identify only a combination of these: give each a proper prior, fix one, or drop one.",
        )
    ]


def _flipped(start: float, along: np.ndarray) -> list[Finding]:
    """Whether log p rises all the way on every ray, as no density can."""
    stages = np.vstack([np.full((1, 2 * LINES), start), along.reshape(len(REACHES), -1)])
    risen = (stages[1:] > stages[:-1]) | (stages[1:] == np.inf)
    if not risen.all():
        return []
    return [
        Finding(
            "error",
            "log p grows without bound in every direction: is its sign flipped?",
            "Return the log-density, not its negative (a loss or an energy); a density falls far out.",
        )
    ]


def _tails(values: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """Axis directions along which log p is no lower at 10⁶ scales than at 10³."""
    if not len(values):
        return []
    right, further_right, left, further_left = values.reshape(4, -1)
    with np.errstate(invalid="ignore"):
        rises = [(further_right > right - 0.1, "+"), (further_left > left - 0.1, "−")]
    found = [f"{side}{names[i]}" for marks, side in rises for i in np.flatnonzero(marks).tolist()]
    if not found:
        return []
    listed = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
    return [
        Finding(
            "warning",
            f"log p does not fall far out along {listed}",
            "The posterior may not be normalisable: give the coordinate a proper prior, and if it is transformed check "
            "that log|dθ/dx| is added.",
        )
    ]


def rounded(
    location: Float[Array, " d"],
    scale: Float[Array, " d"] | Float[Array, "d d"],
    log_density: float | None,
    names: Callable[[], Sequence[str]],
) -> tuple[str, ...]:
    """What the location's dtype cannot resolve in a posterior near N(location, scale scaleᵀ)."""
    dtype = np.dtype(location.dtype)
    eps = float(np.finfo(dtype).eps)
    centre, L = np.asarray(location, np.float64), np.asarray(scale, np.float64)
    steps, sd = np.abs(centre) * eps, np.abs(L) if L.ndim == 1 else np.linalg.norm(L, axis=1)
    worst, notes = int(np.argmax(steps / sd)), []
    if steps[worst] > COARSE * sd[worst]:
        notes.append(
            f"{names()[worst]} is near {centre[worst]:.3g} with sd {sd[worst]:.2g}, where {dtype} has steps of "
            f"{steps[worst]:.1g}: many draws are equal. Use dtype='float64', or subtract a typical value"
        )
    if log_density is not None and abs(log_density) * eps > COARSE_LOG_DENSITY:
        notes.append(
            f"log p is {log_density:.3g}, which {dtype} resolves to {abs(log_density) * eps:.1g} nats: the evidence, "
            "importance weights and k̂ are as coarse. Use dtype='float64', or drop terms that do not depend on x"
        )
    return tuple(notes)


def _resolution(
    value: float, scale: np.ndarray, dtype: np.dtype, names: Sequence[str]
) -> list[Finding]:
    findings = []
    step = abs(value) * float(np.finfo(dtype).eps)
    if step > 0.01:
        findings.append(
            Finding(
                "warning",
                f"log p is {value:.3g} at the start, which {dtype} resolves to ±{step:.2g}",
                "Differences of order 1 matter: use dtype='float64', start nearer to the bulk, or drop constants.",
            )
        )
    finite = np.flatnonzero(np.isfinite(scale))
    if len(finite) < 2:
        return findings
    least, most = (int(finite[pick(scale[finite])]) for pick in (np.argmin, np.argmax))
    ratio = scale[most] / scale[least]
    if ratio > 1e3:
        severe = ratio > 1e-1 / np.finfo(dtype).eps
        findings.append(
            Finding(
                "warning" if severe else "note",
                f"scales differ by {ratio:.1g}: {names[least]} has {scale[least]:.2g}, {names[most]} {scale[most]:.2g}",
                "gpvi.fit whitens by default (init='auto'); with init=None rescale the coordinates yourself."
                + (" Use dtype='float64'." if severe else ""),
            )
        )
    return findings


def _differences(pair: np.ndarray, gradient: np.ndarray, move: np.ndarray) -> list[Finding]:
    """The gradient against log p(x + m) − log p(x − m) for a small random move m."""
    terms = 2 * np.asarray(gradient, np.float64) * move
    expected, measured = float(terms.sum()), float(pair[0]) - float(pair[1])
    rounding = 10 * float(np.finfo(gradient.dtype).eps) * (np.abs(pair).max() + 1)
    curvature = 0.1 * max(abs(measured), np.abs(terms).max())
    if not np.isfinite(measured) or abs(measured - expected) <= rounding + curvature:
        return []
    return [
        Finding(
            "warning",
            f"along a small random move log p changes by {measured:.4g}, but its gradient predicts {expected:.4g}",
            "Check for stop_gradient, custom derivatives, rounding, jumps, or a kink at the start.",
        )
    ]


def _listed(indices: np.ndarray, names: Sequence[str]) -> str:
    shown = ", ".join(names[int(i)] for i in indices[:SHOWN])
    return shown if len(indices) <= SHOWN else f"{shown} … ({len(indices)} in all)"
