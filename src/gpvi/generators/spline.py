r"""Couplings by rational-quadratic splines (Durkan et al. 2019), written so that XLA compiles them well on a CPU.

A layer keeps the first half c of the coordinates and maps every other one by

    x ↦ shift + scale · S(x),   S monotone, piecewise rational-quadratic on [−B, B], the identity outside,

with the knots of S, its slopes at them, shift and scale given by a network of c; a permutation follows. log|det| is the
sum of log S′ + log scale. The map is that of FlowJAX's `Coupling(RationalQuadraticSpline)`; it is not FlowJAX's code
because the gradient of a training step is 2.8 to 3.6 times faster this way in float32 and 2.0 to 2.2 times in float64,
where matrix products are half of what is left (`gpvi bench --peers --case spline`, one core).

Three choices make the difference; none of them changes a value.

- Everything between two matrix products is arithmetic on vectors over the transformed coordinates, unrolled over the
  knots: masked sums instead of a search and gathers. A product W·h of `jax.vmap` has the points on its last axis, and
  all that follows keeps them there (no reshapes, no constants other than scalars), so that every loop is long.
  For the same reason biases are columns of the weights, beside a coordinate that is always 1, and coordinates are
  picked and permuted by products with 0/1 matrices.
- XLA recomputes cheap arithmetic for every use of its result, but never a division. So a result with many uses is
  divided by that coordinate 1.
- The derivative is written by hand, and the backward pass recomputes a layer from its input alone.
"""

import functools
import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, Scalar

from gpvi.errors import InputError
from gpvi.generators.bijections import mixing_permutation, parity

MIN_WIDTH = 1e-3
"""The least width and height of a bin."""
MIN_SLOPE = 1e-3
"""The least slope at a knot."""
SLOPE_AT_ZERO = math.log(math.expm1(1 - MIN_SLOPE))
"""Its softplus is 1 − MIN_SLOPE, so that S is the identity where the network returns zeros."""
MAX_LOG_SCALE = 3.0
"""No single layer stretches by more than e³."""


