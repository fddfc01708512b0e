"""Generators that are injective by construction: x_head = T(z_head), x_tail = g(z_head) + σ⊙z_tail.

T is a bijection of R^k and σ > 0, so J = [T′ 0; B diag σ] has invertible diagonal blocks for every g, and z can be
recovered exactly: z_head = T^{-1}(x_head), z_tail = (x_tail − g(z_head)) / σ. For k = d this is T alone; with the
pathwise gradient it is then a normalizing flow trained on the reverse KL.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from gpvi._compute.outer_products import tall
from gpvi.generators.base import AbstractGenerator, Generator, LastLayer
from gpvi.generators.bijections import AffineHead, Bijection, TailedHead
from gpvi.generators.networks import (
    ConditionalScale,
    LearnedScale,
    Trunk,
    check_network,
    latent_size,
)
from gpvi.generators.spline import SplineHead, check_bins, spline_couplings
from gpvi.specs import (
    require_choice,
    require_count,
    require_instance,
    require_positive,
    resolve,
    spec,
)


@spec
class AffineFlow:
    """A head T(z) = shift + scale⊙z.

    Parameters
    ----------
    scale
        The initial scale; the shift starts at 0.

    Examples
    --------
    >>> generator = gpvi.generators.Triangular(head=gpvi.generators.AffineFlow(scale=0.5))
    """

    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale of the affine head", self.scale, "1.0 starts at the identity.")

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> AffineHead:
        """Build the head for k = `dim`."""
        return AffineHead(jnp.zeros(dim, dtype), jnp.full(dim, jnp.log(self.scale), dtype))


@spec
class SplineFlow:
    """A head of rational-quadratic spline couplings (Durkan et al. 2019), then a diagonal affine map.

    A coupling needs two coordinates; for k = 1 the spline acts alone.

    Parameters
    ----------
    layers
        Number of couplings.
    knots
        Number of knots of a spline inside the interval.
    interval
        The splines act on (−interval, interval) and are the identity outside.
    width, depth
        Width and number of the hidden layers of the network in a coupling.
    scale
        The initial scale of the affine map.

    Examples
    --------
    >>> flow = gpvi.generators.SplineFlow(layers=4, knots=6)
    >>> method = gpvi.GPVI(generator=gpvi.generators.Triangular(head=flow))
    """

    layers: int = 6
    knots: int = 8
    interval: float = 5.0
    width: int = 50
    depth: int = 1
    scale: float = 1.0

    def __post_init__(self):
        for name in ("layers", "knots", "width", "depth"):
            require_count(f"{name} of the spline flow", getattr(self, name), "Try the default.")
        for name in ("interval", "scale"):
            require_positive(f"{name} of the spline flow", getattr(self, name), "Try the default.")
        check_bins(self.knots, self.interval)

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> SplineHead:
        """Build the head for k = `dim`; it starts as `scale` times a permutation of the coordinates."""
        return spline_couplings(
            dim,
            layers=self.layers,
            knots=self.knots,
            interval=self.interval,
            width=self.width,
            depth=self.depth,
            scale=self.scale,
            key=key,
            dtype=dtype,
        )


class Tail(eqx.Module):
    """x_tail = W h(z_head) + b + σ(z_head)⊙z_tail."""

    trunk: Trunk
    output: eqx.nn.Linear
    scale: LearnedScale | ConditionalScale

    def __call__(
        self, z_head: Float[Array, " k"], z_tail: Float[Array, " t"]
    ) -> Float[Array, " t"]:
        features = self.trunk(z_head)
        return self.mean(features) + self.scale(features) * z_tail

    def mean(self, features: Float[Array, " w"]) -> Float[Array, " t"]:
        """Return W h + b."""
        assert self.output.bias is not None
        return tall(self.output.weight, features) + self.output.bias

    def inverse(self, z_head: Float[Array, " k"], x_tail: Float[Array, " t"]) -> Float[Array, " t"]:
        """Return z_tail."""
        features = self.trunk(z_head)
        return (x_tail - self.mean(features)) / self.scale(features)


class TriangularMap(AbstractGenerator):
    """x = (T(z_head), g(z_head) + σ⊙z_tail)."""

    flow: Bijection | SplineHead
    network: Tail | None

    @property
    def injective(self) -> bool:
        """True, by construction."""
        return True

    @property
    def dim(self) -> int:
        """d."""
        return self.latent + (0 if self.network is None else len(self.network.scale.log_scale))

    @property
    def latent(self) -> int:
        """k."""
        return self.flow.dim

    @property
    def constant_head(self) -> bool:
        """Whether T is affine, so that T′ is constant."""
        return self.flow.constant

    def head(self, z_head):
        """Return T(z_head)."""
        return self.flow(z_head)

    def tail(self, z_head, z_tail):
        """Return g(z_head) + σ⊙z_tail."""
        return z_tail if self.network is None else self.network(z_head, z_tail)

    def tail_scale(self, z_head):
        """Return σ."""
        return (
            z_head[:0] if self.network is None else self.network.scale(self.network.trunk(z_head))
        )

    def head_jacobian(self, z_head):
        """Return T′."""
        return self.flow.jacobian(z_head)

    def head_log_det(self, z_head):
        """Return the sign of det T′ and log|det T′|, which T gives without forming T′."""
        log_det = self.flow.transform_and_log_det(z_head)[1]
        return jnp.full_like(log_det, self.flow.orientation), log_det

    def transform_and_log_det(self, z):
        """Return x, the sign of det J and log|det J|, in one pass of T."""
        z_head, z_tail = self.split(z)
        x_head, log_det = self.flow.transform_and_log_det(z_head)
        x = jnp.concatenate([x_head, self.tail(z_head, z_tail)])
        sign = jnp.full_like(log_det, self.flow.orientation)
        return x, sign, log_det + jnp.log(self.tail_scale(z_head)).sum()

    def inverse(self, x):
        """Return z_head = T^{-1}(x_head) and z_tail = (x_tail − g(z_head)) / σ."""
        x_head, x_tail = self.split(x)
        z_head = self.flow.inverse(x_head)
        z_tail = x_tail if self.network is None else self.network.inverse(z_head, x_tail)
        return jnp.concatenate([z_head, z_tail])

    def at_rest(self) -> "TriangularMap":
        """The same map with g = 0: before training, when T permutes, its draws are then standard normal."""
        if self.network is None:
            return self
        output = jax.tree.map(jnp.zeros_like, self.network.output)
        return eqx.tree_at(lambda g: g.network.output, self, output)

    @property
    def last_layer(self):
        """W of the tail's network, which T′ and σ do not depend on."""
        if self.network is None:
            return None
        return LastLayer(
            lambda g: g.network.output.weight, self.network.trunk, self.latent, in_log_det=False
        )

    def scale_parameters(self):
        """Return which parameters set σ."""
        nothing = jax.tree.map(lambda _: False, self)
        if self.network is None:
            return nothing
        everything = jax.tree.map(lambda _: True, self.network.scale)
        return eqx.tree_at(lambda g: g.network.scale, nothing, everything)


