"""x = g_θ(z_head) + σ⊙z, the paper's generator (Eq. 6), with the Jacobian of Eq. 7."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.outer_products import tall
from gpvi.generators.base import AbstractGenerator, Generator, LastLayer
from gpvi.generators.networks import (
    FixedScale,
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
        """Whether g is linear."""
        return self.trunk.linear

    def __call__(self, z):
        """Return g(z_head) + σ⊙z."""
        features = self.trunk(z[: self.latent])
        return tall(self.weight, features) + self.bias + self.scale(features) * z

    def head(self, z_head):
        """Return the first k coordinates, which need only the first k rows of W."""
        features, k = self.trunk(z_head), self.latent
        return self.weight[:k] @ features + self.bias[:k] + self.scale(features)[:k] * z_head

    def tail(self, z_head, z_tail):
        """Return the other coordinates."""
        features, k = self.trunk(z_head), self.latent
        return self.weight[k:] @ features + self.bias[k:] + self.scale(features)[k:] * z_tail

    def tail_scale(self, z_head):
        """Return σ₂."""
        return self.scale(z_head)[self.latent :]

    @property
    def last_layer(self):
        """W, whose first k rows are part of A."""
        return LastLayer(lambda g: g.weight, self.trunk, 0, in_log_det=True)

    def scale_parameters(self):
        """Return which parameters are log σ; there are none if σ is fixed."""
        nothing = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(lambda g: g.scale, nothing, jax.tree.map(lambda _: True, self.scale))


@spec
class Residual(Generator):
    """The paper's generator, x = g_θ(z_head) + λz.

    Nothing keeps it injective (the paper says "for sufficiently large λ"): check the fold fraction of the diagnosis.

    Parameters
    ----------
    latent
        k, the number of noise coordinates that g depends on; by default 64, or d if that is less.
    hidden, activation
        The network g.
    scale
        λ. While it is fixed, no coordinate's sd can fall below it.
    learn_scale
        Whether to learn one λ for each coordinate, from `scale`.

    Examples
    --------
    >>> method = gpvi.GPVI(generator=gpvi.generators.Residual(latent=16, learn_scale=True))
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
        """Return k for a target of `dim` dimensions."""
        return latent_size(self.latent, dim, default=64)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> ResidualMap:
        """Build the map for a target of `dim` dimensions."""
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
