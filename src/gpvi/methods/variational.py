"""Variational inference by an injective family q_θ, trained on the reverse KL: Gaussians and normalizing flows.

They are generators with k = d. All share one step, that of GPVI's exact gradients; only the family differs.
"""

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi._compute.outer_products import norm
from gpvi.generators import (
    AbstractGenerator,
    Autoregressive,
    Diagonal,
    FullRank,
    Planar,
    SplineFlow,
    Triangular,
)
from gpvi.generators.noise import standard_normal
from gpvi.methods.base import About, Info, Learner, Method, State
from gpvi.methods.reverse_kl import default_draws, l2_gradient, pathwise_gradient
from gpvi.methods.schedules import OPTIMIZERS, decaying
from gpvi.parallel.mesh import rows
from gpvi.solvers.block import Block
from gpvi.specs import require_choice, require_count, require_flag, require_positive, resolve, spec
from gpvi.targets.density import Density

Gradient = Literal["pathwise", "l2"]
Optimizer = Literal["adam", "rmsprop"]
STARTS = 64
"""Number of starting points from which the spread of each coordinate is estimated."""
NARROW = 0.05
"""Initial σ relative to that spread, for targets that draw their own starting points, such as networks."""
MAX_TURN = 8.0
"""The bound on a step of a row of L, in learning rates and relative to the row's length."""


class Variational(Method):
    """The step that all variational methods share: descend the reverse KL of a family."""

    gradient: Gradient
    particles: int | None
    learning_rate: float
    optimizer: Optimizer

    def __post_init__(self):
        require_choice(self.gradient, ("pathwise", "l2"), "gradient")
        require_choice(self.optimizer, tuple(OPTIMIZERS), "optimizer")
        if self.particles is not None:
            require_count("particles", self.particles, "Omit it, or try 32.")
        require_positive("learning_rate", self.learning_rate, "Try the default.")

    @abstractmethod
    def family(self, target: Density, *, key: PRNGKeyArray) -> AbstractGenerator:
        """Build q_θ with the parameters that training starts from."""

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Make the chosen optimiser, with a rate that warms up and decays to zero."""
        return decaying(self.optimizer, self.learning_rate, *rounds)

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Build the family."""
        return State(Learner.start(self.family(target, key=key), optimizer, target.dtype), None)

    def gradients(self, history: Mapping[str, np.ndarray], dim: int) -> int:
        """Return the number of draws of all steps."""
        return self.draws(dim) * history["gradient_norm"].shape[-1]

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Descend along the gradient once."""
        gradient, info = self.gradient_at(target, state.learner.model, batch, key=key)
        info["gradient_norm"] = norm(gradient)
        return State(state.learner.descend(optimizer, gradient), None), info

    def gradient_at(
        self, target: Density, generator: AbstractGenerator, batch: PyTree, *, key: PRNGKeyArray
    ) -> tuple[PyTree, Info]:
        """Return the gradient and values to report: draw, score, pull back."""
        z = standard_normal(generator, self.draws(generator.dim), key=key)
        if self.gradient == "l2":
            return l2_gradient(generator, Block(), target, z, batch)
        return pathwise_gradient(generator, target, z, batch)

    def draws(self, dim: int) -> int:
        """Return the number of draws per step."""
        return default_draws(dim) if self.particles is None else self.particles


@dataclass(frozen=True)
class Gaussian(Variational):
    """q = N(b, LLᵀ).

    The initial σ is small for targets that draw their own starting points, as networks do: a network with noise as
    large as its weights learns nothing.
    """

    gradient: Gradient = "l2"
    particles: int | None = None
    learning_rate: float = 0.01
    optimizer: Optimizer = "adam"
    scale: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.scale is not None:
            require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")

    @abstractmethod
    def shape(self) -> Diagonal | FullRank:
        """Return the generator that says which form L has."""

    def family(self, target: Density, *, key: PRNGKeyArray) -> AbstractGenerator:
        """Build N(0, diag σ²)."""
        build_key, start_key = jax.random.split(key)
        built = self.shape().build(target.dim, key=build_key, dtype=target.dtype)
        scale = 1.0 if self.scale is None else self.scale
        spread = jnp.ones(target.dim, target.dtype)
        if target.draws_its_start:
            scale = NARROW if self.scale is None else self.scale
            spread = _spread(target.starting_points(STARTS, key=start_key))
        return eqx.tree_at(lambda g: g.flow.log_scale, built, jnp.log(scale * spread))


@spec
class MeanFieldVI(Gaussian):
    """q = N(b, diag σ²): mean-field variational inference, for networks Bayes by Backprop (Blundell et al. 2015).

    For a Gaussian posterior with precision P the optimum is σ_i² = 1/P_ii, which is never more than the true variance.

    Parameters
    ----------
    gradient
        "l2" (the path-derivative gradient, less noisy) or "pathwise".
    particles
        Draws per step; by default 4096/d, clipped to between 256 and 1024. Networks do well with fewer.
    learning_rate, optimizer
        Of the default schedule: the rate before it decays, and "adam" or "rmsprop".
    scale
        Initial σ, relative to the spread of the target's starting points; by default 1, or 0.05 if the target draws
        them itself, as networks do.
    local
        Whether to draw the pre-activations of each datum instead of weights shared by all data (Kingma et al. 2015),
        which has less noise for the same number of draws. Only for the networks of `gpvi.bnn.mlp`; it replaces
        `gradient`.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.MeanFieldVI(particles=32)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    local: bool = False

    def __post_init__(self):
        super().__post_init__()
        require_flag("local", self.local)

    coordinates: ClassVar[Literal["dense", "diagonal"]] = "diagonal"
    about: ClassVar[About] = About(
        "networks, and any d: one spread per coordinate, no correlations, too narrow",
        "n (G + d)",
        "Blundell et al. 2015",
    )

    def shape(self) -> Diagonal:
        """Return a diagonal L."""
        return Diagonal()

    def gradient_at(self, target, generator, batch, *, key):
        """Return the gradient, by local reparameterisation if `local` is set."""
        if not self.local:
            return super().gradient_at(target, generator, batch, key=key)
        return local_gradient(generator, target, self.draws(target.dim), batch, key=key)


