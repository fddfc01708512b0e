r"""Flows of FlowJAX as generators of all coordinates: masked autoregressive ones, and planar ones.

Masked autoregressive (Kingma et al. 2016, "inverse autoregressive"): a layer maps x_i = μ_i(z_{<i}) + σ_i(z_{<i}) z_i
with one masked network for all μ and σ, so that a draw takes one pass, J is triangular and log|det J| = Σ log σ_i. The
inverse takes d passes, one for each coordinate in turn.

Planar (Rezende & Mohamed 2015): x ← x + û tanh(wᵀx + b), repeated, then a diagonal affine map. FlowJAX keeps wᵀû =
m(wᵀu) > −1 by û = u + (m(wᵀu) − wᵀu) w/‖w‖², m(a) = log(1 + softplus(a)) − 1, so that each layer is invertible; because
of the tanh the inverse has no closed form. If u started small, the constraint alone would make each layer contract by
half along w. Here u starts at a₀ w/‖w‖² with m(a₀) = 0, so that û = 0 and the flow is the identity.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.base import Generator
from gpvi.generators.bijections import elementwise_flow, scalar_affine, stacked_flow
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_count, spec

NEUTRAL = math.log(math.expm1(math.e - 1))
"""a₀: softplus(a₀) = e − 1."""


@spec
class Autoregressive(Generator):
    """Masked affine layers with a permutation after each, then a diagonal affine map.

    The flow starts as a permutation of the coordinates.

    Parameters
    ----------
    layers
        Number of masked layers.
    width, depth
        Width and number of the hidden layers of the masked networks.

    Examples
    --------
    >>> method = gpvi.NormalizingFlow(gpvi.generators.Autoregressive(layers=2))
    """

    layers: int = 4
    width: int = 50
    depth: int = 1

    def __post_init__(self):
        for name in ("layers", "width", "depth"):
            require_count(f"{name} of the flow", getattr(self, name), "Try the default.")

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        from flowjax.bijections import MaskedAutoregressive

        def layer(key: PRNGKeyArray) -> MaskedAutoregressive:
            bijection = MaskedAutoregressive(
                key,
                transformer=scalar_affine(),
                dim=dim,
                nn_width=max(self.width, dim),
                nn_depth=self.depth,
            )
            last = lambda m: (  # noqa: E731
                m.masked_autoregressive_mlp.layers[-1].weight.args[1],
                m.masked_autoregressive_mlp.layers[-1].bias,
            )
            return eqx.tree_at(last, bijection, replace_fn=jnp.zeros_like)

        if dim == 1:
            return TriangularMap(elementwise_flow(scalar_affine, dim, dtype), None)
        flow = stacked_flow(layer, dim, self.layers, key=key, dtype=dtype)
        return TriangularMap(flow, None)


@spec
class Planar(Generator):
    """A planar flow, from the identity. Its draws have densities, but other points do not: there is no closed inverse.

    Parameters
    ----------
    depth
        Number of layers.

    Examples
    --------
    >>> method = gpvi.NormalizingFlow(gpvi.generators.Planar(depth=16))
    """

    depth: int = 32

    def __post_init__(self):
        require_count("depth", self.depth, "The paper uses 32.")

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        from flowjax.bijections import Planar as PlanarBijection

        def layer(key: PRNGKeyArray) -> PlanarBijection:
            bijection = PlanarBijection(key, dim=dim)
            assert bijection.params is not None
            w, b = bijection.params[:dim], bijection.params[-1:]
            w = w / jnp.linalg.norm(w)
            return eqx.tree_at(lambda p: p.params, bijection, jnp.concatenate([w, NEUTRAL * w, b]))

        flow = stacked_flow(layer, dim, self.depth, key=key, dtype=dtype, permuted=False)
        return TriangularMap(flow, None)
