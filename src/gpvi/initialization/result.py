"""The result of the search: a Gaussian, and a report of how it was found."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpvi.errors import InputError
from gpvi.initialization._gaussians import Normal
from gpvi.targets.semiseparable import Semiseparable


class Report(NamedTuple):
    """How a Gaussian was found.

    Attributes
    ----------
    kind
        The function that found it.
    elbos
        The ELBO at the end of each path; −inf for a path that failed.
    distinct
        The indices of the paths that first reached an optimum. Their ends were combined.
    chosen
        The index of the path with the best ELBO among these.
    tempering
        The exponent β of the importance weights (p/q)^β that combined the ends; 0 if the dimension is too high for
        importance sampling.
    effective_share
        The effective sample size of the weights, as a share of the draws.
    flat
        Whether some direction was still widening at the end: the posterior may be improper.
    log_evidence
        log Z by importance sampling from the combined ends; NaN if no weights were used.
    log_evidence_se
        Its standard error; infinite if no weights were used.
    scores
        The gradients of log p that the search took.
    """

    kind: Literal["variational", "laplace", "low rank"]
    elbos: tuple[float, ...]
    distinct: tuple[int, ...]
    chosen: int
    tempering: float
    effective_share: float
    flat: bool
    log_evidence: float = np.nan
    log_evidence_se: float = np.inf
    scores: int = 0

    @property
    def paths(self) -> int:
        """The number of paths that were followed."""
        return len(self.elbos)

    def __str__(self) -> str:
        best = f"ELBO {self.elbos[self.chosen]:.6g}"
        if self.kind != "variational":
            return f"{self.kind}: {best}"
        weights = f"weights (p/q)^{self.tempering:.2g}, effective share {self.effective_share:.2g}"
        paths = f"{self.paths} paths to {len(self.distinct)} optima, best {best}, {weights}"
        return f"variational: {paths}{'; still widening, improper?' if self.flat else ''}"


class Gaussian(eqx.Module):
    """N(location, scale scaleᵀ), where scale is lower-triangular with a positive diagonal."""

    location: Float[Array, " d"]
    scale: Float[Array, "d d"] | Semiseparable
    report: Report = eqx.field(static=True)

    @classmethod
    def of(cls, normal: Normal, report: Report) -> "Gaussian":
        """The Gaussian in JAX arrays of the session's precision."""
        return cls(jnp.asarray(normal.location), jnp.asarray(np.tril(normal.scale)), report)


class NoPathError(InputError):
    """No Gaussian with a finite ELBO was found from the starting point."""
