"""The functions that find a Gaussian: they check their arguments, and prepare the log-density and the host."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray
from numpy.random import Generator
from threadpoolctl import threadpool_limits

from gpvi._inputs import format_point
from gpvi.errors import InputError
from gpvi.initialization._evaluation import HostDensity, LogDensity
from gpvi.initialization._gaussians import Vector
from gpvi.initialization._laplace import ascend
from gpvi.initialization._low_rank import climb_low_rank
from gpvi.initialization._multistart import follow_paths
from gpvi.initialization.result import Gaussian, NoPathError

DENSE_DIMENSIONS = 3_000
"""The largest dimension in which `automatic` finds a dense covariance, of d² numbers."""


def automatic(log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray) -> Gaussian:
    """The Gaussian of `variational`, or that of `laplace` if no Gaussian with a finite ELBO is found.

    In more than 3,000 dimensions it is that of `low_rank`.
    """
    if np.size(start) > DENSE_DIMENSIONS:
        return low_rank(log_density, start, key=key)
    try:
        return variational(log_density, start, key=key)
    except NoPathError:
        return laplace(log_density, start, key=key)


def variational(
    log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray, paths: int | None = None
) -> Gaussian:
    """Estimate the mean and covariance of the posterior from Gaussians that climb the ELBO, and importance sampling.

    The first of at most `paths` paths starts at `start`. The others start, in turn, where the paths so far miss most,
    far from them, and near the start. A path that runs into the end of another is dropped, so that each optimum counts
    once. No path starts after some 30,000 scores: in hundreds of dimensions there are only a few paths.

    By default there are eight paths, and up to four times as many paths and scores while more than a quarter of the
    paths ended where no other did. That share is the chance that the next path finds a new optimum (Good and Turing).
    """
    if paths is not None and paths < 1:
        raise InputError(f"paths is {paths}; at least one is needed.")
    density, point, rng = _prepare(log_density, start, key)
    with _quiet_single_thread():
        return follow_paths(density, point, paths, rng)


def laplace(log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray) -> Gaussian:
    """The Gaussian N(x, |H|⁻¹), H = −∇²log p(x), with the best ELBO along a Newton ascent of log p from `start`.

    That x is the mode if p is log-concave. |H| has the absolute eigenvalues of H, after scaling to unit diagonal. The
    Gaussian can be far too narrow for a density that is unbounded or has its mass far from the mode.
    """
    density, point, rng = _prepare(log_density, start, key)
    with _quiet_single_thread():
        return ascend(density, point, rng)


def low_rank(log_density: LogDensity, start: ArrayLike, *, key: PRNGKeyArray) -> Gaussian:
    """A Gaussian with a covariance that is diagonal plus low rank, by Newton steps up the ELBO from `start`.

    Its scale is a `gpvi.targets.Semiseparable` of `RANK` columns, so that time and memory are linear in d. There is
    one path: other modes are not looked for.
    """
    density, point, rng = _prepare(log_density, start, key)
    with _quiet_single_thread():
        return climb_low_rank(density, point, rng)


def _prepare(
    log_density: LogDensity, start: ArrayLike, key: PRNGKeyArray
) -> tuple[HostDensity, Vector, Generator]:
    """The log-density, the start and a random generator on the host, after checking the start."""
    point = np.asarray(start, np.float64)
    if point.ndim != 1 or not len(point):
        raise InputError(f"start has shape {point.shape}; it must be one point, of shape (d,).")
    density = HostDensity(log_density, len(point))
    if not np.isfinite(density.scores(point[None])[0][0]):
        raise InputError(
            f"the log-density or its gradient is not finite at the start {format_point(point)}. "
            "Pass a start where both are."
        )
    return density, point, np.random.default_rng(np.asarray(jax.random.key_data(key)))


@contextmanager
def _quiet_single_thread() -> Iterator[None]:
    """Limit BLAS to one thread, and silence NumPy's warnings about infinities, which the search expects.

    On matrices of this size several threads gain little, and on busy cores they can take a hundred times as long.
    """
    with (
        threadpool_limits(1, user_api="blas"),
        np.errstate(over="ignore", divide="ignore", invalid="ignore"),
    ):
        yield
