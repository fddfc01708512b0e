r"""Radial kernels k(x, y) = κ(‖x − y‖²) and their bandwidths, as matrix products.

For a radial kernel ∇₁k(x, y) = 2κ′(‖x − y‖²)(x − y), so Σ_j ∇₁k(x_j, y_i) = 2 Σ_j κ′_ji x_j − 2 y_i Σ_j κ′_ji: every
sum that a direction needs is the product of an n×n matrix and an n×d one. An n×n×d array is formed only by
`Gram.gradients`.
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    """A kernel evaluated between the rows of x and those of y.

    Parameters
    ----------
    x, y
        The rows, (n, d) and (m, d).
    value
        κ(‖x_j − y_i‖²), (n, m).
    slope
        κ′(‖x_j − y_i‖²), (n, m).

    Examples
    --------
    >>> x = jax.random.normal(key, (5, 2))
    >>> gram = gpvi.kernels.RBF()(x, x)
    >>> gram.value.shape, gram.gradient_sum().shape
    ((5, 5), (5, 2))
    """

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    value: Float[Array, "n m"]
    slope: Float[Array, "n m"]

    def smooth(self, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        """Return Σ_j k(x_j, y_i) v_j for every i, where v_j are the rows of `values`."""
        return contracted(self.value, values)

    def gradient_sum(self) -> Float[Array, "m d"]:
        """Return Σ_j ∇_{x_j} k(x_j, y_i) for every i."""
        centre = self.y.mean(0)  # as for the distances: a far-away cloud keeps its digits
        x, y = self.x - centre, self.y - centre
        return 2 * (contracted(self.slope, x) - self.slope.sum(0)[:, None] * y)

    def gradients(self) -> Float[Array, "n m d"]:
        """Return ∇_{x_j} k(x_j, y_i) for every j and i; meant for small d, such as that of a noise head."""
        return rows(2 * self.slope[:, :, None] * (self.x[:, None, :] - self.y[None, :, :]))

    def gradients_of(self, x: Float[Array, " d"], slope: Float[Array, " m"]) -> Float[Array, "m d"]:
        """Return ∇_{x_j} k(x_j, y_i) for every i and a single j, given its rows of `x` and of `slope`."""
        return 2 * slope[:, None] * (x - self.y)


def squared_distances(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Return ‖x_i − y_j‖² for all pairs of rows.

    Up to four coordinates are summed one by one, which is exact and as fast. More are one matrix product, centred
    first, so that a far-away cloud keeps its digits. The error of the product is about εR² for two clouds that lie R
    apart.

    Parameters
    ----------
    x, y
        The rows, (n, d) and (m, d).

    Returns
    -------
    Array
        The squared distances, (n, m).

    Examples
    --------
    >>> gpvi.kernels.squared_distances(jnp.zeros((1, 2)), jnp.array([[3.0, 4.0]])).tolist()
    [[25.0]]
    """
    if x.shape[1] <= ONE_BY_ONE:
        differences = (x[:, i, None] - y[None, :, i] for i in range(x.shape[1]))
        return functools.reduce(jnp.add, (difference**2 for difference in differences))
    centre = jax.lax.stop_gradient(y.mean(0))
    x, y = x - centre, y - centre
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2 * product(x, y.T)
    return jnp.maximum(squares, 0.0)


