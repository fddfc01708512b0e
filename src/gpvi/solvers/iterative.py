"""Krylov solvers of Jᵀy = v, matrix-free (App. C): BiCGStab and GMRES."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float, Scalar

from gpvi.solvers.base import ExactSolver, transposed_product
from gpvi.specs import require_choice, require_count, require_positive, spec


@spec
class Iterative(ExactSolver):
    """Matrix-free Krylov iterations on Jᵀ, one system for each pair (z′, z).

    Parameters
    ----------
    algorithm
        "bicgstab" or "gmres".
    tolerance
        Of ‖Jᵀy − v‖ relative to ‖v‖.
    max_steps
        The largest number of iterations; by default 4 d.

    Examples
    --------
    >>> solver = gpvi.solvers.Iterative("gmres", tolerance=1e-4)
    >>> method = gpvi.GPVI(gradient="functional", solver=solver)
    """

    algorithm: Literal["bicgstab", "gmres"] = "bicgstab"
    tolerance: float = 1e-6
    max_steps: int | None = None

    def __post_init__(self):
        require_choice(self.algorithm, ("bicgstab", "gmres"), "iterative algorithm")
        require_positive("tolerance", self.tolerance, "1e-6 suits float32.")
        if self.max_steps is not None:
            require_count("max_steps", self.max_steps, "Leave it out for four times the dimension.")

    def solve(self, generator, z, v):
        """Iterate until ‖Jᵀy − v‖ is below the tolerance, or for `max_steps`."""
        steps = 4 * generator.dim if self.max_steps is None else self.max_steps
        _, vjp = jax.vjp(generator, z)
        product = lambda y: vjp(y)[0]  # noqa: E731
        if self.algorithm == "bicgstab":
            return jax.vmap(lambda row: bicgstab(product, row, self.tolerance, steps))(v)
        solver = lx.GMRES(rtol=self.tolerance, atol=self.tolerance, max_steps=steps)
        operator = lx.FunctionLinearOperator(product, jax.eval_shape(lambda: z))
        return jax.vmap(lambda row: lx.linear_solve(operator, row, solver, throw=False).value)(v)

    def error(self, generator, z, y, v):
        """Return Σ‖Jᵀy − v‖², the squared residuals that the iterations left."""
        return ((transposed_product(generator, z, y) - v) ** 2).sum()


def bicgstab(
    product: Callable[[Float[Array, " d"]], Float[Array, " d"]],
    v: Float[Array, " d"],
    tolerance: float,
    max_steps: int,
) -> Float[Array, " d"]:
    """Solve product(y) = v by stabilised biconjugate gradients (van der Vorst 1992) from y = 0.

    Near J = I, where training starts, the residual is exactly zero after half a step or a few, and Lineax 0.1 then
    divides 0 by 0. Here the loop tests the residual alone, and a step whose denominator is zero has length zero. Where
    the iterations break down (v·product(v) = 0, as for a rotation by 90°) and end farther from the solution than they
    began, the result is y = 0.
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