class SplineHead(eqx.Module):
    """T: a chain of spline couplings, each followed by a permutation, then x ↦ shift + softplus(raw_scale)⊙x.

    The arrays of all layers are stacked. The last column of a weight is the bias. For a spline of m bins, the rows of
    `output` are: the logits of the width and the height of each bin in turn, m + 1 raw slopes, shift and raw scale. For
    k = 1 there is nothing to condition on: there is one layer, whose network is a bias.
    """

    hidden: tuple[Float[Array, "layers width _"], ...]
    output: Float[Array, "layers rows t _"]
    permutations: Int[Array, "layers k"]
    shift: Float[Array, " k"]
    raw_scale: Float[Array, " k"]
    orientation: Int[Array, ""]
    """The splines keep the orientation; the permutations may flip it."""
    interval: float = eqx.field(static=True)
    """B."""
    constant: ClassVar[bool] = False

    @property
    def dim(self) -> int:
        """k."""
        return self.shift.shape[0]

    def __call__(self, z_head: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return T(z)."""
        return self.transform_and_log_det(z_head)[0]

    def transform_and_log_det(
        self, z_head: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Scalar]:
        """Return T(z) and log|det T′|."""
        layer = jax.checkpoint(_forward, prevent_cse=False, static_argnums=2)

        def step(carry, coupling):
            point, log_det = carry
            point, change = layer(point, coupling, self.interval)
            return (point, log_det + change), None

        start = (_with_one(z_head), jnp.zeros((), z_head.dtype))
        (point, log_det), _ = lax.scan(step, start, self._couplings())
        scale = jax.nn.softplus(self.raw_scale)
        return self.shift + scale * _without_one(point), log_det + jnp.log(scale).sum()

    def inverse(self, x_head: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return T^{-1}(x)."""

        def step(point, coupling):
            return _backward(point, coupling, self.interval), None

        end = _with_one((x_head - self.shift) / jax.nn.softplus(self.raw_scale))
        return _without_one(lax.scan(step, end, self._couplings(), reverse=True)[0])

    def jacobian(self, z_head: Float[Array, " k"]) -> lx.AbstractLinearOperator:
        """Return T′, by forward-mode differentiation."""
        return lx.MatrixLinearOperator(jax.jacfwd(self)(z_head))

    def _couplings(self) -> "_Coupling":
        layers, rows, transformed, columns = self.output.shape
        half = self.dim - transformed
        carried = jnp.zeros((layers, 1, 1), self.output.dtype)  # the row (0, …, 0, 1) of a weight
        hidden = tuple(
            jnp.concatenate([w, jnp.pad(carried + 1, ((0, 0), (0, 0), (w.shape[-1] - 1, 0)))], 1)
            for w in self.hidden
        )
        places = self.permutations + (self.permutations >= half)
        places = jnp.insert(places, half, half, axis=1)
        return _Coupling(
            hidden,
            self.output.reshape(layers, rows * transformed, columns),
            jax.nn.one_hot(places, self.dim + 1, dtype=self.output.dtype),
        )


def check_bins(knots: int, interval: float) -> None:
    """Refuse more bins than the interval has room for."""
    if MIN_WIDTH * (knots + 1) >= 2 * interval:
        raise InputError(
            f"{knots + 1} bins of width ≥ {MIN_WIDTH} do not fit in (−{interval}, {interval}). "
            "Use a larger interval or fewer knots."
        )


def spline_couplings(
    dim: int,
    *,
    layers: int,
    knots: int,
    interval: float,
    width: int,
    depth: int,
    scale: float,
    key: PRNGKeyArray,
    dtype: DTypeLike,
) -> SplineHead:
    """Build T on R^k, k = `dim`, with `knots` in ±`interval`; it starts as `scale` times a permutation."""
    bins = knots + 1
    half = dim // 2
    if dim == 1:
        layers, depth = 1, 0
    permutation_key, *weight_keys = jax.random.split(key, depth + 1)
    permutations = jax.vmap(lambda k: mixing_permutation(dim, key=k))(
        jax.random.split(permutation_key, layers)
    )
    inputs = (half, *(width,) * depth)
    hidden = tuple(
        jax.random.uniform(k, (layers, width, n + 1), dtype, -1, 1) / math.sqrt(n)
        for k, n in zip(weight_keys, inputs, strict=False)
    )
    return SplineHead(
        hidden=hidden,
        output=jnp.zeros((layers, 3 * bins + 3, dim - half, inputs[-1] + 1), dtype),
        permutations=permutations,
        shift=jnp.zeros(dim, dtype),
        raw_scale=jnp.full(dim, scale + math.log(-math.expm1(-scale)), dtype),
        orientation=jnp.prod(jax.vmap(parity)(permutations)).astype(jnp.int8),
        interval=float(interval),
    )


class _Coupling(NamedTuple):
    """One layer: weights that carry the coordinate 1 along, and the permutation as a matrix."""

    hidden: tuple[Array, ...]
    output: Array
    permutation: Array


def _with_one(point: Array) -> Array:
    """Return (c, 1, the coordinates to transform)."""
    half = len(point) // 2
    return jnp.concatenate([point[:half], jnp.ones(1, point.dtype), point[half:]])


def _without_one(point: Array) -> Array:
    half = (len(point) - 1) // 2
    return jnp.concatenate([point[:half], point[half + 1 :]])


def _pick(matrix: Array, point: Array) -> Array:
    """Multiply by a matrix of zeros and ones, exactly even where float32 products are rounded for speed."""
    return jnp.dot(matrix, point, precision=lax.Precision.HIGHEST)


def _parts(point: Array) -> tuple[Array, Array, Array]:
    """Return (c, 1), the coordinates to transform, and twice as many ones."""
    size = len(point)
    half = (size - 1) // 2
    identity = jnp.eye(size, dtype=point.dtype)
    ones = jnp.zeros((2 * (size - half - 1), size), point.dtype).at[:, half].set(1)
    kept, moved = _pick(identity[: half + 1], point), _pick(identity[half + 1 :], point)
    return kept, moved, lax.stop_gradient(_pick(ones, point))


def _parameters(kept: Array, coupling: _Coupling) -> Array:
    for weight in coupling.hidden:
        kept = jnp.maximum(weight @ kept, 0)
    return coupling.output @ kept


def _forward(point: Array, coupling: _Coupling, interval: float) -> tuple[Array, Array]:
    """Return the image of one point under the layer, and the log-determinant there."""
    kept, moved, ones = _parts(point)
    moved, log_slope = _warp(_parameters(kept, coupling), moved, ones, interval)
    left, right = jnp.split(coupling.permutation, [len(kept)], axis=1)
    return _pick(left, kept) + _pick(right, moved), _pick(jnp.ones_like(log_slope), log_slope)


def _backward(point: Array, coupling: _Coupling, interval: float) -> Array:
    """Return the point that the layer maps to `point`."""
    kept, moved, ones = _parts(_pick(coupling.permutation.T, point))
    raw = _Raw.of(_parameters(kept, coupling), moved)
    warped = (moved - raw.shift) * jnp.exp(-_log_scale(raw.scale))
    found = _find(raw, warped, ones, interval, axis=1)
    rise = (found.point - found.bottom) * (found.slope[0] + found.slope[1] - 2 * found.mean_slope)
    a = found.height * (found.mean_slope - found.slope[0]) + rise
    b = found.height * found.slope[0] - rise
    c = -found.mean_slope * (found.point - found.bottom)
    along = 2 * c / (-b - jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0)))
    x = jnp.clip(found.left + found.width * along, -interval, interval)
    identity = jnp.eye(len(point), dtype=point.dtype)
    return _pick(identity[:, : len(kept)], kept) + _pick(
        identity[:, len(kept) :], jnp.where(found.point == warped, x, warped)
    )


