"""The paper's helper network h_η(z′, v) ≈ J(z′)^{-T} v, trained along with the generator (Eq. 9–11)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.generators import AbstractGenerator
from gpvi.kernels import Gram
from gpvi.solvers.base import InverseProduct, Solver, Sums, summed, transposed_product
from gpvi.specs import require_count, require_positive, spec


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
        """Return the predictions for one z′ and many v; the part that depends on z′ alone is computed once."""
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
class Helper(Solver):
    """The paper's learned solver: one Adam step on ‖Jᵀh − v‖² (Eq. 10) for each step of the generator.

    Parameters
    ----------
    width
        Width of its hidden layers.
    learning_rate
        Of its Adam.

    Examples
    --------
    >>> method = gpvi.GPVI(gradient="functional", solver=gpvi.solvers.Helper(width=200))
    """

    width: int = 100
    learning_rate: float = 1e-4

    def __post_init__(self):
        require_count("width of the helper", self.width, "The paper uses 10 to 544.")
        require_positive("learning_rate of the helper", self.learning_rate, "The paper uses 1e-4.")

    def init(self, generator: AbstractGenerator, *, key: PRNGKeyArray) -> HelperState:
        """Make a fresh network for this generator, and its Adam moments."""
        floats = eqx.filter(generator, eqx.is_inexact_array)
        dtype = jnp.result_type(*jax.tree.leaves(floats))
        network = HelperNetwork(generator.dim, self.width, key=key, dtype=dtype)
        return HelperState(network, self._adam().init(eqx.filter(network, eqx.is_inexact_array)))

    def mean_product(
        self, state: HelperState, generator: AbstractGenerator, gram: Gram
    ) -> tuple[InverseProduct, HelperState]:
        """Do lines 4 to 6 of Algorithm 1: h_η(z′, ∇k), its loss by one vjp of f, one Adam step on η."""
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
