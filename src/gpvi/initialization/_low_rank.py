r"""In thousands of dimensions: a Gaussian whose covariance is diagonal plus low rank, by Newton steps up the ELBO.

For q = N(m, Σ) the ELBO is stationary where E ∇log p(x) = 0 and Σ⁻¹ = Λ = −E ∇²log p(x) (Opper & Archambeau 2009). Λ is
never formed. It is fitted to a few of its products with random vectors, which are Hessian-vector products of log p at
draws of q, as Λ = diag(e) + V Γ Vᵀ.

The coordinates are dealt into three groups, and each vector ω is zero outside one of them, g. Where the rows of another
group h meet it, the diagonal does not show: Λ_hg ω = V_h Γ V_gᵀω. So the products have the range of V_h, with an
orthonormal basis X_h, and V_h = X_h T_h gives

    K_hg = T_h Γ T_gᵀ = (X_hᵀ Λ_hg Ω_g) (X_gᵀ Ω_g)⁺,    K_hh = K_hg K_lg⁺ K_lh,    l the third group.

What is left of Λ_gg ω is eω. If Λ has this form, as that of a Gaussian with a factor covariance, few products fix it
exactly in any dimension; otherwise the part that is most visible is found.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator

from gpvi._inputs import format_point
from gpvi.initialization._evaluation import HostDensity
from gpvi.initialization._gaussians import FINITE_SHARE, Points, Vector, antithetic_noise
from gpvi.initialization.result import Gaussian, NoPathError, Report
from gpvi.targets.semiseparable import Semiseparable

RANK = 32
"""The largest rank. Arrays have this many columns, so that their shapes depend on the dimension alone."""
GROUPS, PROBES = 3, RANK + 8
"""Groups of coordinates, and for each the random vectors that Λ is multiplied by."""
RCOND = 1e-9
"""Smaller singular values, relative to the largest, are rounding errors."""
CURVED, DRAWS = 4, 32
"""Draws of q at which the Hessian, and log p with its gradient, are averaged."""
MOST_STEPS = 30
"""The most steps."""
LEAST_RISE = 0.005
"""Nats: the climb ends when the ELBO rises by less."""
FRACTIONS = (1.0, 0.25, 0.0625)
"""The fractions of a shift that are tried in turn."""
LEAST_SHARE = 1e-7
"""The least curvature of a coordinate, as a share of what the products show on average."""
FLATTEST, STEEPEST = 1e-8, 1e12
"""Bounds of the eigenvalues of Λ, in units of its diagonal part."""
WIDTHS = 2.0 ** np.arange(-20, 21)
"""The widths that are tried at the start."""


class Height(NamedTuple):
    """An ELBO and its standard error."""

    elbo: float
    error: float


class Factored(NamedTuple):
    """N(m, D (I + U diag(s² − 1) Uᵀ) D), where the columns of U are orthonormal."""

    location: Vector
    unit: Vector
    basis: Float[np.ndarray, "d r"]
    stretch: Float[np.ndarray, " r"]

    def points(self, noise: Points) -> Points:
        """Draws for the rows of the noise."""
        within = (noise @ self.basis) * (self.stretch - 1)
        return self.location + self.unit * (noise + within @ self.basis.T)

    def elbo(self, density: HostDensity, noise: Points) -> Height:
        """The ELBO from log p at the draws for this noise; −inf if it is finite at too few."""
        values = density.values(self.points(noise))
        finite = np.isfinite(values)
        if finite.mean() < FINITE_SHARE:
            return Height(-np.inf, 0.0)
        log_det = np.log(self.unit).sum() + np.log(self.stretch).sum()
        entropy = log_det + 0.5 * (noise**2).sum(1) + 0.5 * len(self.unit) * np.log(2 * np.pi)
        ratios = (values + entropy)[finite]
        return Height(float(ratios.mean()), float(ratios.std() / np.sqrt(len(ratios))))

    def scale(self) -> Semiseparable:
        """The Cholesky factor, with columns of zeros up to `RANK`."""
        excess = self.stretch**2 - 1
        factor = np.zeros((len(self.unit), RANK))
        factor[:, : len(excess)] = self.basis * np.sqrt(np.abs(excess))
        signs = np.ones(RANK)
        signs[: len(excess)] = np.where(excess < 0, -1.0, 1.0)
        return Semiseparable.of(self.unit, factor, signs, jnp.result_type(float))


def climb_low_rank(density: HostDensity, start: Vector, rng: Generator) -> Gaussian:
    """The Gaussian of `gpvi.initialization.low_rank`, from a point where log p and its gradient are finite."""
    noise = antithetic_noise(DRAWS, len(start), rng)
    normal = _first(density, start, noise[:2])
    height = normal.elbo(density, noise)
    if not np.isfinite(height.elbo):
        raise NoPathError(
            f"no Gaussian around the start {format_point(start)} has a finite ELBO: the log-density is "
            "not finite almost everywhere near it. Pass another start, or guard the log-density."
        )
    for _ in range(MOST_STEPS):
        raised = _raised(density, normal, height, noise, rng)
        if raised is None:
            break
        rise, (normal, height) = raised[1].elbo - height.elbo, raised
        if rise < LEAST_RISE:
            break
    report = Report("low rank", (height.elbo,), (0,), 0, 0.0, 1.0, False, scores=density.scored)
    return Gaussian(jnp.asarray(normal.location), normal.scale(), report)


def _first(density: HostDensity, start: Vector, noise: Points) -> Factored:
    """The round Gaussian at the start with the best ELBO."""
    round_one = Factored(start, np.ones(len(start)), np.zeros((len(start), 0)), np.zeros(0))
    normals = [round_one._replace(unit=np.full(len(start), width)) for width in WIDTHS]
    return max(normals, key=lambda normal: normal.elbo(density, noise).elbo)


def _raised(
    density: HostDensity, normal: Factored, height: Height, noise: Points, rng: Generator
) -> tuple[Factored, Height] | None:
    """The Gaussian after a step that does not lower the ELBO by more than its error; None if every fraction does."""
    _, scores = density.scores(normal.points(noise))
    dim = len(normal.unit)
    groups, probes = rng.permutation(dim) % GROUPS, rng.choice([-1.0, 1.0], (PROBES, dim))
    at = normal.points(antithetic_noise(CURVED, dim, rng))
    products = np.stack(
        [
            normal.unit * density.mean_curvature(at, normal.unit * (groups == group) * probes)
            for group in range(GROUPS)
        ]
    )
    if not (np.isfinite(products).all() and np.isfinite(scores).all()):
        return None
    diagonal, basis, eigenvalues = fit_precision(groups, probes, products)
    unit = normal.unit / np.sqrt(diagonal)
    slope = unit * scores.mean(0)
    shift = unit * (slope + basis @ ((1 / eigenvalues - 1) * (basis.T @ slope)))
    for fraction in FRACTIONS:
        location = normal.location + fraction * shift
        trial = Factored(location, unit, basis, eigenvalues**-0.5)
        reached = trial.elbo(density, noise)
        if reached.elbo > height.elbo - height.error:
            return trial, reached
    return None


def fit_precision(
    groups: Int[np.ndarray, " d"],
    probes: Float[np.ndarray, "p d"],
    products: Float[np.ndarray, "g p d"],
) -> tuple[Vector, Float[np.ndarray, "d r"], Float[np.ndarray, " r"]]:
    """Fit Λ = E^{1/2} (I + U diag(λ − 1) Uᵀ) E^{1/2}; return the diagonal of E, U, and λ.

    Products number g are those of Λ with the probes, set to zero outside of group g.
    """
    rows = [np.flatnonzero(groups == group) for group in range(GROUPS)]
    bases = [_range(np.concatenate(np.delete(products, g, 0))[:, rows[g]].T) for g in range(GROUPS)]
    seen = [np.linalg.pinv(bases[g].T @ probes[:, rows[g]].T) for g in range(GROUPS)]

    def core(h: int, g: int) -> Float[np.ndarray, "r s"]:
        """K_hg."""
        if h != g:
            return bases[h].T @ products[g][:, rows[h]].T @ seen[g]
        one, other = (h + 1) % GROUPS, (h + 2) % GROUPS
        return core(h, one) @ np.linalg.pinv(core(other, one), RCOND) @ core(other, h)

    whole = np.block([[core(h, g) for g in range(GROUPS)] for h in range(GROUPS)])
    whole = 0.5 * (whole + whole.T)
    basis = np.zeros((len(groups), len(whole)))
    starts = np.cumsum([0, *(one.shape[1] for one in bases)])
    diagonal = np.empty(len(groups))
    for g, (own, one) in enumerate(zip(rows, bases, strict=True)):
        within = slice(starts[g], starts[g + 1])
        basis[own, within] = one
        there = probes[:, own]
        left = products[g][:, own] - (there @ one) @ whole[within, within] @ one.T
        typical = np.abs(products[g][:, own] * there).mean(0)
        diagonal[own] = np.maximum((left * there).mean(0), LEAST_SHARE * typical)
    values, vectors = np.linalg.eigh(whole)
    kept = np.argsort(-np.abs(values))[:RANK]
    columns, triangle = np.linalg.qr((basis @ vectors[:, kept]) / np.sqrt(diagonal)[:, None])
    excess, rotation = np.linalg.eigh((triangle * values[kept]) @ triangle.T)
    return diagonal, columns @ rotation, np.clip(1 + excess, FLATTEST, STEEPEST)


def _range(columns: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n r"]:
    """An orthonormal basis of the range, or of its largest directions."""
    vectors, values, _ = np.linalg.svd(columns, full_matrices=False)
    return vectors[:, : min(RANK, int((values > RCOND * values[0]).sum()))]
