r"""Densities of our own with known answers, pleasant ones among unpleasant ones, to try the verdict on.

Each has one difficulty: modes far apart, of different widths or small, filaments, walls, heavy tails, necks,
exchangeable labels, aliases. Truths are by construction, by quadrature, or by enumeration.
"""

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Scalar

from gpvi_paper.experiments.frontier.densities import (
    LOG_2PI,
    Known,
    funnel,
    gridded,
    many_wells,
    mixture,
    one_mode,
)


def pushed(
    base: Known,
    forward: Callable[[np.ndarray], np.ndarray],
    inverse: Callable[[Float[Array, " d"]], tuple[Float[Array, " d"], Scalar | float]],
) -> Known:
    """The density of T(x), x from `base`; `inverse` returns T⁻¹(y) and log|det ∂T⁻¹/∂y|."""

    def log_density(y: Float[Array, " d"]) -> Scalar:
        x, log_det = inverse(y)
        return base.log_density(x) + log_det

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return forward(base.draw(rng, n))

    return Known(log_density, base.dim, base.log_evidence, draw, one_mode)


def gaussian(dim: int, condition: float, seed: int = 0) -> Known:
    """A Gaussian with a random orientation and sds that span √condition."""
    rng = np.random.default_rng(seed)
    rotate = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    factor = rotate * np.geomspace(1, math.sqrt(condition), dim)
    inverse = jnp.asarray(np.linalg.inv(factor), jnp.float32)
    log_det = -0.5 * math.log(condition) * dim / 2
    normal = mixture(np.zeros((1, dim)), 1.0)
    return pushed(
        normal,
        lambda x: x @ factor.T,
        lambda y: (jnp.matmul(inverse, y, precision="highest"), log_det),
    )


def scales(dim: int = 8) -> Known:
    """Independent coordinates with sds from 10⁻³ to 10³ and different skewness: sinh of a Gaussian."""
    sds = np.geomspace(1e-3, 1e3, dim)
    normal = mixture(np.zeros((1, dim)), 1.0)

    def inverse(y: Float[Array, " d"]) -> tuple[Float[Array, " d"], Scalar]:
        t = 0.5 * y / sds
        return 2 * jnp.arcsinh(t), (-jnp.log(sds) - 0.5 * jnp.log1p(t**2)).sum()

    return pushed(normal, lambda x: sds * 2 * np.sinh(x / 2), inverse)


def bent(base: Known) -> Known:
    """A density whose second coordinate is bent by the square of the first, the fourth by the third, and so on."""

    def forward(x: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[:, 1::2] += 0.5 * (x[:, 0::2] ** 2 - 1)
        return y

    def inverse(y: Float[Array, " d"]) -> tuple[Float[Array, " d"], float]:
        return y.at[1::2].add(-0.5 * (y[0::2] ** 2 - 1)), 0.0

    return pushed(base, forward, inverse)


def twisted(dim: int = 20) -> Known:
    """A curved valley."""
    return bent(mixture(np.zeros((1, dim)), 1.0))


def coordinatewise(dim: int, log_density: Callable[[Array], Array], reach: float) -> Known:
    """Independent coordinates with the same density on a line, up to a constant."""
    line = np.linspace(-reach, reach, 400_001)
    p = np.exp(np.asarray(log_density(jnp.asarray(line)), float))
    cumulative, log_z = np.cumsum(p) / p.sum(), math.log(np.trapezoid(p, line))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.interp(rng.uniform(size=(n, dim)), cumulative, line)

    return Known(lambda x: log_density(x).sum(), dim, dim * log_z, draw, one_mode)


def in_a_box() -> Known:
    """Two Beta densities in a square, one along its edge, in logit coordinates."""
    weights = np.array([0.6, 0.4])
    a, b = np.array([[20.0, 20.0], [0.6, 8.0]]), np.array([[20.0, 20.0], [12.0, 8.0]])
    log_beta = np.vectorize(lambda a, b: math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))(a, b)

    def log_density(x: Float[Array, " 2"]) -> Scalar:
        inside, outside = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
        return logsumexp((a * inside + b * outside - log_beta).sum(1) + np.log(weights))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        which = rng.choice(2, n, p=weights)
        share = np.clip(rng.beta(a[which], b[which]), 1e-300, 1 - 1e-16)
        return np.log(share) - np.log1p(-share)

    return Known(log_density, 2, 0.0, draw, one_mode)


