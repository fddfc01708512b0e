"""The two exact gradients of KL(q‖p) for draws x = f_θ(z) with known log|det J|, and the bound they improve.

Both differ from Algorithm 1 only in the direction φ, which a kernel smooths there and not here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from gpvi.directions import l2_direction
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import log_standard_normal
from gpvi.methods.base import Info
from gpvi.methods.pullback import push_with_log_det
from gpvi.solvers.base import ExactSolver
from gpvi.targets.density import Density, Evaluation, evaluate


def pathwise_gradient(
    generator: AbstractGenerator, target: Density, z: Float[Array, "n d"], batch: PyTree
) -> tuple[PyTree, Info]:
    """The gradient of Eq. 3: one vjp takes the scores on x and the weight of log|det J|."""
    x, _, log_det, pull = push_with_log_det(generator, z)
    at = evaluate(target, x, batch)
    gradient = pull.products(at.weight[:, None] * at.score, at.weight)
    return gradient, _bound(at, log_det, z)


def l2_gradient(
    generator: AbstractGenerator,
    solver: ExactSolver,
    target: Density,
    z: Float[Array, "n d"],
    batch: PyTree,
) -> tuple[PyTree, Info]:
    """Eq. 4 with φ = s_p − s_q; its variance vanishes where q = p."""
    x, _, log_det, pull = push_with_log_det(generator, z)
    at = evaluate(target, x, batch)
    direction = l2_direction(generator, solver, z, at.score)
    gradient = pull.products(at.weight[:, None] * direction, jnp.zeros_like(log_det))
    return gradient, _bound(at, log_det, z)


def default_draws(dim: int) -> int:
    """Draws per step: 4096/d, clipped to between 256 and 1024."""
    return min(1024, max(256, 4096 // dim))


def _bound(at: Evaluation, log_det: Float[Array, " n"], z: Float[Array, "n d"]) -> Info:
    """The ELBO of q restricted to where log p is finite (this adds the log of that share), and its terms."""
    kept = jnp.log1p(-at.rejected)
    entropy = log_det - jax.vmap(log_standard_normal)(z)
    return {
        "log_density": at.mean(at.log_density),
        "entropy": at.mean(entropy) + kept,
        "elbo": at.mean(at.log_density + entropy) + kept,
        "rejected": at.rejected,
    }