class _Raw(NamedTuple):
    """The outputs of one layer's network; each entry is a vector over the t transformed coordinates."""

    logits: list[Array]
    """For each bin, the logits of its width and its height: vectors of 2t."""
    slopes: list[Array]
    shift: Array
    scale: Array

    @classmethod
    def of(cls, parameters: Array, moved: Array) -> "_Raw":
        size = len(moved)
        bins = len(parameters) // (3 * size) - 1
        rows = list(lax.split(parameters, (2 * size,) * bins + (size,) * (bins + 3)))
        return cls(rows[:bins], rows[bins:-2], rows[-2], rows[-1])


class _Bin(NamedTuple):
    """The bin that holds a point: x from `left` over `width`, y from `bottom` over `height`."""

    point: Array
    """The given point, clipped to [−B, B]."""
    masses: list[Array]
    """exp of the logits, up to a common factor."""
    total: Array
    before: Array
    """The shares of the total in the bins before this one."""
    own: Array
    """The shares in this one."""
    passed: list[Array]
    """For each bin but the last, whether it lies before this one: 0 or 1, twice."""
    here: list[Array]
    """For each bin, whether it is this one, twice."""
    here_once: list[Array]
    raw_slope: tuple[Array, Array]
    slope: tuple[Array, Array]
    """At both ends."""
    left: Array
    width: Array
    bottom: Array
    height: Array
    mean_slope: Array