HEAD = 64
"""The default k where the head does not have all coordinates."""
ALL_HEAD = 128
"""The dimension up to which a spline head has all coordinates by default. At 128 this takes up to twice the time of k =
64, but fits curved posteriors better: for stochastic volatility in 102 dimensions the ELBO is 0.9 nats higher."""


@spec
class Triangular(Generator):
    """The default generator, injective by construction: a bijection T of k coordinates, and a network for the rest.

    Parameters
    ----------
    latent
        k; by default all coordinates up to 128 with a spline head and up to 64 with an affine one, beyond that 64.
    head
        T: "spline" (flexible), "affine" (T′ is diagonal, so there is nothing to factor), `SplineFlow` or `AffineFlow`.
    hidden, activation
        The network g of the tail, which depends on the noise of the head.
    scale
        The initial σ of the tail; it is learned.
    scale_form
        "constant" (one σ per coordinate) or "conditional" (σ depends on z_head).
    rank
        Rank of the last layer of g, as two factors, so that it has about d·rank parameters; full by default.
    gain
        A factor on the initial last layer of g; small if training starts from a given point, as for networks.
    tails
        Whether the noise of the head first gets tails of a learned weight, from nearly Gaussian ones to those of a
        Cauchy distribution.

    Examples
    --------
    >>> generator = gpvi.generators.Triangular(latent=16, head="affine")
    >>> method = gpvi.GPVI(generator=generator)
    """

    latent: int | None = None
    head: str | AffineFlow | SplineFlow = "spline"
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    scale: float = 1.0
    scale_form: str = "constant"
    rank: int | None = None
    gain: float = 1.0
    tails: bool = False

    def __post_init__(self):
        check_network(self.hidden, self.activation)
        require_positive("gain", self.gain, "1.0 initialises the last layer like any other.")
        if self.rank is not None:
            require_count("rank", self.rank, "Omit it for a full last layer.")
        require_positive("scale (σ at the start)", self.scale, "Use 1.0, or 0.05 for networks.")
        require_choice(self.scale_form, ("constant", "conditional"), "scale_form")
        require_instance("tails", self.tails, bool)
        if self.latent is not None:
            require_count("latent", self.latent, "Omit it to choose by dimension.")
        self.flow()

    @property
    def flexible(self) -> bool:
        """Whether T is more than an affine map."""
        return isinstance(self.flow(), SplineFlow)

    def flow(self) -> AffineFlow | SplineFlow:
        """Return the specification of T."""
        shorthands = {"affine": AffineFlow, "spline": SplineFlow}
        return resolve(self.head, shorthands, "head", AffineFlow | SplineFlow)

    def head_size(self, dim: int) -> int:
        """Return k for a target of `dim` dimensions."""
        every = self.flexible and dim <= ALL_HEAD
        return latent_size(self.latent, dim, default=dim if every else HEAD)

    def choices(self, dim: int) -> str:
        """Describe the generator for a target of `dim` dimensions."""
        k, flow = self.head_size(dim), self.flow()
        layers = f"{flow.layers} spline couplings" if isinstance(flow, SplineFlow) else "affine"
        rest = f", then a network to {dim - k} more" if k < dim else ""
        return f"a head of {k} coordinates, {layers}{rest}"

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> TriangularMap:
        """Build the map for a target of `dim` dimensions."""
        k = self.head_size(dim)
        head_key, trunk_key, output_key = jax.random.split(key, 3)
        flow = self.flow().build(k, key=head_key, dtype=dtype)
        if self.tails:
            flow = TailedHead.light(flow, dtype)
        if k == dim:
            return TriangularMap(flow, None)
        trunk = Trunk(k, self.hidden, self.activation, self.rank, key=trunk_key, dtype=dtype)
        log_scale = jnp.full(dim - k, jnp.log(self.scale), dtype)
        output = eqx.nn.Linear(trunk.width, dim - k, key=output_key, dtype=dtype)
        network = Tail(
            trunk=trunk,
            output=jax.tree.map(lambda a: jnp.asarray(self.gain, dtype) * a, output),
            scale=LearnedScale(log_scale)
            if self.scale_form == "constant"
            else ConditionalScale(log_scale, jnp.zeros((dim - k, trunk.width), dtype)),
        )
        return TriangularMap(flow, network)
