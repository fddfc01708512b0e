r"""The inverse Jacobian product of Thm 3.1: the y with J(z′)ᵀ y = v (Eq. 8), for v = ∇_{z′}k(z′, z) and every z.

It is the transpose: the appendix' index form (J^{-1})^j_i ∂_j k is (J^{-T}∇k)_i, and Eq. 11 computes hᵀJ. Four ways:

- `Block`: exact, by the block-triangular structure of every generator here,
      Jᵀ = [Aᵀ Bᵀ; 0 diag σ]  ⇒  y_tail = v_tail / σ,  Aᵀ y_head = v_head − Bᵀ y_tail;
  one factor of the k×k block per z′ serves every z, and none is needed when A is diagonal.
- `Dense`: exact, LU of the whole d×d Jacobian.
- `Iterative`: BiCGStab or GMRES, matrix-free, one vjp per iteration (App. C, with the transpose and a fresh start).
- `Helper`: the paper's network h_η(z′, v), trained along (Eq. 9–11).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

from gpvi.arithmetic import product
from gpvi.generators import AbstractGenerator, Preconditioned
from gpvi.inverses import inverse, solve_transposed
from gpvi.kernels import Gram
from gpvi.specs import require_choice, require_count, require_positive, resolve, spec

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


def _fits(gram: Gram) -> bool:
    """Whether the ∇k of all pairs may be held at once."""
    return gram.value.size * gram.x.shape[1] <= PAIRED


def summed(
    at: Callable[[Float[Array, "j d"], Float[Array, "j m d"]], tuple[PyTree, Sums]], gram: Gram
) -> tuple[PyTree, Sums]:
    """`at(z′, ∇k)` added up over all z′: at once where the ∇k of all pairs may be held, one z′ at a time otherwise."""
    if _fits(gram):
        return at(gram.x, gram.gradients())

    def one(z: Float[Array, " d"], slope: Float[Array, " m"]) -> tuple[PyTree, Sums]:
        return at(z[None], gram.gradients_of(z, slope)[None])

    def add(total: tuple[PyTree, Sums], of: tuple[Array, Array]):
        more, sums = one(*of)
        return (jax.tree.map(jnp.add, total[0], more), total[1].joined(sums)), None

    shapes = jax.eval_shape(one, gram.x[0], gram.slope[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, (gram.x, gram.slope))[0]


class Exact:
    """What the direct and iterative solvers share: they are linear in v, so a constant J is solved once."""

    @abstractmethod
    def solve(
        self, generator: AbstractGenerator, z: Float[Array, " d"], v: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
        """The rows y with J(z)ᵀ y = v."""

    def init(self, generator: AbstractGenerator, *, key: PRNGKeyArray) -> PyTree:
        """Nothing to learn."""
        return None

    def error(
        self,
        generator: AbstractGenerator,
        z: Float[Array, " d"],
        y: Float[Array, "m d"],
        v: Float[Array, "m d"],
    ) -> Scalar:
        """Σ‖Jᵀy − v‖² over the rows; a direct solver leaves none."""
        return jnp.zeros((), v.dtype)

    def mean_product(
        self, state: PyTree, generator: AbstractGenerator, gram: Gram
    ) -> tuple[InverseProduct, PyTree]:
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


@spec
class Block(Exact):
    """Exact, by block elimination: a k×k solve and one vjp with B."""

    def solve(self, generator, z, v):
        """y_tail = v_tail / σ, then Aᵀ y_head = v_head − Bᵀ y_tail."""
        if isinstance(generator, Preconditioned):
            inner = self.solve(generator.generator, z, v)
            return jax.vmap(generator.affine.solve_transposed)(inner)
        k = generator.latent
        z_head, _ = generator.split(z)
        right, y_tail = v[:, :k], v[:, k:]
        if k < generator.dim:
            y_tail = y_tail / generator.tail_scale(z_head)
            right = right - jax.vmap(lambda y: generator.tail_transposed_product(z, y))(y_tail)
        block = generator.head_jacobian(z_head)
        y_head = (
            solve_transposed(block.as_matrix(), right)
            if _is_dense(block)
            else _solve_each(block.T, right)
        )
        return jnp.concatenate([y_head, y_tail], axis=1)

    def mean_product(self, state, generator, gram):
        """As for every exact solver; dense heads are inverted once for all that needs A⁻¹."""
        alone = generator.latent == generator.dim and not generator.constant_head
        if not (alone and _fits(gram) and _is_dense(generator.head_jacobian(gram.x[0]))):
            return Exact.mean_product(self, state, generator, gram)
        inverted = jax.vmap(lambda z: inverse(generator.head_jacobian(z).as_matrix()))(gram.x)
        v = gram.gradients()
        y = product(v, inverted)
        zero = jnp.zeros((), v.dtype)
        return InverseProduct(y.mean(0), zero, largest_ratio(y, v), inverted), state


@spec
class Dense(Exact):
    """Exact, by LU of the whole Jacobian: O(d³) per z′, an oracle for small d."""

    def solve(self, generator, z, v):
        """LU of Jᵀ."""
        return _solve_each(lx.MatrixLinearOperator(jax.jacfwd(generator)(z).T), v)


@spec
class Iterative(Exact):
    """Matrix-free Krylov iterations on Jᵀ, one system for each pair (z′, z)."""

    algorithm: Literal["bicgstab", "gmres"] = "bicgstab"
    tolerance: float = 1e-6
    max_steps: int | None = None

    def __post_init__(self):
        require_choice(self.algorithm, ("bicgstab", "gmres"), "iterative algorithm")
        require_positive("tolerance", self.tolerance, "1e-6 suits float32.")
        if self.max_steps is not None:
            require_count("max_steps", self.max_steps, "Leave it out for four times the dimension.")

    def solve(self, generator, z, v):
        """Iterates until ‖Jᵀy − v‖ is below the tolerance."""
        steps = 4 * generator.dim if self.max_steps is None else self.max_steps
        _, vjp = jax.vjp(generator, z)
        product = lambda y: vjp(y)[0]  # noqa: E731
        if self.algorithm == "bicgstab":
            return jax.vmap(lambda row: bicgstab(product, row, self.tolerance, steps))(v)
        solver = lx.GMRES(rtol=self.tolerance, atol=self.tolerance, max_steps=steps)
        operator = lx.FunctionLinearOperator(product, jax.eval_shape(lambda: z))
        return jax.vmap(lambda row: lx.linear_solve(operator, row, solver, throw=False).value)(v)

    def error(self, generator, z, y, v):
        """What the iterations left."""
        return ((transposed_product(generator, z, y) - v) ** 2).sum()


def bicgstab(
    product: Callable[[Float[Array, " d"]], Float[Array, " d"]],
    v: Float[Array, " d"],
    tolerance: float,
    max_steps: int,
) -> Float[Array, " d"]:
    """The y with product(y) = v, by stabilised biconjugate gradients (van der Vorst 1992) from y = 0.

    Near J = I, where training starts, the residual is exactly zero after half a step or soon after, and Lineax 0.1 then
    divides 0 by 0. Here the loop ends on the residual alone, and a step with denominator zero has length zero.
    Where the iterations break down (v·product(v) = 0, as for a quarter turn), y = 0 is closer than what they leave.
    """

    def ratio(a: Scalar, b: Scalar) -> Scalar:
        return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))

    def unsolved(carry) -> Bool[Array, ""]:
        _, r, _, step = carry
        return (r @ r > tolerance**2 * (v @ v)) & (step < max_steps)

    def iterate(carry):
        y, r, p, step = carry
        image = product(p)
        alpha = ratio(v @ r, v @ image)
        s = r - alpha * image
        t = product(s)
        omega = ratio(s @ t, t @ t)
        r_new = s - omega * t
        beta = ratio(v @ r_new, v @ r) * ratio(alpha, omega)
        return y + alpha * p + omega * s, r_new, r_new + beta * (p - omega * image), step + 1

    y, r, _, _ = jax.lax.while_loop(unsolved, iterate, (jnp.zeros_like(v), v, v, 0))
    return jnp.where(r @ r <= v @ v, y, 0.0)


class HelperNetwork(eqx.Module):
    """h_η(z′, v): one ReLU layer for each input, concatenated, then three hidden layers (App. B)."""

    noise_branch: eqx.nn.Linear
    vector_branch: eqx.nn.Linear
    body: eqx.nn.MLP

    def __init__(self, dim: int, width: int, *, key: PRNGKeyArray, dtype: Any):
        keys = jax.random.split(key, 3)
        self.noise_branch = eqx.nn.Linear(dim, width, key=keys[0], dtype=dtype)
        self.vector_branch = eqx.nn.Linear(dim, width, key=keys[1], dtype=dtype)
        self.body = eqx.nn.MLP(2 * width, dim, width, 3, key=keys[2], dtype=dtype)

    def __call__(self, z: Float[Array, " d"], v: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """The prediction for one z′ and many v; what depends on z′ alone is computed once."""
        first, *rest = self.body.layers
        assert first.bias is not None
        of_noise, of_vector = jnp.split(first.weight, 2, axis=1)
        noise = of_noise @ jax.nn.relu(self.noise_branch(z)) + first.bias

        def one(v: Float[Array, " d"]) -> Float[Array, " d"]:
            hidden = of_vector @ jax.nn.relu(self.vector_branch(v)) + noise
            for layer in rest:
                hidden = layer(jax.nn.relu(hidden))
            return hidden

        return jax.vmap(one)(v)


class HelperState(NamedTuple):
    """η and its Adam moments."""

    network: HelperNetwork
    moments: PyTree


@spec
class Helper:
    """The paper's learned solver: one Adam step on ‖Jᵀh − v‖² (Eq. 10) for each step of the generator."""

    width: int = 100
    learning_rate: float = 1e-4

    def __post_init__(self):
        require_count("width of the helper", self.width, "The paper uses 10 to 544.")
        require_positive("learning_rate of the helper", self.learning_rate, "The paper uses 1e-4.")

    def init(self, generator: AbstractGenerator, *, key: PRNGKeyArray) -> HelperState:
        """A fresh network for this generator."""
        floats = eqx.filter(generator, eqx.is_inexact_array)
        dtype = jnp.result_type(*jax.tree.leaves(floats))
        network = HelperNetwork(generator.dim, self.width, key=key, dtype=dtype)
        return HelperState(network, self._adam().init(eqx.filter(network, eqx.is_inexact_array)))

    def mean_product(
        self, state: HelperState, generator: AbstractGenerator, gram: Gram
    ) -> tuple[InverseProduct, HelperState]:
        """Algorithm 1, lines 4–6: h_η(z′, ∇k), its loss by one vjp of f, one Adam step on η."""
        params, static = eqx.partition(state.network, eqx.is_inexact_array)

        def loss(params: PyTree, x: Float[Array, "j d"], v: Float[Array, "j m d"]):
            h = jax.vmap(eqx.combine(params, static))(x, v)
            product = jax.vmap(lambda z, y: transposed_product(generator, z, y))(x, h)
            sums = Sums.of(h, v, ((product - v) ** 2).sum())
            return sums.error / gram.value.size, sums

        gradient, sums = summed(lambda x, v: jax.grad(loss, has_aux=True)(params, x, v), gram)
        update, moments = self._adam().update(gradient, state.moments, params)
        network = eqx.apply_updates(state.network, update)
        return sums.over(len(gram.x)), HelperState(network, moments)

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


Solver = Block | Dense | Iterative | Helper
ExactSolver = Block | Dense | Iterative


def as_solver(value: Any) -> Solver:
    """A solver from its shorthand."""
    return resolve(
        value,
        {
            "block": Block,
            "dense": Dense,
            "bicgstab": lambda: Iterative("bicgstab"),
            "gmres": lambda: Iterative("gmres"),
            "helper": Helper,
        },
        "solver",
        Solver,
    )


def _is_dense(block: lx.AbstractLinearOperator) -> bool:
    """Whether nothing is known of it that a solver could use."""
    return isinstance(block, lx.MatrixLinearOperator) and not lx.is_lower_triangular(block)


def _solve_each(operator: lx.AbstractLinearOperator, v: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Factor once, solve for every row."""
    solver = lx.AutoLinearSolver(well_posed=True)
    state = solver.init(operator, {})
    return jax.vmap(lambda row: solver.compute(state, row, {})[0])(v)