@spec
class FullRankVI(Gaussian):
    """q = N(b, LLᵀ) with any covariance (Kucukelbir et al. 2017).

    The default optimiser changes no entry of L by more than about the learning rate η in a step, and no row by more
    than 8 η of its length (see `gpvi.methods.variational.turning_rows`).

    Parameters
    ----------
    gradient
        "l2" (the path-derivative gradient, less noisy) or "pathwise".
    particles
        Draws per step; by default 4096/d, clipped to between 256 and 1024. Networks do well with fewer.
    learning_rate, optimizer
        Of the default schedule: the rate before it decays, and "adam" or "rmsprop".
    scale
        Initial σ, relative to the spread of the target's starting points; by default 1, or 0.05 if the target draws
        them itself, as networks do.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.FullRankVI(particles=32)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    about: ClassVar[About] = About(
        "posteriors near a Gaussian, up to a few hundred dimensions",
        "n (G + d²)",
        "Kucukelbir et al. 2017",
    )

    def shape(self) -> FullRank:
        """Return a Cholesky factor."""
        return FullRank()

    def default_optimizer(self, *rounds: int) -> optax.GradientTransformation:
        """Make the chosen optimiser, with steps of the rows of L limited relative to their length."""
        return turning_rows(self.optimizer, self.learning_rate, *rounds)


@spec
class NormalizingFlow(Variational):
    """A normalizing flow trained on the reverse KL (Rezende & Mohamed 2015).

    Parameters
    ----------
    kind
        "spline" (rational-quadratic couplings, as `gpvi.generators.Triangular` with k = d), "planar" (32 layers),
        "autoregressive", or a configured `SplineFlow`, `Planar` or `Autoregressive` of `gpvi.generators`.
    gradient
        "pathwise", or "l2", which costs n d³ more for a flow.
    particles
        Draws per step; by default 4096/d, clipped to between 256 and 1024.
    learning_rate, optimizer
        Of the default schedule: the rate before it decays, and "adam" or "rmsprop". The paper trains planar flows by
        "rmsprop".

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.NormalizingFlow("planar", particles=32)
    >>> posterior = gpvi.fit(target, method, key=key, steps=5, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    kind: str | SplineFlow | Planar | Autoregressive = "spline"
    gradient: Gradient = "pathwise"
    particles: int | None = None
    learning_rate: float = 2e-3
    optimizer: Optimizer = "adam"

    about: ClassVar[About] = About(
        "bent and multimodal posteriors in tens of dimensions; the case k = d of GPVI",
        "n (G + flow)",
        "Rezende & Mohamed 2015; Durkan et al. 2019",
    )

    def __post_init__(self):
        super().__post_init__()
        self._flow()

    def family(self, target: Density, *, key: PRNGKeyArray) -> AbstractGenerator:
        """Build the flow, which starts as the identity or a permutation."""
        flow = self._flow()
        if isinstance(flow, SplineFlow):
            flow = Triangular(latent=target.dim, head=flow)
        return flow.build(target.dim, key=key, dtype=target.dtype)

    def _flow(self) -> SplineFlow | Planar | Autoregressive:
        shorthands = {
            "spline": SplineFlow,
            "planar": Planar,
            "autoregressive": Autoregressive,
        }
        return resolve(self.kind, shorthands, "kind of flow", SplineFlow | Planar | Autoregressive)


@functools.lru_cache(maxsize=64)
def turning_rows(
    algorithm: str, learning_rate: float, *rounds: int
) -> optax.GradientTransformation:
    r"""Make the optimiser of `decaying` for a Cholesky factor L, with a bound on the steps of its rows.

    The update of row i below the diagonal is multiplied by min(1, 8 ‖L_i‖ / √i). Adam moves every entry by about η,
    whatever the gradient, and so a row of i entries by η√i. If L starts narrow, as for networks, a few such steps make
    the entries beside the diagonal as large as those on it. The inverse of such a triangular matrix grows as 2^d
    (Viswanath & Trefethen 1998), and with it s_q = −L^{-T}z and the gradient. The bound on the length of the row's step
    is 8η‖L_i‖. If rows have length 1, as in whitened coordinates, it leaves the steps of the first 64 rows unchanged.
    """
    inner = decaying(algorithm, learning_rate, *rounds)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step, state = inner.update(updates, state, params)
        factor = params.flow.factor
        widths = jnp.maximum(jnp.arange(len(factor), dtype=factor.dtype), 1.0)
        share = jnp.minimum(1.0, MAX_TURN * jnp.linalg.norm(factor, axis=1) / jnp.sqrt(widths))
        return eqx.tree_at(
            lambda u: u.flow.lower, step, replace_fn=lambda u: share[:, None] * u
        ), state

    return optax.GradientTransformation(inner.init, update)


def local_gradient(
    generator: AbstractGenerator, target: Density, n: int, batch: PyTree, *, key: PRNGKeyArray
) -> tuple[PyTree, Info]:
    """Return the gradient of −E log p − Σ log σ for a diagonal Gaussian, with separate draws for each datum."""

    def bound(generator: Any) -> tuple[Scalar, Info]:
        mean, log_scale = generator.flow.shift, generator.flow.log_scale
        values = jax.vmap(
            lambda key: target.local_log_density(mean, jnp.exp(log_scale), batch, key=key)
        )(rows(jax.random.split(key, n)))
        entropy = log_scale.sum() + 0.5 * mean.size * (1 + jnp.log(2 * jnp.pi))
        elbo = values.mean() + entropy
        info = {"log_density": values.mean(), "entropy": entropy, "elbo": elbo}
        return -elbo, info | {"rejected": jnp.zeros_like(elbo)}

    gradient, info = eqx.filter_grad(bound, has_aux=True)(generator)
    return gradient, info


def _spread(points: Float[Array, "n d"]) -> Float[Array, " d"]:
    """Return the sd of each coordinate; for a coordinate that always has the same value, the mean sd of the others."""
    sd = points.std(0)
    varies = sd > 0
    typical = jnp.where(varies.any(), sd.sum() / jnp.maximum(varies.sum(), 1), 1.0)
    return jnp.where(varies, sd, typical)
