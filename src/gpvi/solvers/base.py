"""What every solver of J(z′)ᵀ y = v shares: its interface, its result, and sums over z′ within bounded memory."""

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
"""Beyond this many numbers the ∇k of all pairs are not held at once."""


class InverseProduct(NamedTuple):
    """(1/n) Σ_j J(z′_j)^{-T} ∇_{z′_j} k(z′_j, z_i) for every i, and how well the systems were solved."""

    value: Float[Array, "m d"]
    residual: Scalar
    """E‖Jᵀy − v‖² / E‖v‖²; zero for the direct solvers."""
    stretch: Scalar
    """The largest ‖y‖/‖v‖ that was seen: where J comes near to being singular, it grows without bound."""
    inverse: Float[Array, "n k k"] | None = None
    """A⁻¹ at every z′, where it was formed."""


def transposed_product(
    generator: AbstractGenerator, z: Float[Array, " d"], y: Float[Array, "m d"]
) -> Float[Array, "m d"]:
    """Jᵀy for every row of y (Eq. 11): one vjp each or, where there are more rows than d, one for each row of J."""
    _, vjp = jax.vjp(generator, z)
    products = jax.vmap(lambda row: vjp(row)[0])
    if len(y) <= generator.dim:
        return products(y)
    return product(y, products(jnp.eye(generator.dim, dtype=z.dtype)))


def largest_ratio(y: Float[Array, "... d"], v: Float[Array, "... d"]) -> Scalar:
    """The largest ‖y‖/‖v‖ over the rows; rows v = 0, as k has where z′ = z or far from it, count for nothing.

    A helper network answers something even there, and its square over that of a v of 10⁻²⁰ is not finite.
    """
    squares = (v**2).sum(-1)
    counts = squares > jnp.finfo(v.dtype).eps ** 2 * squares.max()
    ratios = jnp.where(counts, (y**2).sum(-1) / jnp.where(counts, squares, 1.0), 0.0)
    return jnp.sqrt(ratios.max())


class Sums(NamedTuple):
    """Over some z′: Σ_j y_ji for every i, Σ‖Jᵀy − v‖², Σ‖v‖², and the largest ‖y‖/‖v‖."""

    solutions: Float[Array, "m d"]
    error: Scalar
    size: Scalar
    stretch: Scalar

    @classmethod
    def of(cls, y: Float[Array, "j m d"], v: Float[Array, "j m d"], error: Scalar) -> "Sums":
        """Of the solutions y for right-hand sides v."""
        return cls(y.sum(0), error, (v**2).sum(), largest_ratio(y, v))

    def joined(self, other: "Sums") -> "Sums":
        """Over the z′ of both."""
        return Sums(
            self.solutions + other.solutions,
            self.error + other.error,
            self.size + other.size,
            jnp.maximum(self.stretch, other.stretch),
        )

    def over(self, number: int) -> InverseProduct:
        """The means over `number` z′; the residual is 0 where the kernel reaches nobody and all v are 0."""
        some = self.size > 0
        residual = jnp.where(some, self.error / jnp.where(some, self.size, 1.0), 0.0)
        return InverseProduct(self.solutions / number, residual, self.stretch)


def fits(gram: Gram) -> bool:
    """Whether the ∇k of all pairs may be held at once."""
    return gram.value.size * gram.x.shape[1] <= PAIRED


def summed(
    at: Callable[[Float[Array, "j d"], Float[Array, "j m d"]], tuple[PyTree, Sums]], gram: Gram
) -> tuple[PyTree, Sums]:
    """`at(z′, ∇k)` added up over all z′: at once where the ∇k of all pairs may be held, one z′ at a time otherwise."""
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


class AbstractSolver(ABC):
    """A way to the mean of J(z′)^{-T} ∇k over z′; subclass it and decorate the subclass with `gpvi.specs.spec`."""

    @abstractmethod
    def init(self, generator: AbstractGenerator, *, key: PRNGKeyArray) -> PyTree:
        """The state that the solver carries from step to step, such as a network and its Adam moments; or None."""

    @abstractmethod
    def mean_product(
        self, state: PyTree, generator: AbstractGenerator, gram: Gram
    ) -> tuple[InverseProduct, PyTree]:
        """The entropy term of Thm 3.1, from the kernel between z′ (first argument) and z; and the next state."""


class ExactSolver(AbstractSolver):
    """What the direct and iterative solvers share: they are linear in v, so a constant J is solved once."""

    @abstractmethod
    def solve(
        self, generator: AbstractGenerator, z: Float[Array, " d"], v: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
        """The rows y with J(z)ᵀ y = v."""

    def init(self, generator, *, key):
        """Nothing to learn."""
        return

    def error(
        self,
        generator: AbstractGenerator,
        z: Float[Array, " d"],
        y: Float[Array, "m d"],
        v: Float[Array, "m d"],
    ) -> Scalar:
        """Σ‖Jᵀy − v‖² over the rows; a direct solver leaves none."""
        return jnp.zeros((), v.dtype)

    def mean_product(self, state, generator, gram):
        """The entropy term of Thm 3.1, from the kernel between z′ (first argument) and z."""

        def at(x: Float[Array, "j d"], v: Float[Array, "j m d"]) -> tuple[None, Sums]:
            y = jax.vmap(lambda z, v: self.solve(generator, z, v))(x, v)
            errors = jax.vmap(lambda z, y, v: self.error(generator, z, y, v))(x, y, v)
            return None, Sums.of(y, v, errors.sum())

        if generator.constant_head and generator.latent == generator.dim:
            _, sums = at(gram.x[:1], gram.gradient_sum()[None])
        else:
            _, sums = summed(at, gram)
        return sums.over(len(gram.x)), state
