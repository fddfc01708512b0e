r"""A generator that begins where the particles of exploration are: by maximum likelihood, the forward KL.

KL(p‖q) = −E_p[log q] + constant is infinite where q misses a mode, so q spreads over all that the particles show. It
needs no gradient of log p. Training then goes on by KL(q‖p), which sharpens what is there; by itself it would settle in
some of the modes.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.exploration.search import Exploration
from gpvi.generators import AbstractGenerator, Triangular
from gpvi.methods import GPVI, Method
from gpvi.methods.base import Learner, State
from gpvi.targets.coordinates import Whitened
from gpvi.training.modes.weights import Cloud
from gpvi.training.program import Plan

STEPS, ROWS = 2_000, 256
"""Steps, and the particles of each."""
RATE = 3e-3
"""The learning rate at first; it decays to zero."""
LARGEST_NORM = 10.0
"""Of a gradient: a particle in a far tail would throw the generator off."""


def learns_from_particles(method: Method) -> bool:
    """Whether the method trains a generator whose density is known everywhere, by Eq. 3."""
    if not isinstance(method, GPVI) or method.gradient != "pathwise":
        return False
    return isinstance(method.generator, Triangular)


def begun_at_particles(
    plan: Plan, density: Whitened, state: State, found: Exploration | None, *, key: PRNGKeyArray
) -> State:
    """Return the state with a generator that has seen the particles of exploration, if there was one."""
    if found is None or not learns_from_particles(plan.method):
        return state
    model = shown_particles(state.learner.model, density, found, key=key)
    return state._replace(learner=Learner.start(model, plan.optimizer, density.dtype))


def shown_particles(
    generator: AbstractGenerator, density: Whitened, found: Exploration, *, key: PRNGKeyArray
) -> AbstractGenerator:
    """Return the generator after maximising the mean of log q over the particles."""
    cloud = Cloud.of(found, density)
    points, weights = (jnp.asarray(a, density.dtype) for a in (cloud.points, cloud.weights))
    return _fitted(generator, points, weights, key)


@eqx.filter_jit
def _fitted(
    generator: AbstractGenerator,
    points: Float[Array, "n d"],
    weights: Float[Array, " n"],
    key: PRNGKeyArray,
) -> AbstractGenerator:
    parameters, rest = eqx.partition(generator, eqx.is_inexact_array)
    schedule = optax.cosine_decay_schedule(RATE, STEPS)
    bounded = optax.chain(optax.clip_by_global_norm(LARGEST_NORM), optax.adam(schedule))
    optimizer = optax.apply_if_finite(bounded, max_consecutive_errors=STEPS)

    def cross_entropy(parameters: AbstractGenerator, x: Float[Array, "m d"]) -> Scalar:
        model = eqx.combine(parameters, rest)
        return -jax.vmap(model.log_prob)(x).mean()

    def step(carry, key: PRNGKeyArray):
        parameters, moments = carry
        rows = jax.random.choice(key, len(points), (ROWS,), p=weights)
        gradient = jax.grad(cross_entropy)(parameters, points[rows])
        update, moments = optimizer.update(gradient, moments, parameters)
        return (eqx.apply_updates(parameters, update), moments), None

    start = parameters, optimizer.init(parameters)
    (parameters, _), _ = jax.lax.scan(step, start, jax.random.split(key, STEPS))
    return eqx.combine(parameters, rest)
