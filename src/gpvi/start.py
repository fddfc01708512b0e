"""Where to start: a Gaussian in whose coordinates a posterior looks roughly standard.

Pathfinder [1] follows optimisers from several points, keeps of each the Gaussian with the best
ELBO, and joins them by importance weights. It is built here on a step that does not see scales.
For q = N(m, LLᵀ), x = m + Lε and the whitened score s(ε) = Lᵀ∇log p(x), the ELBO is stationary [2]
where E s = 0 and Λ = −E[∇_ε s] = I. By Stein's lemma Λ = −E[s εᵀ], the slope of the least-squares
regression s ≈ a − Λε: it needs no Hessian, and for a Gaussian p it is exact from any d + 2 draws,
whatever the location, scales and correlations. The Newton step is

    m ← m + L Λ⁻¹a,    LLᵀ ← L Λ⁻¹ Lᵀ,

the natural gradient at step size one [3]. Since entropy counts, it stays out of the spikes of high
density and little mass (the neck of a funnel) into which an optimiser of log p falls.

It runs once, on the host, in float64 wherever the log-density can be traced so; the log-density
and its gradient are all that is compiled.

[1] Zhang, Carpenter, Gelman, Vehtari: Pathfinder (JMLR 2022).
[2] Opper, Archambeau: The variational Gaussian approximation revisited (Neural Computation 2009).
[3] Khan, Rue: The Bayesian learning rule (JMLR 2023).
[4] Raftery, Bao: Estimating and projecting trends in HIV/AIDS generalized epidemics using
    incremental mixture importance sampling (Biometrics 2010).
[5] Ledoit, Wolf: A well-conditioned estimator for large-dimensional covariance matrices (Journal
    of Multivariate Analysis 2004).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, Scalar
from numpy.random import Generator
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from gpvi.entries import brief
from gpvi.errors import InputError
from gpvi.evidence import log_evidence, log_evidence_se

LogDensity = Callable[[Float[Array, " d"]], Scalar]
Vector = Float[np.ndarray, " d"]
Matrix = Float[np.ndarray, "d d"]
Points = Float[np.ndarray, "n d"]
Values = Float[np.ndarray, " n"]

Result = TypeVar("Result")

_BATCH = 128  # points per call of the compiled log-density
_FINITE = 0.75  # the share of a Gaussian's draws at which log p must be finite
_FLAT = 1e-2  # a curvature, in whitened coordinates, too small to be taken at its word
_ENOUGH = 2**15  # scores after which no further path begins
_PATHS, _MOST = (
    8,
    32,
)  # how many there are, and may be while many of them end in places of their own
_STEEP = 1e10  # a whitened score that no start should meet; a Gaussian's are below ten
_UNSEEN = 0.25  # the chance that the next path ends in a new place at which one more is worth it
_WIDEST = 1e12  # widths, in units of the first, beyond which a direction counts as flat


class Report(NamedTuple):
    """What was done to find a Gaussian.

    Attributes
    ----------
    kind: the function that found it.
    elbos: of each path, −inf where it failed.
    distinct: the paths that ended in a place of their own, and were joined.
    chosen: the best of these.
    tempering: the exponent of the importance weights that joined them; 0 where there were none, as
        the dimensions are too many.
    effective_share: the effective sample size of the weights, as a share of the draws.
    flat: whether some direction was still widening at the end: the posterior may be improper.
    log_evidence, log_evidence_se: log Z by importance sampling from what was joined, and its standard error; NaN and
        infinity where nothing was weighted.
    """

    kind: Literal["pathfinder", "laplace"]
    elbos: tuple[float, ...]
    distinct: tuple[int, ...]
    chosen: int
    tempering: float
    effective_share: float
    flat: bool
    log_evidence: float = np.nan
    log_evidence_se: float = np.inf

    @property
    def paths(self) -> int:
        """How many paths were followed."""
        return len(self.elbos)

    def __str__(self) -> str:
        best = f"ELBO {self.elbos[self.chosen]:.6g}"
        if self.kind == "laplace":
            return f"laplace: {best}"
        joined = f"weights (p/q)^{self.tempering:.2g}, effective share {self.effective_share:.2g}"
        places = f"{self.paths} paths to {len(self.distinct)} places, best {best}, {joined}"
        return f"pathfinder: {places}{'; still widening, improper?' if self.flat else ''}"


class Gaussian(eqx.Module):
    """N(location, scale scaleᵀ), scale lower-triangular with a positive diagonal."""

    location: Float[Array, " d"]
    scale: Float[Array, "d d"]
    report: Report = eqx.field(static=True)


class NoPathError(InputError):
    """No Gaussian with a finite ELBO was found from the starting point."""


def automatic(log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray) -> Gaussian:
    """Pathfinder; Laplace where no path ends anywhere finite."""
    try:
        return pathfinder(log_density, start, key=key)
    except NoPathError:
        return laplace(log_density, start, key=key)


def pathfinder(
    log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray, paths: int | None = None
) -> Gaussian:
    """The mean and covariance of the posterior, from Gaussians that climb the ELBO, and weights.

    The first of at most `paths` begins at `start`, the others in turn where all that is known
    misses most, far from it, and around the start. One that runs into the end of another is
    dropped, so that places count, not paths. None begins once some 30,000 scores are spent: in
    hundreds of dimensions there are only a few.

    Where nobody says how many, there are eight, and up to four times as many paths and scores
    while more than a quarter of the paths ended where no other did: that share is the chance that
    the next one finds a new place (Good and Turing).
    """
    if paths is not None and paths < 1:
        raise InputError(f"paths is {paths}; at least one is needed.")
    density, point, rng = _prepare(log_density, start, key)
    with _one_blas_thread(), np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _pathfinder(density, point, paths, rng)


def laplace(log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray) -> Gaussian:
    """N(x, |H|⁻¹), H = −∇²log p(x), at the best x on the way of a Newton ascent from `start`.

    The best is that of the best ELBO: the mode, if p is log-concave. |H| has the absolute
    eigenvalues of H, after scaling to unit diagonal. Of an unbounded density, or one with its mass
    far from the mode, the Gaussian can be far too narrow.
    """
    density, point, rng = _prepare(log_density, start, key)
    with _one_blas_thread(), np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _laplace(density, point, rng)


class _Normal(NamedTuple):
    """N(location, scale scaleᵀ) in host memory."""

    location: Vector
    scale: Matrix

    @property
    def log_det(self) -> float:
        return float(np.log(np.diag(self.scale)).sum())

    def points(self, noise: Points) -> Points:
        return self.location + noise @ self.scale.T

    def whiten(self, x: Points) -> Points:
        return solve_triangular(self.scale, (x - self.location).T, lower=True).T

    def log_density(self, x: Points) -> Values:
        u = self.whiten(x)
        return -0.5 * (u**2).sum(1) - self.log_det - 0.5 * x.shape[1] * np.log(2 * np.pi)

    def seen_from(self, other: "_Normal") -> "_Normal":
        """The same Gaussian in the coordinates that whiten `other`."""
        scale = solve_triangular(other.scale, self.scale, lower=True)
        return _Normal(other.whiten(self.location[None])[0], scale)

    def moved(self, shift: Vector, factor: Matrix) -> "_Normal":
        """What is N(shift, factor factorᵀ) in the coordinates that whiten this Gaussian."""
        return _Normal(self.location + self.scale @ shift, self.scale @ factor)

    def widened(self, by: float) -> "_Normal":
        return _Normal(self.location, self.scale * by)

    def gains(self, values: Values, noise: Points) -> Values:
        """log p − log q at the draws made of `noise`."""
        constant = self.log_det + 0.5 * noise.shape[1] * np.log(2 * np.pi)
        return values + 0.5 * (noise**2).sum(1) + constant

    def elbo(self, values: Values, noise: Points, least: float = _FINITE) -> float:
        """The ELBO of this Gaussian restricted to where log p is finite.

        It is E[log p − log q] there, plus the log of that share; −inf for a share below `least`.
        """
        finite = np.isfinite(values)
        if finite.mean() < least:
            return -np.inf
        elbo = float(self.gains(values, noise)[finite].mean() + np.log(finite.mean()))
        return elbo if np.isfinite(elbo) else -np.inf

    def divergence(self, other: "_Normal") -> float:
        """KL(self ‖ other)."""
        seen = self.seen_from(other)
        squares = (seen.scale**2).sum() + (seen.location**2).sum() - len(seen.location)
        return float(0.5 * squares - seen.log_det)


class _End(NamedTuple):
    """Where a path ended, and the number of the place that it ran into, if another had ended there before."""

    elbo: float
    normal: _Normal
    place: int | None


class _Joined(NamedTuple):
    """The Gaussian of all path ends, and what the importance weights that made it say."""

    normal: _Normal
    tempering: float = 0.0
    effective_share: float = 1.0
    log_evidence: float = np.nan
    log_evidence_se: float = np.inf


class _Density:
    """The compiled log-density: batches of points in, float64 host arrays out; −inf for NaN."""

    def __init__(self, log_density: LogDensity, dim: int):
        self.scored = 0
        self._log_density = log_density
        self._wide = _compiles_in_float64(log_density, dim)

    def values(self, x: Points) -> Values:
        """log p at the rows of x."""
        values = np.concatenate([self._call(_values, rows) for rows in _batches(x)])[: len(x)]
        return np.where(np.isfinite(values), values, -np.inf)

    def scores(self, x: Points) -> tuple[Values, Points]:
        """log p and ∇log p at the rows of x."""
        self.scored += len(x)
        pairs = [self._call(_scores, rows) for rows in _batches(x)]
        values, scores = (np.concatenate(parts)[: len(x)] for parts in zip(*pairs, strict=True))
        finite = np.isfinite(values) & np.isfinite(scores).all(1)
        return np.where(finite, values, -np.inf), scores

    def curvature(self, x: Vector) -> tuple[Vector, Matrix]:
        """∇log p and −∇²log p at x."""
        score, hessian = self._call(_curvature, x)
        return score, 0.5 * (hessian + hessian.T)

    def _call(self, function: Callable, x: np.ndarray):
        with jax.enable_x64(True) if self._wide else nullcontext():
            found = function(self._log_density, x)
            return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


@eqx.filter_jit
def _values(log_density: LogDensity, x: Float[Array | np.ndarray, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(log_density)(jnp.asarray(x))


@eqx.filter_jit
def _scores(
    log_density: LogDensity, x: Float[Array | np.ndarray, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    return jax.vmap(jax.value_and_grad(log_density))(jnp.asarray(x))


@eqx.filter_jit
def _curvature(
    log_density: LogDensity, x: Float[Array | np.ndarray, " d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    score, pull = jax.vjp(jax.grad(log_density), jnp.asarray(x))
    rows = jnp.eye(len(x), dtype=score.dtype)
    return score, -jax.lax.map(lambda row: pull(row)[0], rows, batch_size=_BATCH)


def _prepare(
    log_density: LogDensity, start: ArrayLike, key: PRNGKeyArray
) -> tuple[_Density, Vector, Generator]:
    point = np.asarray(start, np.float64)
    if point.ndim != 1 or not len(point):
        raise InputError(f"start has shape {point.shape}; it must be one point, of shape (d,).")
    density = _Density(log_density, len(point))
    if not np.isfinite(density.scores(point[None])[0][0]):
        raise InputError(
            f"the log-density or its gradient is not finite at the start {brief(point)}. "
            "Pass a start where both are."
        )
    return density, point, np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _compiles_in_float64(log_density: LogDensity, dim: int) -> bool:
    """Whether the function can be compiled in float64.

    One that fixes float32 (in a scan's carry) cannot. Nor can one that closes over NumPy arrays of float64 and is also
    traced in float32: JAX 0.10 takes its float32 copies of them, while these live, for the arrays themselves. Here
    such copies are kept alive, lest the answer depend on what was traced before.
    """
    function = jax.jit(jax.value_and_grad(log_density))
    copies = function.trace(jax.ShapeDtypeStruct((dim,), jnp.result_type(float)))
    with jax.enable_x64(True):
        try:
            function.lower(jax.ShapeDtypeStruct((dim,), np.dtype("float64")))
        except (TypeError, ValueError):
            return False
        finally:
            del copies
    return True


def _one_blas_thread() -> AbstractContextManager:
    """Keep BLAS to one thread, where that can be set.

    On matrices of this size several gain little, and on busy cores cost up to a hundredfold.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1, user_api="blas")