def _find(raw: _Raw, point: Array, ones: Array, interval: float, axis: int) -> _Bin:
    """Find the bin that holds `point`, which is an x (axis 0) or a y (axis 1)."""
    bins, size = len(raw.logits), len(point)
    free = 2 * interval - MIN_WIDTH * bins
    largest = lax.stop_gradient(functools.reduce(jnp.maximum, raw.logits)) / ones
    masses = [jnp.exp(logit - largest) for logit in raw.logits]
    total = _sum(masses)
    inside = jnp.clip(point, -interval, interval)
    part = slice(size * axis, size * (axis + 1))
    least = total[part] * (MIN_WIDTH / free)
    distance = (inside + interval) * (total[part] / free)
    edges = (sum_[part] + (j + 1) * least for j, sum_ in enumerate(_sums(masses[:-1])))
    index = _sum([(distance > edge).astype(point.dtype) for edge in edges])
    identity = jnp.eye(size, dtype=point.dtype)
    index_twice = _pick(jnp.concatenate([identity, identity]), index)
    passed = [(index_twice > j).astype(point.dtype) for j in range(bins - 1)]
    here = [(index_twice == j).astype(point.dtype) for j in range(bins)]
    here_once = [(index == j).astype(point.dtype) for j in range(bins)]
    before, own = _inner(passed, masses) / total, _inner(here, masses) / total
    raw_slope = (
        (_inner(here_once, raw.slopes[:-1]) + SLOPE_AT_ZERO) / ones[:size],
        (_inner(here_once, raw.slopes[1:]) + SLOPE_AT_ZERO) / ones[:size],
    )
    start = MIN_WIDTH * index - interval
    width, height = MIN_WIDTH + free * own[:size], MIN_WIDTH + free * own[size:]
    return _Bin(
        point=inside,
        masses=masses,
        total=total,
        before=before,
        own=own,
        passed=passed,
        here=here,
        here_once=here_once,
        raw_slope=raw_slope,
        slope=(_slope(raw_slope[0]) / ones[:size], _slope(raw_slope[1]) / ones[:size]),
        left=start + free * before[:size],
        width=width,
        bottom=start + free * before[size:],
        height=height,
        mean_slope=height / width,
    )


class _Value(NamedTuple):
    """S at a point, and the terms that its derivatives share (in the notation of Durkan et al., Eqs. 4 and 5)."""

    xi: Array
    product: Array
    """ξ(1 − ξ)."""
    denominator: Array
    rise: Array
    """(y − bottom) / height."""
    numerator: Array
    """S′ = (mean slope / denominator)² numerator."""
    slope: Array
    warped: Array
    within: Array
    """Whether the point is in [−B, B]."""
    log_scale: Array
    scale: Array

    @classmethod
    def at(cls, raw: _Raw, found: _Bin, point: Array, interval: float) -> "_Value":
        s, (d0, d1) = found.mean_slope, found.slope
        xi = (found.point - found.left) / found.width
        product = xi * (1 - xi)
        denominator = s + (d0 + d1 - 2 * s) * product
        rise = (s * xi * xi + d0 * product) / denominator
        numerator = d1 * xi * xi + 2 * s * product + d0 * (1 - xi) ** 2
        ratio = s / denominator
        within = point == found.point
        inside = jnp.clip(found.bottom + found.height * rise, -interval, interval)
        log_scale = _log_scale(raw.scale)
        return cls(
            xi=xi,
            product=product,
            denominator=denominator,
            rise=rise,
            numerator=numerator,
            slope=ratio * ratio * numerator,
            warped=jnp.where(within, inside, point),
            within=within.astype(point.dtype),
            log_scale=log_scale,
            scale=jnp.exp(log_scale),
        )

    def outputs(self, raw: _Raw) -> tuple[Array, Array]:
        """Return shift + scale·S(x) and log S′ + log scale."""
        return (
            raw.shift + self.scale * self.warped,
            self.within * jnp.log(self.slope) + self.log_scale,
        )


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _warp(parameters: Array, point: Array, ones: Array, interval: float) -> tuple[Array, Array]:
    """Return shift + scale·S(x) for each transformed coordinate, and the log of its slope."""
    raw = _Raw.of(parameters, point)
    found = _find(raw, point, ones, interval, axis=0)
    return _Value.at(raw, found, point, interval).outputs(raw)