def labels() -> Known:
    """Three exchangeable groups: the six permutations of one Gaussian with means −3, 0, 4."""
    return mixture(list(itertools.permutations([-3.0, 0.0, 4.0])), 0.3)


def sign_flips() -> Known:
    """A factor model's symmetry: x y is known to be 2 ± .3, x and y have standard normal priors."""

    def log_density(z: Float[Array, " 2"]) -> Scalar:
        return -0.5 * ((z[0] * z[1] - 2) / 0.3) ** 2 - 0.5 * z @ z

    return gridded(log_density, (-5.5, 5.5), (-5.5, 5.5), lambda x: (x[:, 0] > 0).astype(int))


def aliases() -> Known:
    """y = sin(ωt + φ) at twelve integer times, sd .3, ω ~ N(0, 10), φ ~ N(0, 1): frequencies 2π apart fit as well."""
    rng = np.random.default_rng(3)
    t = np.arange(12.0)
    y = np.sin(1.3 * t + 0.4) + 0.3 * rng.normal(size=12)

    def log_density(z: Float[Array, " 2"]) -> Scalar:
        residual = (jnp.asarray(y) - jnp.sin(z[0] * t + z[1])) / 0.3
        return -0.5 * residual @ residual - 0.05 * z[0] ** 2 - 0.5 * z[1] ** 2

    def modes(x: np.ndarray) -> np.ndarray:
        return np.round((x[:, 0] - 1.3) / math.pi).astype(int) + 20

    return gridded(log_density, (-15.0, 15.0), (-5.0, 5.0), modes, cells=4_000)


def length_scales() -> Known:
    """A Gaussian process that explains 16 data by a long or a short length scale: log ℓ and log of the noise's sd."""
    rng = np.random.default_rng(5)
    t = np.linspace(0, 4, 16)
    y = np.sin(2 * t) + 0.6 * np.sin(9 * t) + 0.1 * rng.normal(size=16)
    square = (t[:, None] - t) ** 2

    def log_density(z: Float[Array, " 2"]) -> Scalar:
        kernel = jnp.exp(-0.5 * square * jnp.exp(-2 * z[0]))
        factor = jnp.linalg.cholesky(kernel + (jnp.exp(2 * z[1]) + 1e-4) * jnp.eye(16))
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        prior = -0.5 * ((z[0] + 0.5) / 1.5) ** 2 - 0.5 * ((z[1] + 1) / 1.0) ** 2
        return -0.5 * white @ white - jnp.log(jnp.diagonal(factor)).sum() + prior

    return gridded(log_density, (-7.0, 5.0), (-6.0, 4.0), cells=500)


