r"""Radial kernels k(x, y) = κ(‖x − y‖²) and their bandwidths, in matmul form.

Every sum a direction needs is a product of an n×n matrix with an n×d one: for a radial kernel
∇₁k(x, y) = 2κ′(‖x − y‖²)(x − y), so Σ_j ∇₁k(x_j, y_i) = 2 Σ_j κ′_ji x_j − 2 y_i Σ_j κ′_ji.
Nothing of size n×n×d is formed unless `gradients` is asked for it.
"""

import functools
from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from gpvi._compute.precision import product
from gpvi.parallel.mesh import contracted, paired, pairs, rows
from gpvi.specs import require_choice, require_instance, require_positive, resolve, spec

ONE_BY_ONE = 4
"""Number of coordinates up to which squared distances are summed coordinate by coordinate."""


class Gram(NamedTuple):
    """A kernel evaluated between the rows of x and y: κ and κ′, with the rows they belong to."""

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    value: Float[Array, "n m"]
    slope: Float[Array, "n m"]

    def smooth(self, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        """Σ_j k(x_j, y_i) v_j."""
        return contracted(self.value, values)

    def gradient_sum(self) -> Float[Array, "m d"]:
        """Σ_j ∇_{x_j} k(x_j, y_i), centred as the distances are."""
        centre = self.y.mean(0)
        x, y = self.x - centre, self.y - centre
        return 2 * (contracted(self.slope, x) - self.slope.sum(0)[:, None] * y)

    def gradients(self) -> Float[Array, "n m d"]:
        """∇_{x_j} k(x_j, y_i), all of them; d is the small dimension of the noise head."""
        return rows(2 * self.slope[:, :, None] * (self.x[:, None, :] - self.y[None, :, :]))

    def gradients_of(self, x: Float[Array, " d"], slope: Float[Array, " m"]) -> Float[Array, "m d"]:
        """∇_{x_j} k(x_j, y_i) for a single j, from its rows of x and of the slopes."""
        return 2 * slope[:, None] * (x - self.y)


def squared_distances(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x_i − y_j‖²: of few coordinates one by one, of many by one matmul.

    The matmul is centred first, so that a far-away cloud keeps its digits; those of two clouds that lie R apart are
    within εR² of the truth, which is much where that is not small beside their width. One by one they are exact and,
    while the coordinates are few, as fast.
    """
    if x.shape[1] <= ONE_BY_ONE:
        differences = (x[:, i, None] - y[None, :, i] for i in range(x.shape[1]))
        return functools.reduce(jnp.add, (difference**2 for difference in differences))
    centre = jax.lax.stop_gradient(y.mean(0))
    x, y = x - centre, y - centre
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2 * product(x, y.T)
    return jnp.maximum(squares, 0.0)


def median(values: Float[Array, "..."]) -> Scalar:
    """The median of non-negative values by bisection on their bit patterns.

    Non-negative IEEE floats are ordered as the integers that hold their bits, so the k-th smallest value is found
    exactly by counting: 31 (float32) or 63 (float64) passes over the data, each a comparison and a sum. XLA sorts
    slowly on CPUs, and this costs a fraction of it; an accelerator sorts faster than it loops. Of an even number of
    values it is the mean of the middle two, which count as one where rounding alone may tell them apart.
    """
    return jax.lax.platform_dependent(values.ravel(), cpu=_median_by_bisection, default=jnp.median)


def _median_by_bisection(values: Float[Array, " n"]) -> Scalar:
    bits, integer = (63, jnp.int64) if values.dtype == jnp.float64 else (31, jnp.int32)
    keys = jax.lax.bitcast_convert_type(values, integer)
    rank = (values.size - 1) // 2

    def narrow(i: Array, kth: Array) -> Array:
        trial = kth | (jnp.ones((), integer) << (bits - 1 - i).astype(integer))
        return jnp.where((keys < trial).sum() <= rank, trial, kth)

    kth = jax.lax.fori_loop(0, bits, narrow, jnp.zeros((), integer))
    lower = jax.lax.bitcast_convert_type(kth, values.dtype)
    if values.size % 2:
        return lower
    # XLA may compute the values anew for what follows, and round them otherwise: nearly `lower` is `lower`.
    equal = values <= lower * (1 + 8 * jnp.finfo(values.dtype).eps)
    upper = jnp.where(equal.sum() > rank + 1, lower, jnp.where(equal, jnp.inf, values).min())
    return (lower + upper) / 2


def chi_squared_median(dim: int) -> float:
    """The median of χ² with `dim` degrees of freedom."""
    from scipy.stats import chi2

    return float(chi2.median(dim))


@spec
class Median:
    """h = factor · med² / log n, med² the median of the squared distances between the rows (Liu & Wang 2016).

    The paper's App. B has factor 1; its authors' generators used log n², which is factor ½.
    """

    factor: float = 1.0

    def __post_init__(self):
        require_positive("bandwidth factor", self.factor, "Use 1.0 for the paper's rule.")

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        med = median(jax.lax.stop_gradient(squares))
        return self.factor * jnp.where(med > 0, med, 1.0) / jnp.log(max(squares.shape[0], 2))


@spec
class Noise:
    """The median rule for rows known to be N(0, I): med² = 2·median(χ²_d), a constant, so nothing is sorted."""

    factor: float = 1.0

    def __post_init__(self):
        require_positive("bandwidth factor", self.factor, "Use 1.0 for the paper's rule.")

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        constant = self.factor * 2 * chi_squared_median(dim) / jnp.log(max(squares.shape[0], 2))
        return jnp.asarray(constant, squares.dtype)


@spec
class Fixed:
    """A bandwidth h given by the user."""

    value: float

    def __post_init__(self):
        require_positive("bandwidth", self.value, "Or use bandwidth='median'.")

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        return jnp.asarray(self.value, squares.dtype)


Bandwidth = Median | Noise | Fixed


def as_bandwidth(value: Any) -> Bandwidth:
    """A rule from its shorthand: 'median', 'noise' or a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fixed(float(value))
    return resolve(value, {"median": Median, "noise": Noise}, "bandwidth", Bandwidth | float)


class Radial:
    """What every radial kernel shares; a kernel adds κ and κ′."""

    bandwidth: Bandwidth | str | float

    @abstractmethod
    def profile(
        self, squares: Float[Array, "n m"], h: Scalar
    ) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
        """κ(r²) and κ′(r²)."""

    def __call__(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Gram:
        """The Gram matrices of the rows of x (first argument) against those of y."""
        x, y = paired(x, y)
        squares = pairs(squared_distances(x, y), x)
        h = as_bandwidth(self.bandwidth)(squares, x.shape[1])
        return Gram(x, y, *self.profile(squares, h))


@spec
class RBF(Radial):
    """k(x, y) = exp(−‖x − y‖² / h), the paper's kernel (App. B, with the sign it means)."""

    bandwidth: Bandwidth | str | float = "median"

    def __post_init__(self):
        as_bandwidth(self.bandwidth)

    def profile(self, squares, h):
        """κ = exp(−r²/h), κ′ = −κ/h."""
        value = jnp.exp(-squares / h)
        return value, -value / h


@spec
class IMQ(Radial):
    """k(x, y) = (1 + ‖x − y‖² / h)^{-1/2}: heavier tails, so distant particles still feel each other."""

    bandwidth: Bandwidth | str | float = "median"

    def __post_init__(self):
        as_bandwidth(self.bandwidth)

    def profile(self, squares, h):
        """κ = (1 + r²/h)^{-1/2}, κ′ = −κ³ / (2h)."""
        value = jax.lax.rsqrt(1 + squares / h)
        return value, -(value**3) / (2 * h)


Kernel = RBF | IMQ


def as_kernel(value: Any) -> Kernel:
    """A kernel from its shorthand: 'rbf' or 'imq'."""
    return resolve(value, {"rbf": RBF, "imq": IMQ}, "kernel", Kernel)


@spec
class OnNoise:
    """A kernel for Thm 3.1, on the k head coordinates of the noise or on all d of them.

    The generator's network sees z_head alone, so `head` is the natural RKHS; a median-bandwidth kernel on all
    of a long z is nearly constant, and the direction degenerates to the mean score.
    """

    coordinates: Literal["head", "full"] = "head"
    kernel: Kernel = RBF("noise")

    def __post_init__(self):
        require_choice(self.coordinates, ("head", "full"), "kernel coordinates")
        require_instance("kernel on the noise", self.kernel, Kernel)
