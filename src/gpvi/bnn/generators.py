r"""Generators for networks: g_θ with as many outputs as a network has weights.

The posterior of a network is narrow in some weights and as wide as the prior in others, and training starts at the
network's own initialisation, where `gpvi.fit` puts the generator's origin. So σ is learned for each weight, in the head
and in the tail, from a small start. It depends on z_head if that is affordable: on a 4-class problem this gains 5 nats
of ELBO with the pathwise gradient, and layers of 128 instead of 64 gain 2 more (`gpvi run classification4`). The
functional gradient, whose kernel sees z_head only, trains σ(z_head) badly and does better with fewer latent
coordinates: `method` gives it 16, a constant σ and layers of 64.

The last layer of g holds nearly all parameters, d × width. From LARGE weights on it is factorised, W = U V of rank r,
which leaves d·r parameters. With the usual initialisation, in ±r^{-1/2}, this layer would add offsets several times as
large as the network's own initialisation; so it starts small. Only vector-Jacobian products of g are needed.
"""

import dataclasses
from typing import Literal

from gpvi.generators import AffineFlow, SplineFlow, Triangular
from gpvi.methods import GPVI
from gpvi.specs import require_choice, require_count
from gpvi.targets.target import Target

LARGE = 20_000
"""The number of weights from which the last layer of g is factorised, and σ does not depend on z_head."""
DRAWS = 32
"""The draws of a step, for small networks and methods that draw anew in each step."""
GAIN = 0.05
"""The initial scale of the factorised layer."""


def generator(
    dim: int | Target,
    *,
    latent: int | None = None,
    head: Literal["affine", "spline"] = "affine",
    hidden: tuple[int, ...] = (128, 128),
    activation: str | None = None,
    rank: int | None = None,
    scale: float | None = None,
    scale_form: Literal["constant", "conditional"] | None = None,
) -> Triangular:
    """Return a generator specification that suits the posterior of a network.

    Parameters
    ----------
    dim
        The number of coordinates (weights and the likelihood's own parameters), or the target.
    latent
        k, the number of latent coordinates that g sees; up to 64 by default.
    head
        The map T of the first k coordinates.
    hidden
        The widths of the hidden layers of g.
    activation
        The activation of g; "gelu" below 20,000 weights and "relu" from there on by default.
    rank
        The rank of g's last layer; full below 20,000 weights, 16 or less from there on by default.
    scale
        The initial σ; 0.05, and 0.01 for large networks, whose layers sum more terms, by default.
    scale_form
        "conditional", σ(z_head), below 20,000 weights and "constant" from there on by default.

    Returns
    -------
    gpvi.generators.Triangular
        The specification.

    Raises
    ------
    gpvi.errors.InputError
        If `dim` is not an integer ≥ 1, or an option cannot be used.

    Examples
    --------
    >>> gpvi.bnn.generator(184).latent
    64
    >>> gpvi.bnn.generator(61_706).rank
    16
    """
    dim = _dim(dim)
    require_choice(head, ("affine", "spline"), "head")
    large = dim >= LARGE
    scale = (0.01 if large else 0.05) if scale is None else scale
    return Triangular(
        latent=min(64, max(1, dim // 2)) if latent is None else latent,
        head=AffineFlow(scale) if head == "affine" else SplineFlow(layers=4, scale=scale),
        hidden=hidden,
        activation=activation or ("relu" if large else "gelu"),
        scale=scale,
        scale_form=scale_form or ("constant" if large else "conditional"),
        rank=(16 if dim < 10**6 else 8) if rank is None and large else rank,
        gain=GAIN if large else 1.0,
    )


def method(
    dim: int | Target,
    *,
    gradient: Literal["pathwise", "functional", "l2"] = "pathwise",
    particles: int | None = None,
    learning_rate: float | None = None,
    head: Literal["affine", "spline"] = "affine",
) -> GPVI:
    """Return GPVI with options that suit the posterior of a network, for `gpvi.fit`.

    Parameters
    ----------
    dim
        The number of coordinates (weights and the likelihood's own parameters), or the target.
    gradient
        The gradient of GPVI.
    particles
        The draws of a step; by default 100 up to 20,000 weights, then 2·10⁶/dim, and at least 4.
    learning_rate
        5e-3 below 20,000 weights and 1e-3 from there on by default.
    head
        As for `generator`.

    Returns
    -------
    gpvi.GPVI
        The method.

    Raises
    ------
    gpvi.errors.InputError
        If `dim` is not an integer ≥ 1, or an option cannot be used.

    Examples
    --------
    >>> gpvi.bnn.method(184).particles, gpvi.bnn.method(10**6).particles
    (100, 4)
    """
    dim = _dim(dim)
    large = dim >= LARGE
    made = generator(dim, head=head)
    if gradient == "functional":
        made = dataclasses.replace(made, latent=min(16, max(1, dim // 2)), scale_form="constant")
        if not large:
            made = dataclasses.replace(made, hidden=(64, 64), activation="relu")
    return GPVI(
        generator=made,
        gradient=gradient,
        particles=max(4, min(100, 2 * 10**6 // dim)) if particles is None else particles,
        learning_rate=(1e-3 if large else 5e-3) if learning_rate is None else learning_rate,
    )


def default_gpvi(dim: int, draws: int = DRAWS) -> GPVI:
    """Return the default method of `gpvi.bnn.fit`.

    For small networks it has few latent coordinates and a small constant σ for each weight. With σ(z_head) and 64
    latent coordinates training stays in an optimum that attributes the signal to noise.
    """
    if dim >= LARGE:
        return method(dim)
    small = generator(
        dim,
        latent=min(8, max(1, dim // 2)),
        hidden=(64, 64),
        activation="relu",
        scale=0.01,
        scale_form="constant",
    )
    return GPVI(generator=small, particles=draws, learning_rate=1e-2)


def _dim(dim: int | Target) -> int:
    if isinstance(dim, Target):
        return dim.dim
    require_count("dim", dim, "Give the number of coordinates of the target, or the target itself.")
    return dim