def spike_and_slab(dim: int = 12) -> Known:
    """Regression with near-duplicate columns: each coefficient N(0, .1²) or N(0, 1), the truth by all 2¹² models."""
    rng = np.random.default_rng(7)
    size = 40
    x = rng.normal(size=(size, dim))
    x[:, 1] = x[:, 0] + 0.1 * rng.normal(size=size)
    y = x @ np.r_[1.0, np.zeros(dim - 2), 0.7] + rng.normal(size=size)
    included = np.array(list(itertools.product([0.1, 1.0], repeat=dim)))
    log_z, means, factors = np.empty(len(included)), [], []
    for row, sd in enumerate(included):
        precision = x.T @ x + np.diag(sd**-2)
        factor = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, x.T @ y)
        log_z[row] = 0.5 * (x.T @ y) @ mean - np.log(np.diag(factor)).sum() - np.log(sd).sum()
        means.append(mean)
        factors.append(factor)
    log_z += -0.5 * y @ y - 0.5 * size * LOG_2PI - dim * math.log(2)
    share = np.exp(log_z - log_z.max())
    share /= share.sum()
    means, factors = np.array(means), np.array(factors)

    def log_density(b: Float[Array, " d"]) -> Scalar:
        residual = y - jnp.matmul(x, b, precision="highest")
        spike = -0.5 * (b / 0.1) ** 2 - math.log(0.1)
        prior = jnp.logaddexp(spike, -0.5 * b**2) - math.log(2) - 0.5 * LOG_2PI
        return -0.5 * residual @ residual - 0.5 * size * LOG_2PI + prior.sum()

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        which = rng.choice(len(share), n, p=share)
        noise = rng.normal(size=(n, dim, 1))
        tall = np.linalg.solve(np.swapaxes(factors[which], 1, 2), noise)[..., 0]
        return means[which] + tall

    total = float(log_z.max() + math.log(np.exp(log_z - log_z.max()).sum()))
    return Known(log_density, dim, total, draw, one_mode)


