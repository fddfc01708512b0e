"""Posteriors that are known Gaussians: the errors of an approximation, and the methods that are compared."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gpvi
from gpvi.directions import KSDDirection
from gpvi.methods import Method
from gpvi.methods.carriers import Chains, Particles
from gpvi.solvers import Helper

PARTICLES = 100
MANY_DRAWS = 100_000
"""Draws of a flow for its moments."""
FLOOR_REPLICATES = 200
PAPER_LEARNING_RATE = 1e-3
LINEAR = gpvi.generators.Linear()
CRITIC = KSDDirection(hidden_width=100, hidden_layers=1, penalty=10.0, learning_rate=1e-3)
"""The appendix' critic."""

LINEAR_METHODS: dict[str, Method] = {
    "Amortized SVGD": gpvi.AmortizedSVGD(generator=LINEAR, particles=PARTICLES),
    "Amortized GFSF": gpvi.AmortizedGFSF(generator=LINEAR, particles=PARTICLES),
    "Amortized GFSD": gpvi.AmortizedGFSD(generator=LINEAR, particles=PARTICLES),
    "Amortized KSD": gpvi.AmortizedKSD(generator=LINEAR, particles=PARTICLES, critic=CRITIC),
    "GPVI (functional, helper)": gpvi.GPVI(
        generator=LINEAR,
        gradient="functional",
        solver=Helper(width=100, learning_rate=1e-4),
        particles=PARTICLES,
    ),
    "GPVI (functional, exact Jacobian)": gpvi.GPVI(
        generator=LINEAR, gradient="functional", solver="block", particles=PARTICLES
    ),
    "GPVI (pathwise)": gpvi.GPVI(generator=LINEAR, gradient="pathwise", particles=PARTICLES),
    "GPVI (l2)": gpvi.GPVI(generator=LINEAR, gradient="l2", particles=PARTICLES),
}
"""The ways to train x = Wz + b; the learning rates are the methods' defaults, which `best` decays."""


class KnownGaussian(NamedTuple):
    """A target that is N(mean, covariance)."""

    target: gpvi.Target
    mean: np.ndarray
    covariance: np.ndarray


def relative_errors(
    problem: KnownGaussian, mean: np.ndarray, covariance: np.ndarray
) -> tuple[float, float]:
    """‖b − m‖/‖m‖ and ‖Σ̂ − Σ‖_F/‖Σ‖_F."""
    return (
        float(np.linalg.norm(mean - problem.mean) / np.linalg.norm(problem.mean)),
        relative_covariance_error(problem, covariance),
    )


def relative_covariance_error(problem: KnownGaussian, covariance: np.ndarray) -> float:
    """‖Σ̂ − Σ‖_F/‖Σ‖_F."""
    return float(
        np.linalg.norm(covariance - problem.covariance) / np.linalg.norm(problem.covariance)
    )


def divergence(problem: KnownGaussian, mean: np.ndarray, covariance: np.ndarray) -> float:
    """KL(N(b, Σ̂) ‖ N(m, Σ)) = ½ (tr Σ^{-1}Σ̂ − d − log|Σ^{-1}Σ̂| + (b − m)ᵀΣ^{-1}(b − m))."""
    ratio = np.linalg.solve(problem.covariance, covariance)
    shift = mean - problem.mean
    square = shift @ np.linalg.solve(problem.covariance, shift)
    _, log_det = np.linalg.slogdet(ratio)
    return float(0.5 * (np.trace(ratio) - len(shift) - log_det + square))


def sample_errors(problem: KnownGaussian, draws: np.ndarray) -> tuple[float, float]:
    """The relative errors of the sample mean and covariance."""
    return relative_errors(problem, draws.mean(0), np.cov(draws.T))


def exact_sample_errors(problem: KnownGaussian, seed: int) -> tuple[float, float]:
    """The mean errors that `PARTICLES` exact draws from the posterior have."""
    rng = np.random.default_rng([seed, 1])
    exact = rng.multivariate_normal(
        problem.mean, problem.covariance, (FLOOR_REPLICATES, PARTICLES), method="cholesky"
    )
    errors = np.mean([sample_errors(problem, draws) for draws in exact], 0)
    return float(errors[0]), float(errors[1])


def moments(posterior: gpvi.Posterior, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean f(0) and covariance JJᵀ of an affine generator, those of many draws of a flow or of all draws of chains.

    None for particles: there are no more than the `PARTICLES` that are measured anyway.
    """
    if isinstance(posterior.model, Particles):
        if not isinstance(posterior.model, Chains):
            return None
        draws = np.asarray(posterior.particles, np.float64)
        return draws.mean(0), np.cov(draws.T)
    generator = posterior.generator
    if not generator.constant_head:
        draws = np.asarray(posterior.sample(MANY_DRAWS, key=jax.random.key(seed)), np.float64)
        return draws.mean(0), np.cov(draws.T)
    origin = jnp.zeros(posterior.dim, posterior.dtype)
    jacobian = np.asarray(jax.jacfwd(generator)(origin), np.float64)
    return np.asarray(generator(origin), np.float64), jacobian @ jacobian.T


def final_residual(posterior: gpvi.Posterior) -> dict[str, float]:
    """The mean residual of the solver in the last hundredth of the steps; empty if the solver is exact."""
    residuals = posterior.training.history.get("residual")
    if residuals is None or not residuals.any():
        return {}
    return {"residual": float(residuals[-max(1, len(residuals) // 100) :].mean())}
