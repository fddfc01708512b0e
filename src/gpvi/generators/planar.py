r"""Planar flows (Rezende & Mohamed 2015) by FlowJAX: x ← x + û tanh(wᵀx + b), repeated, then a diagonal affine map.

FlowJAX keeps wᵀû = m(wᵀu) > −1 by û = u + (m(wᵀu) − wᵀu) w/‖w‖², m(a) = log(1 + softplus(a)) − 1, so that each layer is
invertible; because of the tanh the inverse has no closed form. If u started small, the constraint alone would make each
layer contract by half along w. Here u starts at a₀ w/‖w‖² with m(a₀) = 0, so that û = 0 and the flow is the identity.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.base import Generator
from gpvi.generators.bijections import stacked_flow
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_count, spec

NEUTRAL = math.log(math.expm1(math.e - 1))
"""a₀: softplus(a₀) = e − 1."""


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
