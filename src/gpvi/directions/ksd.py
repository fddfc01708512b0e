"""The Fisher neural sampler (Hu et al. 2018; Grathwohl et al. 2020): the paper's KSD."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from gpvi.directions.points import Points
from gpvi.errors import InputError
from gpvi.specs import is_whole, require_count, require_positive, spec

SIZE = 0.1
"""Of the critic's optimum: what a step of Adam at 1e-3 moves an output of a hundred hidden units by, so that the critic
can turn round within a few steps. Larger ones lag, smaller ones tremble: with 1 the amortised form errs three times as
much in linear regression, with 0.05 the particles for four classes come out four times as far from the posterior."""


class CriticState(NamedTuple):
    """The critic c_w and its Adam moments."""

    critic: eqx.nn.MLP
    moments: PyTree


@spec
class KSDDirection:
    """φ = c, a critic that maximises E_q[sᵀc + ∇·c] − λ E_q‖c‖²; its optimum is (s_p − s_q)/(2λ).

    Scores grow with the data, and a critic that learns at a given rate lags behind large ones and trembles beside small
    ones. So c = σ/(2λr) c_w, with σ the root mean square of the scores at hand and r = `size`: c_w maximises
    E_q[sᵀc_w + ∇·c_w]/σ − E_q‖c_w‖²/(2r), and its optimum r(s_p − s_q)/σ has one size in all units. Where σ leaps from
    batch to batch, so does c; with `size=None` the critic learns c itself, in whatever units.

    ∇·c is exact up to `exact_dimensions`, beyond that Hutchinson's εᵀ(∂c)ε with one Rademacher ε for each particle.
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

    def init(self, dim: int, *, key: PRNGKeyArray, dtype) -> CriticState:
        """A fresh critic R^d → R^d."""
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
        """σ, the weight of ‖c_w‖², and what c_w is multiplied by."""
        if self.size is None:
            one = jnp.ones((), score.dtype)
            return one, self.penalty, one
        found = jnp.sqrt((score**2).mean())
        scale = jnp.where(found > 0, found, 1.0)
        return scale, 1.0 / (2.0 * self.size), scale / (2.0 * self.penalty * self.size)

    def divergence(
        self, critic: eqx.nn.MLP, x: Float[Array, "n d"], probes: Float[Array, "n d"]
    ) -> Float[Array, " n"]:
        """∇·c at each row of x."""
        if x.shape[1] <= self.exact_dimensions:
            return jax.vmap(lambda point: jnp.trace(jax.jacfwd(critic)(point)))(x)
        return jax.vmap(lambda point, e: e @ jax.jvp(critic, (point,), (e,))[1])(x, probes)

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