def median(values: Float[Array, "..."]) -> Scalar:
    """Return the median of non-negative values; on a CPU by bisection on their bit patterns.

    Non-negative IEEE floats have the order of the integers with the same bits, so the k-th smallest value is found
    exactly by counting: 31 (float32) or 63 (float64) passes over the data, each a comparison and a sum. XLA sorts
    slowly on CPUs, and this takes a fraction of the time. On other devices it is `jnp.median`.

    For an even number of values it is the mean of the middle two. These count as equal if they differ by rounding
    alone.

    Parameters
    ----------
    values
        Non-negative numbers, in any shape.

    Returns
    -------
    Scalar
        Their median.

    Examples
    --------
    >>> float(gpvi.kernels.median(jnp.array([3.0, 1.0, 2.0])))
    2.0
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
    # XLA may compute the values again for what follows and round them differently: treat nearly `lower` as `lower`.
    equal = values <= lower * (1 + 8 * jnp.finfo(values.dtype).eps)
    upper = jnp.where(equal.sum() > rank + 1, lower, jnp.where(equal, jnp.inf, values).min())
    return (lower + upper) / 2


def chi_squared_median(dim: int) -> float:
    """Return the median of χ² with `dim` degrees of freedom.

    Parameters
    ----------
    dim
        The degrees of freedom.

    Returns
    -------
    float
        The median.

    Examples
    --------
    >>> round(gpvi.kernels.chi_squared_median(2), 3)
    1.386
    """
    from scipy.stats import chi2

    return float(chi2.median(dim))


class Bandwidth(ABC):
    """A rule for the bandwidth h: subclass it and decorate the subclass with `gpvi.specs.spec`.

    Examples
    --------
    >>> squares = gpvi.kernels.squared_distances(jnp.eye(3), jnp.eye(3))
    >>> float(gpvi.kernels.Fixed(0.5)(squares, 3))
    0.5
    """

    @abstractmethod
    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        """Return h, given the squared distances between two sets of rows and the number of their coordinates."""


def _require_factor(factor: float) -> None:
    require_positive("bandwidth factor", factor, "Use 1.0 for the paper's rule.")


@spec
class Median(Bandwidth):
    """h = factor · med² / log n, where med² is the median of the squared distances between the rows (Liu & Wang 2016).

    Parameters
    ----------
    factor
        1 in the paper's App. B; its authors' generators used log n², which is factor ½.

    Examples
    --------
    >>> kernel = gpvi.kernels.RBF(gpvi.kernels.Median(factor=0.5))
    """

    factor: float = 1.0

    def __post_init__(self):
        _require_factor(self.factor)

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        """Return the bandwidth; 1 takes the place of a median of zero."""
        med = median(jax.lax.stop_gradient(squares))
        return self.factor * jnp.where(med > 0, med, 1.0) / jnp.log(max(squares.shape[0], 2))


@spec
class Noise(Bandwidth):
    """The rule of `Median` for rows that are known to be N(0, I): med² = 2·median(χ²_d), a constant.

    Parameters
    ----------
    factor
        As for `Median`.

    Examples
    --------
    >>> kernel = gpvi.kernels.RBF("noise")
    """

    factor: float = 1.0

    def __post_init__(self):
        _require_factor(self.factor)

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        """Return the bandwidth."""
        constant = self.factor * 2 * chi_squared_median(dim) / jnp.log(max(squares.shape[0], 2))
        return jnp.asarray(constant, squares.dtype)


@spec
class Fixed(Bandwidth):
    """A given bandwidth.

    Parameters
    ----------
    value
        h.

    Examples
    --------
    >>> kernel = gpvi.kernels.RBF(0.5)  # the same as RBF(Fixed(0.5))
    """

    value: float

    def __post_init__(self):
        require_positive("bandwidth", self.value, "Or use bandwidth='median'.")

    def __call__(self, squares: Float[Array, "n m"], dim: int) -> Scalar:
        """Return the bandwidth."""
        return jnp.asarray(self.value, squares.dtype)


def as_bandwidth(value: Any) -> Bandwidth:
    """Return a bandwidth rule, given one or its shorthand.

    Parameters
    ----------
    value
        "median", "noise", a number, or a `Bandwidth`.

    Returns
    -------
    Bandwidth
        The rule.

    Raises
    ------
    gpvi.errors.InputError
        If it is none of these.

    Examples
    --------
    >>> gpvi.kernels.as_bandwidth("median"), gpvi.kernels.as_bandwidth(0.5)
    (Median(factor=1.0), Fixed(value=0.5))
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fixed(float(value))
    return resolve(value, {"median": Median, "noise": Noise}, "bandwidth", Bandwidth | float)