def _pathfinder(density: _Density, point: Vector, paths: int | None, rng: Generator) -> Gaussian:
    isotropic = _Normal(point, np.eye(len(point)))
    first = _fit_width(density, isotropic, rng, range(-40, 41))
    widest = 0.0 if first is None else _WIDEST * first.scale.max()
    ends: list[_End] = []
    visits: list[int] = []
    elbos: list[float] = []
    distinct: list[int] = []
    directions = rng.standard_normal((paths or _MOST, len(point)))
    directions *= np.sqrt(len(point)) / np.linalg.norm(directions, axis=1, keepdims=True)
    for index in range(paths or _MOST):
        further = paths is None and index >= _PATHS
        if density.scored > _ENOUGH * (_MOST // _PATHS if further else 1):
            break
        if further and visits.count(1) <= _UNSEEN * index:
            break
        normal = first
        if first and ends:
            normal = _unless_singular(_next_start, density, ends, first, index, directions, rng)
        known = [end.normal for end in ends]
        end = normal and _unless_singular(_climb, density, normal, widest, known, rng)
        elbos.append(end.elbo if end else -np.inf)
        if end and end.place is not None:
            visits[end.place] += 1
        elif end:
            ends.append(end)
            visits.append(1)
            distinct.append(index)
    if not ends:
        raise NoPathError(
            f"no Gaussian around the start {brief(point)} has a finite ELBO: the log-density is "
            "not finite almost everywhere near it. Pass another start, or guard the log-density."
        )
    best = int(np.argmax([end.elbo for end in ends]))
    joined = _unless_singular(_join, density, ends, rng) or _Joined(ends[best].normal)
    flat = any(np.diag(end.normal.scale).max() > widest for end in ends)
    found = Report(
        "pathfinder",
        tuple(elbos),
        tuple(distinct),
        distinct[best],
        joined.tempering,
        joined.effective_share,
        flat,
        joined.log_evidence,
        joined.log_evidence_se,
    )
    normal = _narrow(density, joined.normal, rng) or joined.normal
    return _result(_tame(density, normal, rng), found)


def _unless_singular(function: Callable[..., Result], *args) -> Result | None:
    try:
        return function(*args)
    except np.linalg.LinAlgError:
        return None


def _fit_width(
    density: _Density, normal: _Normal, rng: Generator, powers: Sequence[int]
) -> _Normal | None:
    """The Gaussian with its scale times the power of two that has the best ELBO, if any is finite.

    For a Gaussian posterior this is the width that fits, however far away it lies. Of widths that
    rounding cannot tell apart, the widest.
    """
    noise = _noise(16, len(normal.location), rng)
    candidates = [normal.widened(2.0**power) for power in powers]
    values = density.values(np.concatenate([normal.points(noise) for normal in candidates]))
    pairs = zip(candidates, np.split(values, len(candidates)), strict=True)
    elbos = np.array([normal.elbo(part, noise) for normal, part in pairs])
    if not np.isfinite(elbos).any():
        return None
    rounding = 16 * np.finfo(float).eps * np.abs(elbos.max())
    return candidates[np.flatnonzero(elbos >= elbos.max() - rounding)[-1]]


def _narrow(density: _Density, normal: _Normal, rng: Generator) -> _Normal | None:
    """The widest of the Gaussians narrowed by powers of √2 at whose draws log p is finite."""
    noise = _noise(_BATCH, len(normal.location), rng)
    for power in range(80):
        narrowed = normal.widened(2.0 ** (-power / 2))
        if np.isfinite(density.values(narrowed.points(noise))).mean() >= _FINITE:
            return narrowed
    return None


def _tame(density: _Density, normal: _Normal, rng: Generator) -> _Normal:
    """The widest of the Gaussians narrowed by powers of √2 at whose draws, half as far out again, no score is steep.

    A log-density that falls like −exp(x) has scores of 10²⁰ at the draws of a Gaussian that fits its other side. In
    float32 the square of such a gradient overflows, and an optimiser's moments do not forget it.
    """
    noise = 1.5 * _noise(4 * _BATCH, len(normal.location), rng)
    for power in range(20):
        narrowed = normal.widened(2.0 ** (-power / 2))
        values, scores = density.scores(narrowed.points(noise))
        whitened = np.abs(scores[np.isfinite(values)] @ narrowed.scale)
        if whitened.max(initial=0.0) < _STEEP:
            return narrowed
    return normal


def _next_start(
    density: _Density,
    ends: Sequence[_End],
    first: _Normal,
    index: int,
    directions: Points,
    rng: Generator,
) -> _Normal | None:
    """The beginning of path `index`, of the width that fits there.

    Every other path begins at the point that is missed most, of the largest p/q among many around
    all that is known and around the very first, at all distances [4]; there q gets Cauchy tails,
    lest the tails of p count as missed. The others begin, in turn, far from all that is known (16
    standard deviations, twice the same in opposite directions, then 32, …) and one to sixteen
    widths away from the first; nearer where p is not finite.
    """
    weights = _weights(ends)
    cover = _moments([end.normal for end in ends], weights)
    dim = len(cover.location)
    shape = max(ends, key=lambda end: end.elbo).normal.scale
    if index % 2:
        radii = 2.0 ** rng.uniform(0, 5, (32 * _BATCH, 1))
        away = radii * rng.standard_normal((32 * _BATCH, dim))
        points = np.concatenate([cover.points(away[::2]), first.points(away[1::2])])
        known = [
            np.log(weight)
            - end.normal.log_det
            - 0.5 * (dim + 1) * np.log1p((end.normal.whiten(points) ** 2).sum(1))
            for end, weight in zip(ends, weights, strict=True)
        ]
        point = points[(density.values(points) - logsumexp(known, axis=0)).argmax()]
        return _fit_width(density, _Normal(point, first.scale), rng, range(-40, 1))
    turn, around = divmod(index // 2 - 1, 2)
    if around:
        origin, shape, length = first, first.scale, 2.0 ** rng.uniform(0, 4)
    else:
        origin, length = cover, (-1.0) ** turn * 16.0 * 2.0 ** (turn // 2 % 4)
    direction = directions[-1 - turn] if around else directions[turn // 2]
    points = origin.points(length * direction * 2.0 ** -np.arange(20.0)[:, None])
    point = points[np.isfinite(density.values(points)).argmax()]
    return _fit_width(density, _Normal(point, shape), rng, range(-40, 1))


def _climb(
    density: _Density, normal: _Normal, widest: float, known: Sequence[_Normal], rng: Generator
) -> _End | None:
    """Newton steps on the ELBO, shortened until fresh draws agree that it rose.

    The path ends where the ELBO has thrice not risen by more than its standard error and a
    hundredth of a nat a dimension; where it has run into a known Gaussian; or where it has run too
    far along a flat direction. It fails where it is too narrow for float64 to tell from a point.
    """
    dim = len(normal.location)
    elbo, stalled = -np.inf, 0
    for _ in range(100):
        widths = np.diag(normal.scale)
        if widths.max() > widest or stalled == 3:
            break
        if (widths < 8 * np.finfo(float).eps * np.abs(normal.location)).any():
            return None
        noise = rng.standard_normal((max(_BATCH, 3 * dim), dim))
        step = _newton_step(normal, noise, *density.scores(normal.points(noise)))
        noise = _noise(_BATCH, dim, rng)
        values = density.values(normal.points(noise))
        elbo = normal.elbo(values, noise, least=0.5)
        if step is None or not np.isfinite(elbo):
            narrowed = _narrow(density, normal.widened(0.5), rng)
            if narrowed is None:
                return None
            normal = narrowed
            continue
        stalled += 1
        for fraction in 4.0 ** -np.arange(5.0):
            moved = normal.moved(fraction * step.shift, step.factor(fraction))
            moved_values = density.values(moved.points(noise))
            moved_elbo = moved.elbo(moved_values, noise)
            if moved_elbo > elbo:
                both = np.isfinite(values) & np.isfinite(moved_values)
                rises = moved.gains(moved_values, noise)[both] - normal.gains(values, noise)[both]
                if moved_elbo - elbo > max(rises.std() / np.sqrt(len(rises)), 0.01 * dim):
                    stalled = 0
                normal, elbo = moved, moved_elbo
                break
        for place, other in enumerate(known):
            if normal.divergence(other) < 0.5 + 0.01 * dim:
                return _End(elbo, normal, place)
    return _End(elbo, normal, None) if np.isfinite(elbo) else None


class _Step(NamedTuple):
    """The Newton step in whitened coordinates: Λ⁻¹a, and Λ by its eigenvalues and vectors."""

    shift: Vector
    eigenvalues: Vector
    vectors: Matrix

    def factor(self, fraction: float) -> Matrix:
        """The Cholesky factor of Λ^(−fraction)."""
        return np.linalg.cholesky((self.vectors * self.eigenvalues**-fraction) @ self.vectors.T)


def _newton_step(normal: _Normal, noise: Points, values: Values, scores: Points) -> _Step | None:
    """Regress the whitened score on the noise; none where half of the draws are not finite.

    Λ is shrunk towards I, its value at the end, by the share of noise in ‖Λ − I‖² [5]. Along a
    flat direction q is widened tenfold, and moved by no more than its new width.
    """
    finite = np.isfinite(values)
    if finite.mean() < 0.5:
        return None
    noise, whitened = noise[finite], scores[finite] @ normal.scale
    count, dim = noise.shape
    centred = noise - noise.mean(0)
    varying = whitened - whitened.mean(0)
    slope = np.linalg.solve(centred.T @ centred, centred.T @ varying)
    away = -0.5 * (slope + slope.T) - np.eye(dim)
    error = 0.5 * dim * ((varying - centred @ slope) ** 2).sum() / (count - dim - 1) ** 2
    precision = np.eye(dim) + away * (1 - min(1.0, error / max((away**2).sum(), 1e-300)))
    intercept = whitened.mean(0) + precision @ noise.mean(0)
    if not (np.isfinite(precision).all() and np.isfinite(intercept).all()):
        return None
    eigenvalues, vectors = np.linalg.eigh(precision)
    shift = vectors.T @ intercept / np.maximum(eigenvalues, _FLAT)
    reach = _FLAT**-0.5
    shift = np.where(eigenvalues < _FLAT, np.clip(shift, -reach, reach), shift)
    return _Step(vectors @ shift, np.clip(eigenvalues, _FLAT, 1e8), vectors)


def _join(density: _Density, ends: Sequence[_End], rng: Generator) -> _Joined:
    """The moments of the posterior by importance sampling.

    Half of the draws come from the path ends, half from the Gaussian found so far. The weights are
    (p/q)^β, β ≤ 1 the largest that leaves 20 effective draws a dimension (the error of a covariance
    is √(d/ESS)). Where the draws cannot carry that many, as for β → 0, the moments are those of the
    path ends weighted by exp ELBO. The moments of q are known: the draws only tell how far from
    them those of p are, so nothing is lost where p is Gaussian.
    """
    weights = _weights(ends)
    normals = [end.normal for end in ends]
    found = _Joined(_moments(normals, weights))
    count, dim = 4096, len(found.normal.location)
    needed = 100 + 20 * dim
    for _ in range(5 if 2 * needed <= count else 0):
        joined = found.normal
        parts, shares = [*normals, joined], np.append(weights, 1.0) / 2
        x, log_ratios = _weighed(density, parts, shares, count, rng)
        if not np.isfinite(log_ratios).any():
            break
        tempering, ratios = _temper(log_ratios, needed)
        excess, u = ratios - 1 / count, joined.whiten(x)
        base = _moments([q.seen_from(joined) for q in parts], shares)
        mean = base.location + excess @ u
        second = base.scale @ base.scale.T + np.outer(base.location, base.location)
        second += (u * excess[:, None]).T @ u
        eigenvalues, vectors = np.linalg.eigh(second - np.outer(mean, mean))
        covariance = (vectors * np.maximum(eigenvalues, _FLAT)) @ vectors.T
        found = _Joined(
            joined.moved(mean, np.linalg.cholesky(covariance)),
            tempering,
            float(1 / (ratios**2).sum() / count),
            *_evidence(log_ratios),
        )
        if found.effective_share > 0.9:
            break
    if len(ends) > 1 and found.tempering == 1:
        parts, shares = [*normals, found.normal], np.append(weights, 1.0) / 2
        evidence = _evidence(_weighed(density, parts, shares, 4 * count, rng)[1])
        found = found._replace(log_evidence=evidence[0], log_evidence_se=evidence[1])
    return found


def _weighed(
    density: _Density,
    parts: Sequence[_Normal],
    shares: Float[np.ndarray, " k"],
    count: int,
    rng: Generator,
) -> tuple[Points, Values]:
    """Draws from a mixture, of each part its share, and log p − log q of them."""
    counts = np.floor(shares * count).astype(int)
    counts[-1] = count - counts[:-1].sum()
    dim = len(parts[0].location)
    draws = [rng.standard_normal((number, dim)) for number in counts]
    x = np.concatenate([q.points(noise) for q, noise in zip(parts, draws, strict=True)])
    with np.errstate(divide="ignore"):
        log_parts = [np.log(a) + q.log_density(x) for q, a in zip(parts, shares, strict=True)]
    return x, density.values(x) - logsumexp(log_parts, axis=0)


def _evidence(log_ratios: Values) -> tuple[float, float]:
    """log Z and its standard error."""
    n = len(log_ratios)
    weights = np.exp(log_ratios - log_ratios.max())
    share = float(weights.sum() ** 2 / (weights**2).sum() / n)
    return log_evidence(log_ratios, n), log_evidence_se(share, n)


def _temper(log_ratios: Values, needed: int) -> tuple[float, Values]:
    """The largest β ≤ 1 at which the weights r^β have the effective sample size needed; and them.

    By bisection. The weights are normalised, and 0 where p = 0.
    """
    finite = np.isfinite(log_ratios)

    def weights(exponent: float) -> Values:
        powers = np.where(finite, exponent * np.where(finite, log_ratios, 0.0), -np.inf)
        return np.exp(powers - logsumexp(powers))

    low, high, exponent = 0.0, 1.0, 1.0
    for _ in range(30):
        if 1 / (weights(exponent) ** 2).sum() >= needed:
            low = exponent
        else:
            high = exponent
        exponent = 0.5 * (low + high)
    return low, weights(low)


def _weights(ends: Sequence[_End]) -> Values:
    """exp ELBO, normalised: the share of the mass that each path end vouches for."""
    elbos = np.array([end.elbo for end in ends])
    elbos = np.where(elbos >= elbos.max() - 20, elbos, -np.inf)
    return np.exp(elbos - logsumexp(elbos))


def _moments(normals: Sequence[_Normal], weights: Values) -> _Normal:
    """The Gaussian with the mean and covariance of a mixture."""
    heaviest = normals[int(np.argmax(weights))]
    seen = [
        normal.seen_from(heaviest)
        for normal, weight in zip(normals, weights, strict=True)
        if weight
    ]
    weights = weights[weights > 0]
    mean = weights @ np.stack([normal.location for normal in seen])
    covariance = np.zeros_like(heaviest.scale)
    for normal, weight in zip(seen, weights, strict=True):
        away = normal.location - mean
        covariance += weight * (normal.scale @ normal.scale.T + np.outer(away, away))
    return heaviest.moved(mean, np.linalg.cholesky(covariance))


def _laplace(density: _Density, x: Vector, rng: Generator) -> Gaussian:
    noise = _noise(_BATCH, len(x), rng)
    lengths = 4.0 ** np.arange(3.0, -29.0, -1.0)[:, None]
    value = density.values(x[None])[0]
    best, best_elbo = None, -np.inf
    for _ in range(100):
        score, hessian = density.curvature(x)
        if not np.isfinite(hessian).all():
            break
        root = _inverse_root(hessian, score)
        upper = np.asarray(np.linalg.qr(root.T, mode="r"))
        normal = _Normal(x, upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0))
        elbo = normal.elbo(density.values(normal.points(noise)), noise)
        if best is None or elbo > best_elbo:
            best, best_elbo = normal, elbo
        points = x + lengths * (root @ (root.T @ score))
        values = density.values(points)
        if not values.max() > value + 1e-6:
            break
        x, value = points[values.argmax()], values.max()
    normal = best and _narrow(density, best, rng)
    if normal is None:
        raise NoPathError(
            f"the Hessian or the values of the log-density are not finite around {brief(x)}. "
            "Pass another start, or guard the log-density."
        )
    found = Report("laplace", (best_elbo,), (0,), 0, 0.0, 1.0, False)
    return _result(_tame(density, normal, rng), found)


def _inverse_root(hessian: Matrix, score: Vector) -> Matrix:
    """R with RRᵀ = |H|⁻¹.

    A coordinate without curvature takes that of an exponential of its slope, or one; a direction
    without, that of its coordinates.
    """
    curvature = np.abs(np.diag(hessian))
    curvature = np.where(curvature > 0, curvature, np.where(score != 0, score**2, 1.0))
    unit = 1 / np.sqrt(curvature)
    eigenvalues, vectors = np.linalg.eigh(hessian * unit * unit[:, None])
    eigenvalues = np.abs(eigenvalues)
    eigenvalues = np.where(eigenvalues > 1e-12 * eigenvalues.max(), eigenvalues, 1.0)
    return unit[:, None] * vectors / np.sqrt(eigenvalues)


def _batches(x: Points) -> list[Float[np.ndarray, "b d"]]:
    padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % _BATCH, axis=0)])
    return np.split(padded, len(padded) // _BATCH)


def _noise(count: int, dim: int, rng: Generator) -> Points:
    """Standard normal draws in pairs ±ε, whose odd moments vanish."""
    half = rng.standard_normal((count // 2, dim))
    return np.concatenate([half, -half])


def _result(normal: _Normal, report: Report) -> Gaussian:
    return Gaussian(jnp.asarray(normal.location), jnp.asarray(np.tril(normal.scale)), report)
