"""The Fisher neural sampler (Hu et al. 2018; Grathwohl et al. 2020): the paper's KSD."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree, Scalar

from gpvi.directions.base import Direction, Points
from gpvi.errors import InputError
from gpvi.specs import is_whole, require_count, require_positive, spec

SIZE = 0.1
"""Default size of the critic's optimum. One step of Adam at 1e-3 moves an output of a hundred hidden units by about
this much, so the critic can change its sign within a few steps. A larger critic lags and a smaller one is noisy: with 1
the amortised form errs three times as much in linear regression; with 0.05 the particles for four classes end four
times as far from the posterior."""


class CriticState(NamedTuple):
    """The critic c_w and its Adam moments."""

    critic: eqx.nn.MLP
    moments: PyTree


@spec
class KSDDirection(Direction):
    """φ = c, a critic that maximises E_q[sᵀc + ∇·c] − λ E_q‖c‖²; its optimum is (s_p − s_q)/(2λ).

    Scores grow with the data. A critic that learns at a fixed rate would lag behind large scores and be noisy beside
    small ones. So c = σ/(2λr) c_w, with σ the root mean square of the current scores and r = `size`: the network c_w
    maximises E_q[sᵀc_w + ∇·c_w]/σ − E_q‖c_w‖²/(2r), and its optimum r(s_p − s_q)/σ has the same size in all units.

    Parameters
    ----------
    hidden_width, hidden_layers
        The critic's network, with tanh.
    penalty
        λ.
    learning_rate
        Of the critic's Adam.
    critic_steps
        Steps of the critic for each call.
    exact_dimensions
        Up to this dimension ∇·c is exact; beyond it is Hutchinson's estimate εᵀ(∂c)ε with one Rademacher ε per
        particle.
    size
        r; None lets the network learn c itself, in the units of the scores. Choose None if σ varies much from batch to
        batch, since c varies with it otherwise.

    Examples
    --------
    >>> direction = gpvi.directions.KSDDirection(hidden_width=8)
    >>> x = jax.random.normal(key, (10, 2))
    >>> state = direction.init(2, key=key, dtype=x.dtype)
    >>> phi, state = direction(state, x, -x, key=key)
    >>> phi.shape
    (10, 2)
    """

    hidden_width: int = 100
    hidden_layers: int = 1
    penalty: float = 10.0
    learning_rate: float = 1e-3
    critic_steps: int = 1
    exact_dimensions: int = 16
    size: float | None = SIZE

    def __post_init__(self):
        if self.size is not None:
            require_positive("size of the critic's optimum", self.size, "0.1 suits a rate of 1e-3.")
        require_positive("penalty (λ)", self.penalty, "The paper uses 10, and 1 on images.")
        require_positive("learning_rate of the critic", self.learning_rate, "The paper uses 1e-3.")
        require_count("critic_steps", self.critic_steps, "One step is the paper's.")
        require_count("hidden_width of the critic", self.hidden_width, "Try 100.")
        for name in ("hidden_layers", "exact_dimensions"):
            value = getattr(self, name)
            if not is_whole(value) or value < 0:
                raise InputError(f"{name} is {value!r}; it must be a whole number ≥ 0.")

    def init(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> CriticState:
        """Make a fresh critic R^d → R^d and its Adam moments."""
        critic = eqx.nn.MLP(
            dim, dim, self.hidden_width, self.hidden_layers, jnp.tanh, key=key, dtype=dtype
        )
        return CriticState(critic, self._adam().init(eqx.filter(critic, eqx.is_inexact_array)))

    def __call__(
        self,
        state: CriticState,
        x: Float[Array, "n d"],
        score: Float[Array, "n d"],
        *,
        key: PRNGKeyArray,
        at: Points | None = None,
    ) -> tuple[Float[Array, "m d"], CriticState]:
        """Train the critic for `critic_steps`, then return c at the points `at`, or at x itself."""
        scale, weight, unit = self._units(score)

        def improve(state: CriticState, key: PRNGKeyArray) -> tuple[CriticState, None]:
            params, static = eqx.partition(state.critic, eqx.is_inexact_array)
            probes = jax.random.rademacher(key, x.shape, x.dtype)

            def loss(params):
                critic = eqx.combine(params, static)
                c = jax.vmap(critic)(x)
                divergence = self.divergence(critic, x, probes)
                gain = ((score * c).sum(1) + divergence) / scale
                return -(gain - weight * (c**2).sum(1)).mean()

            update, moments = self._adam().update(jax.grad(loss)(params), state.moments, params)
            return CriticState(eqx.apply_updates(state.critic, update), moments), None

        arrays, static = eqx.partition(state, eqx.is_array)
        arrays, _ = jax.lax.scan(
            lambda a, k: (eqx.filter(improve(eqx.combine(a, static), k)[0], eqx.is_array), None),
            arrays,
            jax.random.split(key, self.critic_steps),
        )
        state = eqx.combine(arrays, static)
        return unit * jax.vmap(state.critic)(x if at is None else at.x), state

    def _units(self, score: Float[Array, "n d"]) -> tuple[Scalar, float, Scalar]:
        """Return σ, the weight of ‖c_w‖², and the factor σ/(2λr)."""
        if self.size is None:
            one = jnp.ones((), score.dtype)
            return one, self.penalty, one
        size = jnp.sqrt((score**2).mean())
        scale = jnp.where(size > 0, size, 1.0)
        return scale, 1.0 / (2.0 * self.size), scale / (2.0 * self.penalty * self.size)

    def divergence(
        self, critic: eqx.nn.MLP, x: Float[Array, "n d"], probes: Float[Array, "n d"]
    ) -> Float[Array, " n"]:
        """Return ∇·c at each row of x, exact or estimated with the given Rademacher probes."""
        if x.shape[1] <= self.exact_dimensions:
            return jax.vmap(lambda point: jnp.trace(jax.jacfwd(critic)(point)))(x)
        return jax.vmap(lambda point, e: e @ jax.jvp(critic, (point,), (e,))[1])(x, probes)

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