@dataclass(frozen=True)
class Kernel(ABC):
    """A radial kernel k(x, y) = κ(‖x − y‖²): subclass it and decorate the subclass with `gpvi.specs.spec`.

    A subclass must define `profile`.

    Parameters
    ----------
    bandwidth
        The scale h of squared distances: "median", "noise", a number, or a `Bandwidth`.

    Examples
    --------
    >>> isinstance(gpvi.kernels.RBF(), gpvi.kernels.Kernel)
    True
    """

    bandwidth: Bandwidth | str | float = "median"

    def __post_init__(self):
        as_bandwidth(self.bandwidth)

    @abstractmethod
    def profile(
        self, squares: Float[Array, "n m"], h: Scalar
    ) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
        """Return κ and its derivative κ′ at squared distances.

        Parameters
        ----------
        squares
            Squared distances r².
        h
            The bandwidth.

        Returns
        -------
        tuple of Array
            κ(r²) and κ′(r²) = dκ/d(r²), in the shape of `squares`.
        """

    def __call__(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Gram:
        """Evaluate the kernel between the rows of x (its first argument) and those of y.

        Parameters
        ----------
        x, y
            The rows, (n, d) and (m, d).

        Returns
        -------
        Gram
            κ and κ′ of all pairs.
        """
        x, y = paired(x, y)
        squares = pairs(squared_distances(x, y), x)
        h = as_bandwidth(self.bandwidth)(squares, x.shape[1])
        return Gram(x, y, *self.profile(squares, h))


@spec
class RBF(Kernel):
    """k(x, y) = exp(−‖x − y‖² / h), the paper's kernel (App. B, where a minus sign is missing).

    Parameters
    ----------
    bandwidth
        h: "median", "noise", a number, or a `Bandwidth`.

    Examples
    --------
    >>> x = jnp.array([[0.0], [1.0]])
    >>> print(np.round(np.asarray(gpvi.kernels.RBF(1.0)(x, x).value), 2))
    [[1.   0.37]
     [0.37 1.  ]]
    """

    def profile(self, squares, h):
        """Return κ = exp(−r²/h) and κ′ = −κ/h."""
        value = jnp.exp(-squares / h)
        return value, -value / h


@spec
class IMQ(Kernel):
    """k(x, y) = (1 + ‖x − y‖² / h)^{-1/2}, the inverse multiquadric.

    Its tails are heavier than those of `RBF`, so distant particles still repel each other.

    Parameters
    ----------
    bandwidth
        h: "median", "noise", a number, or a `Bandwidth`.

    Examples
    --------
    >>> method = gpvi.SVGD(kernel=gpvi.kernels.IMQ())
    """

    def profile(self, squares, h):
        """Return κ = (1 + r²/h)^{-1/2} and κ′ = −κ³ / (2h)."""
        value = jax.lax.rsqrt(1 + squares / h)
        return value, -(value**3) / (2 * h)


def as_kernel(value: Any) -> Kernel:
    """Return a kernel, given one or its shorthand.

    Parameters
    ----------
    value
        "rbf", "imq" or a `Kernel`.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    gpvi.errors.InputError
        If it is none of these.

    Examples
    --------
    >>> gpvi.kernels.as_kernel("imq")
    IMQ(bandwidth='median')
    """
    return resolve(value, {"rbf": RBF, "imq": IMQ}, "kernel", Kernel)


@spec
class OnNoise:
    """A kernel on the noise, for Thm 3.1: on the k head coordinates or on all d.

    The generator's network depends on z_head alone, so the functions of z_head are the natural RKHS. A median-bandwidth
    kernel on all of a long z is nearly constant, and the direction degenerates to the mean score.

    Parameters
    ----------
    coordinates
        "head" or "full".
    kernel
        The kernel.

    Examples
    --------
    >>> kernel = gpvi.kernels.OnNoise("full", gpvi.kernels.IMQ("noise"))
    >>> method = gpvi.GPVI(gradient="functional", kernel=kernel)
    """

    coordinates: Literal["head", "full"] = "head"
    kernel: Kernel = RBF("noise")

    def __post_init__(self):
        require_choice(self.coordinates, ("head", "full"), "kernel coordinates")
        require_instance("kernel on the noise", self.kernel, Kernel)