def shell(dim: int = 3, radius: float = 4.0, width: float = 0.2) -> Known:
    """A sphere with a thin wall."""
    line = np.linspace(1e-6, radius + 12 * width, 200_001)
    p = line ** (dim - 1) * np.exp(-0.5 * ((line - radius) / width) ** 2)
    log_area = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)
    cumulative = np.cumsum(p) / p.sum()

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        direction = rng.normal(size=(n, dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return np.interp(rng.uniform(size=(n, 1)), cumulative, line) * direction

    def log_density(x: Float[Array, " d"]) -> Scalar:
        return -0.5 * ((jnp.sqrt((x**2).sum() + 1e-12) - radius) / width) ** 2

    return Known(log_density, dim, math.log(np.trapezoid(p, line)) + log_area, draw, one_mode)


def cross(dim: int = 2) -> Known:
    """Two thin Gaussians that cross at right angles."""
    sds = np.array([[3.0] + [0.15] * (dim - 1), [0.15] * (dim - 1) + [3.0]])

    def log_density(x: Float[Array, " d"]) -> Scalar:
        return logsumexp(-0.5 * ((x / sds) ** 2).sum(1)) - np.log(sds[0]).sum() - math.log(2)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        which = rng.integers(2, size=n)
        return sds[which] * rng.normal(size=(n, dim))

    return Known(log_density, dim, 0.5 * dim * LOG_2PI, draw, one_mode)


def spiral() -> Known:
    """A filament that winds once and a half around the origin."""
    turn = np.linspace(0.5, 3 * math.pi, 120)
    centres = np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1) / 2
    return mixture(centres, 0.25)._replace(modes=one_mode)


def moons() -> Known:
    """Two half rings that interlock."""
    angle = np.linspace(0, math.pi, 40)
    upper = np.stack([2 * np.cos(angle), 2 * np.sin(angle)], 1)
    centres = np.concatenate([upper, np.array([2.0, 0.6]) - upper])
    return mixture(centres, 0.2)._replace(modes=one_mode)


def in_a_tail() -> Known:
    """A narrow Gaussian, 15 %, far out in the tail of Student's t with three degrees, d = 5."""
    bulk, needle = mixture(np.zeros((1, 5)), 1.0, degrees=3.0), mixture([[30.0] + [0.0] * 4], 0.5)

    def log_density(x: Float[Array, " d"]) -> Scalar:
        return jnp.logaddexp(
            math.log(0.85) + bulk.log_density(x), math.log(0.15) + needle.log_density(x)
        )

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        far = rng.random((n, 1)) < 0.15
        return np.where(far, needle.draw(rng, n), bulk.draw(rng, n))

    return Known(log_density, 5, 0.0, draw, lambda x: (np.abs(x[:, 0] - 30) < 4).astype(int))


def sheets(dim: int = 10) -> Known:
    """Two parallel sheets, .1 thick and 6 apart, that reach 3 in all other directions."""
    scale = np.array([0.1] + [3.0] * (dim - 1))
    apart = np.zeros((2, dim))
    apart[:, 0] = [-30.0, 30.0]
    base, log_det = mixture(apart, 1.0), -float(np.log(scale).sum())
    whole = pushed(base, lambda x: x * scale, lambda y: (y / scale, log_det))
    return whole._replace(modes=lambda y: (y[:, 0] > 0).astype(int))


def bent_pair(dim: int = 6) -> Known:
    """Two Gaussians, 60 % and 40 %, bent as the twisted density is."""
    centres = np.zeros((2, dim))
    centres[1, 0] = 7.0
    pair = bent(mixture(centres, 1.0, [0.6, 0.4]))
    return pair._replace(modes=lambda y: (y[:, 0] > 3.5).astype(int))


def two_means() -> Known:
    """The means of a mixture of two Gaussians, equal shares, 60 data, no ordering."""
    rng = np.random.default_rng(11)
    y = jnp.asarray(np.where(rng.random(60) < 0.5, -1.5, 1.5) + rng.normal(size=60))

    def log_density(m: Float[Array, " 2"]) -> Scalar:
        terms = -0.5 * (y[:, None] - m) ** 2
        return (logsumexp(terms, axis=1) - math.log(2)).sum() - 0.5 * m @ m / 25

    return gridded(log_density, (-5.0, 5.0), (-5.0, 5.0), lambda x: (x[:, 0] > x[:, 1]).astype(int))


def triangle() -> Known:
    """A Dirichlet density in its own coordinates: log p is −∞ outside a triangle."""

    def log_density(x: Float[Array, " 2"]) -> Scalar:
        rest = 1 - x.sum()
        inside = (x > 0).all() & (rest > 0)
        shares = jnp.where(inside, jnp.append(x, rest), 1 / 3)
        return jnp.where(inside, (jnp.array([1.0, 2.0, 3.0]) * jnp.log(shares)).sum(), -jnp.inf)

    return gridded(log_density, (0.0, 1.0), (0.0, 1.0))._replace(initial=(0.3, 0.3))


def comb() -> Known:
    """A Gaussian envelope of sd 3 over a wave of length 1.6, d = 2: some sixty modes that touch."""
    return coordinatewise(2, lambda x: -0.5 * (x / 3) ** 2 + jnp.log(1.02 + jnp.cos(4 * x)), 20.0)


def at(points: list[list[float]], sds: float | list[float], weights: list[float] | None = None):
    """A maker of a mixture."""
    return lambda: mixture(points, sds, weights)


_CIRCLE = [[6 * math.cos(a), 6 * math.sin(a)] for a in np.arange(8) * math.pi / 4]

OURS: dict[str, tuple[str, Callable[[], Known]]] = {
    "gaussian-10": ("Gaussian, d = 10, condition 10⁴", lambda: gaussian(10, 1e4)),
    "gaussian-50": ("Gaussian, d = 50, condition 10⁶", lambda: gaussian(50, 1e6)),
    "scales": ("Scales from 10⁻³ to 10³", scales),
    "twisted": ("Twisted, d = 20", twisted),
    "twisted-2": ("Twisted, d = 2", lambda: twisted(2)),
    "laplace": ("Laplace, d = 10", lambda: coordinatewise(10, lambda x: -jnp.abs(x), 40.0)),
    "flat": ("exp(−x⁸), d = 5", lambda: coordinatewise(5, lambda x: -(x**8), 3.0)),
    "gumbel": (
        "Logarithms of gamma variables, d = 6",
        lambda: coordinatewise(6, lambda x: 0.7 * x - jnp.exp(x), 45.0),
    ),
    "logistic": (
        "Logistic, d = 20",
        lambda: coordinatewise(20, lambda x: -x - 2 * jnp.logaddexp(0.0, -x), 60.0),
    ),
    "student-5": (
        "Student's t with five degrees, d = 5",
        lambda: mixture(np.zeros((1, 5)), 1.0, degrees=5.0),
    ),
    "student-3": (
        "Student's t with three degrees, d = 10",
        lambda: mixture(np.zeros((1, 10)), 1.0, degrees=3.0),
    ),
    "cauchy": ("Cauchy, d = 3", lambda: mixture(np.zeros((1, 3)), 1.0, degrees=1.0)),
    "funnel-3": ("Mild funnel, d = 5", lambda: funnel(5, sd=1.0)),
    "funnel-20": ("Funnel, d = 20", lambda: funnel(20, sd=2.0)),
    "shell": ("Sphere, d = 3", shell),
    "shell-10": ("Sphere, d = 10", lambda: shell(10, 6.0, 0.5)),
    "cross": ("A cross", cross),
    "spiral": ("A spiral", spiral),
    "moons": ("Two moons", moons),
    "two-far": ("Modes at 0 (30 %) and 20·1, d = 5", at([[0.0] * 5, [20.0] * 5], 1.0, [0.3, 0.7])),
    "two-farther": ("Modes 60 sd apart", at([[-30.0, 0.0], [30.0, 0.0]], 1.0)),
    "two-farthest": ("Modes 600 sd apart", at([[-300.0, 0.0], [300.0, 0.0]], 1.0, [0.4, 0.6])),
    "two-near": ("Modes 8 sd apart, d = 10", at([[-4.0] + [0.0] * 9, [4.0] + [0.0] * 9], 1.0)),
    "two-20": ("Modes 18 sd apart, d = 20", at([[-2.0] * 20, [2.0] * 20], 1.0, [0.2, 0.8])),
    "small-5": ("A mode of 5 %, d = 5", at([[0.0] * 5, [6.0] * 5], 1.0, [0.95, 0.05])),
    "small-3": ("A mode of 3 %, d = 10", at([[0.0] * 10, [4.0] * 10], 1.0, [0.97, 0.03])),
    "narrow": ("Widths 1 and .1, 8 apart, d = 2", at([[0.0, 0.0], [8.0, 0.0]], [1.0, 0.1])),
    "narrow-5": ("Widths 1 and .3, d = 5", at([[0.0] * 5, [4.0] * 5], [1.0, 0.3])),
    "needle": ("Widths 1 and .1, concentric, d = 5", at([[0.0] * 5, [0.0] * 5], [1.0, 0.1])),
    "box": ("A mode along the edge of a box", in_a_box),
    "labels": ("Six labellings", labels),
    "signs": ("Two signs of a product", sign_flips),
    "aliases": ("Aliases of a period", aliases),
    "lengths": ("Two length scales", length_scales),
    "slab": ("Spike and slab, d = 12", spike_and_slab),
    "wells-8": ("ManyWell, d = 8", lambda: many_wells(8)),
    "star": (
        "Eight modes on a circle",
        at(_CIRCLE, 0.5),
    ),
    "three-far": (
        "Modes 0, 40 and 400 away, sds 1, 3 and 10, d = 5",
        at(
            [[0.0] * 5, [18.0, -18.0, 18.0, 18.0, -18.0], [-180.0, 180.0, 180.0, -180.0, 180.0]],
            [1.0, 3.0, 10.0],
            [0.4, 0.3, 0.3],
        ),
    ),
    "narrow-10": ("Widths 1 and .3, d = 10", at([[0.0] * 10, [4.0] * 10], [1.0, 0.3])),
    "widths": ("Widths .05, 1 and 20, concentric, d = 3", at([[0.0] * 3] * 3, [0.05, 1.0, 20.0])),
    "tail": ("A mode in a heavy tail, d = 5", in_a_tail),
    "sheets": ("Two sheets, d = 10", sheets),
    "bent-pair": ("Two bent modes, d = 6", bent_pair),
    "two-means": ("Means of a mixture without order", two_means),
    "triangle": ("A triangle with hard walls", triangle),
    "comb": ("A comb, d = 2", comb),
    "funnel-30": ("Mild funnel, d = 30", lambda: funnel(30, sd=1.0)),
}
"""Name → title and density."""
