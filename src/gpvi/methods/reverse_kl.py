"""The two exact gradients of KL(q‖p) for draws x = f_θ(z) with known log|det J|, and the ELBO that they raise.

Both differ from Algorithm 1 only in the direction φ, which Algorithm 1 smooths by a kernel. Mixtures have their own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.directions import l2_direction
from gpvi.directions.repulsion import repelling
from gpvi.generators import AbstractGenerator
from gpvi.generators.mixture import MixtureMap
from gpvi.generators.noise import log_standard_normal, standard_normal
from gpvi.methods.base import Info
from gpvi.methods.pullback import push_with_log_det
from gpvi.solvers.base import ExactSolver
from gpvi.targets.density import Density, Evaluation, evaluate


def pathwise_gradient(
    generator: AbstractGenerator, target: Density, z: Float[Array, "n d"], batch: PyTree
) -> tuple[PyTree, Info]:
    """Return the gradient of Eq. 3, by one vjp that takes the scores at x and the weights of log|det J|."""
    x, _, log_det, pull = push_with_log_det(generator, z)
    at = evaluate(target, x, batch)
    score, weight = repelling(at, x)
    gradient = pull.products(weight[:, None] * score, weight)
    return gradient, _elbo(at, log_det, z)


def l2_gradient(
    generator: AbstractGenerator,
    solver: ExactSolver,
    target: Density,
    z: Float[Array, "n d"],
    batch: PyTree,
) -> tuple[PyTree, Info]:
    """Return the gradient of Eq. 4 with φ = s_p − s_q; its variance vanishes where q = p."""
    x, _, log_det, pull = push_with_log_det(generator, z)
    at = evaluate(target, x, batch)
    score, weight = repelling(at, x)
    direction = l2_direction(generator, solver, z, score)
    gradient = pull.products(weight[:, None] * direction, jnp.zeros_like(log_det))
    return gradient, _elbo(at, log_det, z)


FEWEST_DRAWS = 16
"""Draws of each component of a mixture in a step."""


def mixture_gradient(
    mixture: MixtureMap, target: Density, draws: int, batch: PyTree, *, key: PRNGKeyArray
) -> tuple[PyTree, Info]:
    """Return the gradient of Σ_c w_c E_z[log q(x) − log p(x)], x = f_c(z), with as many draws of each component.

    The parameters in log q itself add E_q[∂ log q/∂θ] = 0, which is left out: each draw moves along s_p − s_q, and
    where q = p the gradient has no variance (Roeder et al. 2017). What remains for log w_c is w_c E_z[log q − log p].
    """
    count, dim = mixture.affines.location.shape
    own = max(FEWEST_DRAWS, draws // count)
    z = standard_normal(mixture, count * own, key=key).reshape(count, own, dim)
    params, static = eqx.partition(mixture, eqx.is_inexact_array)

    def drawn(params: PyTree) -> tuple[Float[Array, "k n d"], Float[Array, " k"]]:
        learned = eqx.combine(params, static)
        return learned.each(lambda component, z: jax.vmap(component)(z), z), learned.normalised

    (x, log_weights), pull = jax.vjp(drawn, params)
    x = x.reshape(-1, dim)
    at = evaluate(target, x, batch)
    log_q, own_score = jax.vmap(jax.value_and_grad(mixture.log_prob))(x)
    score, _ = repelling(at, x)
    shares = jnp.exp(log_weights)
    direction = (score - own_score).reshape(count, own, dim) * (shares / own)[:, None, None]
    ratio = jnp.where(at.finite, at.log_density - log_q, 0.0)
    of_components = ratio.reshape(count, own).mean(1)
    gradient = pull((-direction, -shares * of_components))[0]
    weights = jnp.repeat(count * shares, own)
    log_share = jnp.log1p(-at.rejected)
    return gradient, {
        "log_density": at.mean(weights * at.log_density),
        "entropy": at.mean(-weights * log_q) + log_share,
        "elbo": at.mean(weights * ratio) + log_share,
        "rejected": at.rejected,
    }


def default_draws(dim: int) -> int:
    """Return the default number of draws per step: 4096/d, clipped to between 256 and 1024."""
    return min(1024, max(256, 4096 // dim))


def _elbo(at: Evaluation, log_det: Float[Array, " n"], z: Float[Array, "n d"]) -> Info:
    """Return the ELBO and its terms for q restricted to where log p is finite, which adds the log of that share."""
    log_share = jnp.log1p(-at.rejected)
    entropy = log_det - jax.vmap(log_standard_normal)(z)
    return {
        "log_density": at.mean(at.log_density),
        "entropy": at.mean(entropy) + log_share,
        "elbo": at.mean(at.log_density + entropy) + log_share,
        "rejected": at.rejected,
    }
