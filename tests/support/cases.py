"""What the tests of the mathematics share: every generator, away from its start, bare and preconditioned."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import gpvi
from gpvi import generators
from gpvi.generators import AbstractGenerator, Preconditioned, SplineFlow
from gpvi.targets.coordinates import Affine

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
    "diagonal": lambda s: generators.Diagonal(0.7),
    "full-rank": lambda s: generators.FullRank(0.7),
    "full-rank-tailed": lambda s: generators.FullRank(0.7, tails=True),
    "affine-tailed": lambda s: generators.Triangular(
        s.latent, "affine", s.hidden, "gelu", scale=0.7, tails=True
    ),
    "copula": lambda s: generators.Copula(),
    "planar": lambda s: generators.Planar(3),
    "autoregressive": lambda s: generators.Autoregressive(2, 4),
}
INVERTIBLE = (
    "linear",
    "affine",
    "affine-conditional",
    "spline",
    "diagonal",
    "full-rank",
    "full-rank-tailed",
    "affine-tailed",
    "copula",
    "autoregressive",
)
INJECTIVE = (*INVERTIBLE, "planar")
FLOWS = ("spline", "planar", "autoregressive")
FLOW_SHAPES = {
    "bare": Shape(3, 3, ()),
    "diagonal": Shape(3, 1, (4,)),
    "dense": Shape(3, 1, (4,)),
}
"""Building and compiling a flow takes seconds: one shape for each conditioning."""


@st.composite
def shapes(draw: st.DrawFn, kind: str, how: str = "bare") -> Shape:
    """Any small shape for d, k and the hidden layers; for the flows a given one.

    A free network narrower than d has a singular Jacobian everywhere.
    """
    if kind in FLOWS:
        return FLOW_SHAPES[how]
    dim = draw(st.integers(1, 5))
    hidden = draw(st.lists(st.integers(dim if kind == "mlp" else 1, 5), max_size=2))
    return Shape(dim, draw(st.integers(1, dim)), tuple(hidden))


seeds = st.integers(0, 2**32 - 1)


@functools.cache
def built(kind: str, shape: Shape) -> Any:
    """The generator as its specification builds it, in float64."""
    return KINDS[kind](shape).build(shape.dim, key=jax.random.key(7), dtype=jnp.float64)


def perturbed(model: eqx.Module, rng: np.random.Generator, scale: float = 0.3) -> Any:
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


DATA = 24


class Regression(NamedTuple):
    """Bayesian linear regression: a Gaussian posterior in closed form, with data to take batches of."""

    features: np.ndarray
    response: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.covariance @ self.features.T @ self.response

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.features.T @ self.features + np.eye(self.features.shape[1]))

    @property
    def log_evidence(self) -> float:
        """∫ exp(−½‖y − Xw‖² − ½‖w‖²) dw, at the mode and by its Gaussian."""
        residual = self.response - self.features @ self.mean
        top = -0.5 * residual @ residual - 0.5 * self.mean @ self.mean
        return top + 0.5 * np.linalg.slogdet(2 * np.pi * self.covariance)[1]

    def errors(self, draws: Any, covariance: np.ndarray | None = None) -> tuple[float, float]:
        """How far the moments of draws are off in units of the posterior C = LLᵀ.

        ‖L^{-1}(m̂ − m)‖ and ‖L^{-1}(Ĉ − `covariance`)L^{-T}‖ (Frobenius); `covariance` is C by default.
        """
        draws, inverse = (
            np.asarray(draws, float),
            np.linalg.inv(np.linalg.cholesky(self.covariance)),
        )
        wanted = self.covariance if covariance is None else covariance
        off = inverse @ (np.cov(draws.T, bias=True) - wanted) @ inverse.T
        return float(np.linalg.norm(inverse @ (draws.mean(0) - self.mean))), float(
            np.linalg.norm(off)
        )

    def target(self, dtype: str = "float32", traced: list | None = None) -> gpvi.Target:
        """`traced` counts how often the likelihood is traced."""

        def log_likelihood(x, batch):
            if traced is not None:
                traced.append(1)
            return -0.5 * (batch[1] - batch[0] @ x) ** 2

        return gpvi.Target(
            log_likelihood=log_likelihood,
            log_prior=lambda x: -0.5 * x @ x,
            data=(self.features.astype(dtype), self.response.astype(dtype)),
            dim=self.features.shape[1],
            dtype=dtype,
        )


@functools.cache
def regression(dim: int = 2) -> Regression:
    """A posterior whose coordinates correlate, well away from the standard normal that training starts at."""
    rng = np.random.default_rng(dim)
    mixing = np.eye(dim) + 0.8 * np.eye(dim, k=1)
    features = 0.35 * rng.standard_normal((DATA, dim)) @ mixing
    response = features @ np.linspace(2.0, -1.0, dim) + rng.standard_normal(DATA)
    return Regression(features, response)