@_warp.defjvp
def _warp_jvp(interval, primals, tangents):
    r"""With shares a before and b in the bin, dξ = (dx − F da − F ξ db)/w and ds = (F db_y − s F db_x)/w, F = `free`.

    A share Σ_j 1_j e_j / Z changes by (Σ_j 1_j e_j du_j − share·Σ_j e_j du_j)/Z. The rest is the quotient rule.
    """
    parameters, point, ones = primals
    raw, change = _Raw.of(parameters, point), _Raw.of(tangents[0], point)
    found = _find(raw, point, ones, interval, axis=0)
    value = _Value.at(raw, found, point, interval)
    free = 2 * interval - MIN_WIDTH * len(raw.logits)

    moved = [mass * logit for mass, logit in zip(found.masses, change.logits, strict=True)]
    all_moved = _sum(moved)
    d_before = (_inner(found.passed, moved) - found.before * all_moved) / found.total
    d_own = (_inner(found.here, moved) - found.own * all_moved) / found.total
    d_left, d_bottom = lax.split(d_before, (len(point),) * 2)
    d_width, d_height = lax.split(d_own, (len(point),) * 2)
    d_slopes = (
        _inner(found.here_once, change.slopes[:-1]),
        _inner(found.here_once, change.slopes[1:]),
    )

    s, (d0, d1), height = found.mean_slope, found.slope, found.height
    xi, product, rise, within = value.xi, value.product, value.rise, value.within
    per_width, per_den, per_num = within / found.width, 1 / value.denominator, 1 / value.numerator
    linear = 1 - 2 * product
    y_s = height * per_den * (xi * xi - rise * linear) * per_width
    l_s = 2 * (1 / s + product * per_num - linear * per_den) * per_width
    y_x = value.slope * within
    l_x = (
        2
        * per_width
        * (
            (d1 * xi + s * (1 - 2 * xi) - d0 * (1 - xi)) * per_num
            - (d0 + d1 - 2 * s) * (1 - 2 * xi) * per_den
        )
    )
    sigmoids = [jax.nn.sigmoid(r) * within for r in found.raw_slope]
    y_slope, l_slope = height * product * per_den, 2 * product * per_den

    d_warped = (
        (y_x + (1 - within)) * tangents[1]
        - (free * y_x) * d_left
        - (free * (xi * y_x + s * y_s)) * d_width
        + (free * within) * d_bottom
        + (free * (y_s + within * rise)) * d_height
        + (y_slope * (1 - rise) * sigmoids[0]) * d_slopes[0]
        - (y_slope * rise * sigmoids[1]) * d_slopes[1]
    )
    d_log_slope = (
        l_x * tangents[1]
        - (free * l_x) * d_left
        - (free * (xi * l_x + s * l_s)) * d_width
        + (free * l_s) * d_height
        + (((1 - xi) ** 2 * per_num - l_slope) * sigmoids[0]) * d_slopes[0]
        + ((xi * xi * per_num - l_slope) * sigmoids[1]) * d_slopes[1]
    )
    d_log_scale = (1 - (value.log_scale / MAX_LOG_SCALE) ** 2) * change.scale
    return value.outputs(raw), (
        value.scale * d_warped + (value.scale * value.warped) * d_log_scale + change.shift,
        d_log_slope + d_log_scale,
    )


def _log_scale(raw: Array) -> Array:
    return MAX_LOG_SCALE * jnp.tanh(raw / MAX_LOG_SCALE)


def _slope(raw: Array) -> Array:
    """Return MIN_SLOPE + softplus(raw), with scalar constants only, which `jax.nn.softplus` does not have."""
    return MIN_SLOPE + (jnp.maximum(raw, 0) + jnp.log1p(jnp.exp(-jnp.abs(raw))))


def _sums(terms: list[Array]) -> list[Array]:
    """Return the sums of the first term, the first two terms, …"""
    sums = terms[:1]
    for term in terms[1:]:
        sums.append(sums[-1] + term)
    return sums


def _sum(terms: list[Array]) -> Array:
    return _sums(terms)[-1]


def _inner(mask: list[Array], terms: list[Array]) -> Array:
    return _sum([a * b for a, b in zip(mask, terms, strict=False)])
