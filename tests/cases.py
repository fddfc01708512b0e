"""What the tests of the mathematics share: every generator, away from its start, bare and preconditioned."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from gpvi import generators
from gpvi.affine import Affine
from gpvi.generators import AbstractGenerator, Preconditioned, SplineFlow

SMALL_SPLINE = SplineFlow(layers=2, knots=3, width=4)
CONDITIONINGS = ("bare", "diagonal", "dense")


class Shape(NamedTuple):
    """d, k and the widths of the hidden layers."""

    dim: int
    latent: int
    hidden: tuple[int, ...]


KINDS: dict[str, Callable[[Shape], generators.Generator]] = {
    "linear": lambda s: generators.Linear(),
    "mlp": lambda s: generators.MLP(s.hidden, "tanh"),
    "residual": lambda s: generators.Residual(s.latent, s.hidden, "relu", scale=0.7),
    "residual-learned": lambda s: generators.Residual(
        s.latent, s.hidden, "tanh", scale=0.7, learn_scale=True
    ),
    "affine": lambda s: generators.Triangular(s.latent, "affine", s.hidden, "gelu", scale=0.7),
    "affine-conditional": lambda s: generators.Triangular(
        s.latent, "affine", s.hidden, "silu", scale=0.7, scale_form="conditional"
    ),
    "spline": lambda s: generators.Triangular(
        s.latent, SMALL_SPLINE, s.hidden, "tanh", scale=0.7, scale_form="conditional"
    ),
}
INJECTIVE = ("linear", "affine", "affine-conditional", "spline")
SPLINE_SHAPES = {
    "bare": Shape(3, 3, ()),
    "diagonal": Shape(3, 1, (4,)),
    "dense": Shape(3, 1, (4,)),
}
"""Building and compiling a spline takes seconds: one shape for each conditioning."""


@st.composite
def shapes(draw: st.DrawFn, kind: str, how: str = "bare") -> Shape:
    """Any small shape for d, k and the hidden layers; for the splines a given one.

    A free network narrower than d has a singular Jacobian everywhere.
    """
    if kind == "spline":
        return SPLINE_SHAPES[how]
    dim = draw(st.integers(1, 5))
    hidden = draw(st.lists(st.integers(dim if kind == "mlp" else 1, 5), max_size=2))
    return Shape(dim, draw(st.integers(1, dim)), tuple(hidden))


seeds = st.integers(0, 2**32 - 1)


@functools.cache
def built(kind: str, shape: Shape) -> Any:
    """The generator as its specification builds it, in float64."""
    return KINDS[kind](shape).build(shape.dim, key=jax.random.key(7), dtype=jnp.float64)


def perturbed(model: AbstractGenerator, rng: np.random.Generator, scale: float = 0.3) -> Any:
    """The same model with normal noise added to every parameter."""

    def move(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        return jnp.asarray(np.asarray(leaf) + scale * rng.standard_normal(leaf.shape))

    return jax.tree.map(move, model)


def conditioned(generator: AbstractGenerator, how: str, rng: np.random.Generator) -> Any:
    """The generator in other coordinates; some axes are mirrored, so that orientation matters."""
    if how == "bare":
        return generator
    d = generator.dim
    location = jnp.asarray(rng.standard_normal(d))
    diagonal = rng.choice([-1.0, 1.0], d) * rng.uniform(0.5, 2.0, d)
    if how == "diagonal":
        return Preconditioned(generator, Affine(location, jnp.asarray(diagonal)))
    lower = np.tril(0.4 * rng.standard_normal((d, d)), -1) + np.diag(diagonal)
    return Preconditioned(generator, Affine(location, jnp.asarray(lower)))


def example(kind: str, shape: Shape, how: str, rng: np.random.Generator) -> Any:
    """One generator of this kind, away from its start."""
    return conditioned(perturbed(built(kind, shape), rng), how, rng)
