r"""Masked autoregressive flows by FlowJAX, in the direction that draws in one pass.

A layer maps x_i = μ_i(z_{<i}) + σ_i(z_{<i}) z_i with one masked network for all μ and σ (Kingma et al. 2016, "inverse
autoregressive"): J is triangular and log|det J| = Σ log σ_i. The inverse takes d passes, one for each coordinate in
turn.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.base import Generator
from gpvi.generators.bijections import elementwise_flow, scalar_affine, stacked_flow
from gpvi.generators.triangular import TriangularMap
from gpvi.specs import require_count, spec


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
