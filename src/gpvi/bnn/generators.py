r"""Generators for networks: g_θ with as many outputs as a network has weights.

The posterior of a network is narrow in some weights and as wide as the prior in others, and its training starts at the
network's own initialisation: `gpvi.fit` puts the generator's origin at a draw of it. So σ is learned for each weight
from a small start, in the head as in the tail, and depends on z_head where that is affordable: on a 4-class problem it
is worth 5 nats of ELBO to the pathwise gradient, and layers of 128 in place of 64 are worth 2 more (`gpvi run
classification4`). (The functional one, whose kernel sees z_head alone, trains σ(z_head) badly, and does better with
fewer latent coordinates: `method` gives it 16, a constant σ and layers of 64.)

The last layer of g holds nearly all parameters, d × width; from LARGE weights on it is two factors, W = U V of rank r,
and d·r parameters are left. Such a layer, started as layers are, in ±r^{-1/2}, would put offsets several times as large
as the network's own initialisation on every weight, so that it starts small. Nothing here needs more than
vector-Jacobian products of g.
"""

import dataclasses
from typing import Literal

from gpvi.generators import AffineFlow, SplineFlow, Triangular
from gpvi.methods import GPVI
from gpvi.specs import require_choice, require_count
from gpvi.targets.target import Target

LARGE = 20_000
"""Weights from which the last layer of g is factorised, and σ no longer depends on z_head."""
DRAWS = 32
"""Networks drawn in each step by the methods that draw anew: the data are few, and so is their noise."""
GAIN = 0.05
"""Of the factorised layer at the start."""


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
    """A generator for a network of `dim` weights (and coordinates of the likelihood), or for a target of them.

    Parameters
    ----------
    latent: k, the noise that g sees; up to 64 by default.
    head: T of the first k coordinates, affine by default.
    hidden, activation: of g; "gelu" below 20,000 weights, and "relu" above.
    rank: of g's last layer; full below 20,000 weights, 16 or less above.
    scale: σ at the start; 0.05, and 0.01 for large networks, whose layers sum more terms.
    scale_form: "conditional", σ(z_head), below 20,000 weights, and "constant" above.
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
    """GPVI as it serves for a network of `dim` weights: `generator(dim)`, and fewer draws in each step as d grows.

    100 networks up to 20,000 weights, then 2·10⁶/d of them, but at least 4. A target serves in place of its dim.
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


def small(dim: int, draws: int = DRAWS) -> GPVI:
    """For the small networks of tabular data: few latent coordinates, and one small σ for each weight to start from.

    With σ(z_head) and 64 latent coordinates training stays in an optimum where noise explains what the network should.
    """
    if dim >= LARGE:
        return method(dim)
    few = generator(
        dim,
        latent=min(8, max(1, dim // 2)),
        hidden=(64, 64),
        activation="relu",
        scale=0.01,
        scale_form="constant",
    )
    return GPVI(generator=few, particles=draws, learning_rate=1e-2)


def _dim(given: int | Target) -> int:
    if isinstance(given, Target):
        return given.dim
    require_count(
        "dim", given, "Give the number of coordinates of the target, or the target itself."
    )
    return given
