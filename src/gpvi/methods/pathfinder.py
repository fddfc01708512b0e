r"""Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022) by BlackJAX: Gaussians along the path of an optimiser.

L-BFGS climbs log p and keeps an estimate Σ = diag α + β γ βᵀ of the inverse Hessian at each of its iterates x; the
Newton step from there, m = x + Σ ∇log p(x), gives N(m, Σ). Each path yields its Gaussian with the best ELBO. Since the
largest of many estimates is biased upwards, that ELBO is estimated again, with the same noise for all paths, and the
best path wins.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi.generators import AbstractGenerator, FullRank
from gpvi.generators.bijections import LowerTriangularHead
from gpvi.generators.noise import log_standard_normal
from gpvi.generators.triangular import TriangularMap
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.specs import require_count, spec
from gpvi.targets.density import Density


class Best(NamedTuple):
    """The best ELBO so far, and the noise z by which all paths are compared."""

    elbo: Scalar
    noise: Float[Array, "n d"]


@spec
class Pathfinder(Method):
    """The best Gaussian along several quasi-Newton paths; each step follows one path.

    Parameters
    ----------
    paths
        Number of paths, each from its own starting point; `steps` in `gpvi.fit` means the same.
    iterations
        The largest number of L-BFGS iterations on a path.
    memory
        Number of pairs of steps and gradients that L-BFGS remembers: Σ is diagonal plus a part of rank 2 · memory.
    draws
        Number of draws from each Gaussian, for its ELBO.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.Pathfinder(paths=2)
    >>> posterior = gpvi.fit(target, method, key=key, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    paths: int = 8
    iterations: int = 64
    memory: int = 20
    draws: int = 200

    full_data: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    about: ClassVar[About] = About(
        "a Gaussian in seconds, to look at first or to start from; full data only",
        "iterations · draws log p, and d³ once",
        "Zhang et al. 2022",
    )

    def __post_init__(self):
        require_count("paths", self.paths, "8 find most modes.")
        require_count("iterations", self.iterations, "64 is enough near the standard normal.")
        require_count("memory", self.memory, "20 is enough as a rule.")
        require_count("draws", self.draws, "200 are usual.")

    def default_steps(self) -> int:
        """Return the number of paths."""
        return self.paths

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Return the identity, since L-BFGS runs inside a step."""
        return optax.identity()

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Make a standard normal, which the first path with a finite ELBO replaces."""
        generator_key, noise_key = jax.random.split(key)
        generator = FullRank().build(target.dim, key=generator_key, dtype=target.dtype)
        learner = Learner.start(generator, optimizer, target.dtype)
        noise = jax.random.normal(noise_key, (self.draws, target.dim), target.dtype)
        return State(learner, Best(jnp.asarray(-jnp.finfo(target.dtype).max, target.dtype), noise))

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Follow one more path, and keep its Gaussian if its ELBO is the best."""
        from blackjax.vi.pathfinder import approximate

        learner, best = state
        start_key, key = jax.random.split(key)
        start = target.starting_points(1, key=start_key)[0]
        gaussian: Any = approximate(
            key,
            target.log_density,
            start,
            self.draws,
            maxiter=self.iterations,
            maxcor=self.memory,
            ftol=1e-12,
        )[0]
        covariance = jnp.diag(gaussian.alpha) + gaussian.beta @ gaussian.gamma @ gaussian.beta.T
        location = gaussian.position + covariance @ gaussian.grad_position
        generator = _with_gaussian(learner.model, location, jnp.linalg.cholesky(covariance))
        elbo = _elbo(target, generator, best.noise)
        better = elbo > best.elbo
        model = jax.tree.map(lambda new, old: jnp.where(better, new, old), generator, learner.model)
        kept = jnp.where(better, elbo, best.elbo)
        usable = jnp.isfinite(elbo)
        info = {
            "elbo": jnp.where(kept > -jnp.finfo(kept.dtype).max, kept, jnp.nan),
            "path_elbo": jnp.where(usable, elbo, kept),
            "failed": 1.0 - usable,
        }
        return State(learner._replace(model=model), best._replace(elbo=kept)), info


def _elbo(target: Density, generator: AbstractGenerator, noise: Float[Array, "n d"]) -> Scalar:
    """Return E[log p(x) − log q(x)]; NaN if the Gaussian is not finite or leaves the support."""
    x, _, log_det = jax.vmap(generator.transform_and_log_det)(noise)
    log_q = jax.vmap(log_standard_normal)(noise) - log_det
    return (jax.vmap(target.log_density)(x) - log_q).mean()


def _with_gaussian(
    generator: TriangularMap, location: Float[Array, " d"], factor: Float[Array, "d d"]
) -> TriangularMap:
    """Return the generator of N(location, factor factorᵀ), with the structure of the given one."""
    head = LowerTriangularHead(location, jnp.log(jnp.diagonal(factor)), jnp.tril(factor, -1))
    return eqx.tree_at(lambda g: g.flow, generator, head)
