"""x = g_θ(z_head) + σ⊙z, the paper's generator (Eq. 6), with the Jacobian of Eq. 7."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.outer_products import tall
from gpvi.generators.base import (
    AbstractGenerator,
    FixedScale,
    LastLayer,
    LearnedScale,
    Trunk,
    check_network,
    latent_size,
)
from gpvi.specs import require_count, require_flag, require_positive, spec


class ResidualMap(AbstractGenerator):
    """g(z_head) = W h(z_head) + b, with h the hidden layers; A = W₁ ∂h + diag σ₁ and B = W₂ ∂h."""

    trunk: Trunk
    weight: Float[Array, "d w"]
    bias: Float[Array, " d"]
    scale: FixedScale | LearnedScale

    @property
    def injective(self) -> bool:
        """False: nothing keeps it injective."""
        return False

    @property
    def latent(self) -> int:
        """k."""
        return self.trunk.inputs

    @property
    def dim(self) -> int:
        """d."""
        return self.bias.shape[0]

    @property
    def constant_head(self) -> bool:
        """Only a linear g has a constant Jacobian."""
        return not self.trunk.layers or self.trunk.activation == "identity"

    def __call__(self, z):
        """g(z_head) + σ⊙z."""
        features = self.trunk(z[: self.latent])
        return tall(self.weight, features) + self.bias + self.scale(features) * z

    def head(self, z_head):
        """The first k coordinates: they need only the first k rows of W."""
        features, k = self.trunk(z_head), self.latent
        return self.weight[:k] @ features + self.bias[:k] + self.scale(features)[:k] * z_head

    def tail(self, z_head, z_tail):
        """The other coordinates."""
        features, k = self.trunk(z_head), self.latent
        return self.weight[k:] @ features + self.bias[k:] + self.scale(features)[k:] * z_tail

    def tail_scale(self, z_head):
        """σ₂."""
        return self.scale(z_head)[self.latent :]

    @property
    def last_layer(self):
        """W; its first k rows are in A."""
        return LastLayer(lambda g: g.weight, self.trunk, 0, in_log_det=True)

    def scale_parameters(self):
        """log σ, if learned."""
        nothing = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(lambda g: g.scale, nothing, jax.tree.map(lambda _: True, self.scale))


@spec
class Residual:
    """The paper's generator. With λ = `scale` fixed no coordinate's sd falls below λ: `learn_scale` frees it.

    Nothing keeps it injective (the paper: "for sufficiently large λ"): check the fold fraction.
    """

    latent: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    scale: float = 1.0
    learn_scale: bool = False

    def __post_init__(self):
        check_network(self.hidden, self.activation)
        require_positive(
            "scale (λ)", self.scale, "The paper uses 1.0; networks start well at 0.05."
        )
        require_flag("learn_scale", self.learn_scale)
        if self.latent is not None:
            require_count("latent", self.latent, "Omit it for 64, or all coordinates if d is less.")

    def head_size(self, dim: int) -> int:
        """k in this dimension."""
        return latent_size(self.latent, dim, default=64)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> ResidualMap:
        """The map for a target of `dim` dimensions."""
        k = self.head_size(dim)
        trunk_key, output_key = jax.random.split(key)
        output = eqx.nn.Linear((k, *self.hidden)[-1], dim, key=output_key, dtype=dtype)
        assert output.bias is not None
        return ResidualMap(
            trunk=Trunk(k, self.hidden, self.activation, key=trunk_key, dtype=dtype),
            weight=output.weight,
            bias=output.bias,
            scale=LearnedScale(jnp.full(dim, jnp.log(self.scale), dtype))
            if self.learn_scale
            else FixedScale(self.scale, dim),
        )
