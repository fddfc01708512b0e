"""The interface of a solver of J(z′)ᵀ y = v, its result, and sums over z′ in bounded memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.precision import product
from gpvi.generators import AbstractGenerator
from gpvi.kernels import Gram

PAIRED = 2**24
"""The largest number of entries that the array of all ∇k may have; beyond it, z′ are taken one at a time."""


class InverseProduct(NamedTuple):
    """The entropy term of Thm 3.1, and how well the systems J(z′)ᵀ y = v were solved.

    Parameters
    ----------
    value
        (1/n) Σ_j J(z′_j)^{-T} ∇_{z′_j} k(z′_j, z_i) for every i, (m, d).
    residual
        E‖Jᵀy − v‖² / E‖v‖²; zero for a direct solver.
    stretch
        The largest ‖y‖/‖v‖: it grows without bound where J comes near to being singular.
    inverse
        A⁻¹ at every z′, (n, k, k), if it was formed; otherwise None.

    Examples
    --------
    >>> zero = jnp.zeros(())
    >>> result = gpvi.solvers.InverseProduct(jnp.zeros((5, 2)), residual=zero, stretch=zero)
    """

    value: Float[Array, "m d"]
    residual: Scalar
    stretch: Scalar
    inverse: Float[Array, "n k k"] | None = None


def transposed_product(
    generator: AbstractGenerator, z: Float[Array, " d"], y: Float[Array, "m d"]
) -> Float[Array, "m d"]:
    """Return Jᵀy for every row of y (Eq. 11), by one vjp per row, or per row of J if there are more than d rows."""
    _, vjp = jax.vjp(generator, z)
    products = jax.vmap(lambda row: vjp(row)[0])
    if len(y) <= generator.dim:
        return products(y)
    return product(y, products(jnp.eye(generator.dim, dtype=z.dtype)))


def largest_ratio(y: Float[Array, "... d"], v: Float[Array, "... d"]) -> Scalar:
    """Return the largest ‖y‖/‖v‖ over the rows, without the rows where v is (nearly) zero.

    ∇k is zero where z′ = z and far from it. A helper network returns some y even there, and ‖y‖²/‖v‖² would overflow.
    """
    return largest_root_ratio((y**2).sum(-1), (v**2).sum(-1))


def largest_root_ratio(images: Float[Array, "..."], squares: Float[Array, "..."]) -> Scalar:
    """Return the largest ‖y‖/‖v‖, given all ‖y‖² and ‖v‖²."""
    counts = squares > jnp.finfo(squares.dtype).eps ** 2 * squares.max()
    return jnp.sqrt(jnp.where(counts, images / jnp.where(counts, squares, 1.0), 0.0).max())


class Sums(NamedTuple):
    """Sums over some z′: Σ_j y_ji for every i, Σ‖Jᵀy − v‖², Σ‖v‖², and the largest ‖y‖/‖v‖."""

    solutions: Float[Array, "m d"]
    error: Scalar
    size: Scalar
    stretch: Scalar

    @classmethod
    def of(cls, y: Float[Array, "j m d"], v: Float[Array, "j m d"], error: Scalar) -> "Sums":
        """Return the sums for solutions y of systems with right-hand sides v."""
        return cls(y.sum(0), error, (v**2).sum(), largest_ratio(y, v))

    def joined(self, other: "Sums") -> "Sums":
        """Return the sums over the z′ of both."""
        return Sums(
            self.solutions + other.solutions,
            self.error + other.error,
            self.size + other.size,
            jnp.maximum(self.stretch, other.stretch),
        )

    def over(self, number: int) -> InverseProduct:
        """Return the means over `number` z′; if all v are 0, the residual is 0."""
        some = self.size > 0
        residual = jnp.where(some, self.error / jnp.where(some, self.size, 1.0), 0.0)
        return InverseProduct(self.solutions / number, residual, self.stretch)


def fits(gram: Gram, width: int | None = None) -> bool:
    """Return whether vectors of this width for all pairs, by default the ∇k, fit in memory at once."""
    return gram.value.size * (gram.x.shape[1] if width is None else width) <= PAIRED


def summed(
    at: Callable[[Float[Array, "j d"], Float[Array, "j m d"]], tuple[PyTree, Sums]], gram: Gram
) -> tuple[PyTree, Sums]:
    """Return the sum of `at(z′, ∇k)` over all z′: in one call if the ∇k of all pairs fit, else one z′ at a time."""
    if fits(gram):
        return at(gram.x, gram.gradients())

    def one(z: Float[Array, " d"], slope: Float[Array, " m"]) -> tuple[PyTree, Sums]:
        return at(z[None], gram.gradients_of(z, slope)[None])

    def add(total: tuple[PyTree, Sums], of: tuple[Array, Array]):
        more, sums = one(*of)
        return (jax.tree.map(jnp.add, total[0], more), total[1].joined(sums)), None

    shapes = jax.eval_shape(one, gram.x[0], gram.slope[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, (gram.x, gram.slope))[0]


class Solver(ABC):
    """A way to compute the mean of J(z′)^{-T} ∇k over z′: subclass it and decorate the subclass with `gpvi.specs.spec`.

    A subclass must define `init` and `mean_product`, which are traced: they must be pure functions of JAX arrays. If
    the solver can solve J(z)ᵀ y = v for any v, subclass `ExactSolver` instead.

    Examples
    --------
    >>> isinstance(gpvi.solvers.Helper(), gpvi.solvers.Solver)
    True
    """

    @abstractmethod
    def init(self, generator: AbstractGenerator, *, key: PRNGKeyArray) -> PyTree:
        """Make the state that the solver carries from step to step, such as a network and its Adam moments.

        Parameters
        ----------
        generator
            f, or its head if the kernel is on the head.
        key
            A JAX key.

        Returns
        -------
        PyTree
            The state, or None.
        """

    @abstractmethod
    def mean_product(
        self, state: PyTree, generator: AbstractGenerator, gram: Gram
    ) -> tuple[InverseProduct, PyTree]:
        """Return the entropy term of Thm 3.1.

        Parameters
        ----------
        state
            What `init` or the last call returned.
        generator
            f, or its head if the kernel is on the head.
        gram
            The kernel between z′ (`gram.x`, n rows) and z (`gram.y`, m rows). `gram.gradients()` is ∇_{z′}k for all
            pairs, (n, m, d).

        Returns
        -------
        InverseProduct
            The mean over z′ for every z.
        PyTree
            The next state.
        """


class ExactSolver(Solver):
    """A solver that is linear in v, without a state: a subclass must define `solve`, and gets the means from it.

    `gradient="l2"` needs such a solver. If J is constant, one system is solved for all z′.

    Examples
    --------
    >>> generator = gpvi.generators.Diagonal(scale=2.0).build(2, key=key, dtype="float32")
    >>> gpvi.solvers.Block().solve(generator, jnp.zeros(2), jnp.ones((1, 2))).tolist()
    [[0.5, 0.5]]
    """

    @abstractmethod
    def solve(
        self, generator: AbstractGenerator, z: Float[Array, " d"], v: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
        """Solve J(z)ᵀ y = v for every row of v.

        Parameters
        ----------
        generator
            f.
        z
            One point, (d,).
        v
            Right-hand sides, (m, d).

        Returns
        -------
        Array
            The solutions, (m, d).
        """

    def init(self, generator, *, key):
        """Return None: there is no state."""
        return

    def error(
        self,
        generator: AbstractGenerator,
        z: Float[Array, " d"],
        y: Float[Array, "m d"],
        v: Float[Array, "m d"],
    ) -> Scalar:
        """Return Σ‖Jᵀy − v‖² over the rows; 0 unless overridden, since a direct solver leaves only rounding."""
        return jnp.zeros((), v.dtype)

    def mean_product(self, state, generator, gram):
        """Return the entropy term of Thm 3.1, with the solutions of all systems."""

        def at(x: Float[Array, "j d"], v: Float[Array, "j m d"]) -> tuple[None, Sums]:
            y = jax.vmap(lambda z, v: self.solve(generator, z, v))(x, v)
            errors = jax.vmap(lambda z, y, v: self.error(generator, z, y, v))(x, y, v)
            return None, Sums.of(y, v, errors.sum())

        if generator.constant_head and generator.latent == generator.dim:
            _, sums = at(gram.x[:1], gram.gradient_sum()[None])
        else:
            _, sums = summed(at, gram)
        return sums.over(len(gram.x)), state
