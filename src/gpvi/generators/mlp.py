"""x = g_θ(z) with noise of the target's dimension: a free network, with nothing to keep it injective (λ off)."""

import equinox as eqx
import jax
from jaxtyping import DTypeLike, PRNGKeyArray

from gpvi.generators.base import AbstractGenerator, Trunk, check_network
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
    def latent(self) -> int:
        """d: the head is everything."""
        return self.trunk.inputs

    @property
    def constant_head(self) -> bool:
        """Only a network without hidden non-linearity has a constant Jacobian."""
        return not self.trunk.layers or self.trunk.activation == "identity"

    def head(self, z_head):
        """g(z)."""
        return self.output(self.trunk(z_head))

    def tail(self, z_head, z_tail):
        """Empty."""
        return z_tail

    def tail_scale(self, z_head):
        """Empty."""
        return z_head[:0]


@spec
class MLP:
    """A plain network R^d → R^d; it may fold, so its densities are "unverified" at best."""

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"

    def __post_init__(self):
        check_network(self.hidden, self.activation)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> MLPMap:
        """The map for a target of `dim` dimensions."""
        trunk_key, output_key = jax.random.split(key)
        trunk = Trunk(dim, self.hidden, self.activation, key=trunk_key, dtype=dtype)
        output = eqx.nn.Linear((dim, *self.hidden)[-1], dim, key=output_key, dtype=dtype)
        return MLPMap(trunk, output)
