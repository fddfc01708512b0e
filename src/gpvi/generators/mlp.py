"""x = g_θ(z) with noise of the target's dimension: a free network that nothing keeps injective (λ = 0)."""

import equinox as eqx
import jax
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.base import AbstractGenerator, Generator
from gpvi.generators.networks import Trunk, check_network
from gpvi.specs import spec


class MLPMap(AbstractGenerator):
    """x = W h(z) + b, with h the hidden layers."""

    trunk: Trunk
    output: eqx.nn.Linear

    @property
    def injective(self) -> bool:
        """False: nothing keeps it injective."""
        return False

    @property
    def dim(self) -> int:
        """d."""
        return self.trunk.inputs

    @property
    def constant_head(self) -> bool:
        """Whether the network has no non-linearity."""
        return self.trunk.linear

    def head(self, z_head):
        """Return g(z)."""
        return self.output(self.trunk(z_head))


@spec
class MLP(Generator):
    """A plain network R^d → R^d. It may fold space, so its densities are "unverified" at best.

    Parameters
    ----------
    hidden
        Widths of the hidden layers.
    activation
        "relu", "tanh", "gelu", "silu" or "identity".

    Examples
    --------
    >>> method = gpvi.AmortizedSVGD(generator=gpvi.generators.MLP(hidden=(32,)))
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"

    def __post_init__(self):
        check_network(self.hidden, self.activation)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> MLPMap:
        """Build the map for a target of `dim` dimensions."""
        trunk_key, output_key = jax.random.split(key)
        trunk = Trunk(dim, self.hidden, self.activation, key=trunk_key, dtype=dtype)
        output = eqx.nn.Linear((dim, *self.hidden)[-1], dim, key=output_key, dtype=dtype)
        return MLPMap(trunk, output)
