r"""The posterior in the noise of a generator: what is left for Markov chains once a generator has been trained.

With x = f(z) the density of z is p(f(z)) |det J(z)|. Were q equal to p, it would be N(0, I), whatever the shape of p;
the better q is, the less a chain in z has to turn. A map that is poorly trained is still exact: only f injective is
used, never that q is near p. Parno & Marzouk, Transport map accelerated MCMC (2018); Hoffman et al., NeuTra-lizing bad
geometry in Hamiltonian Monte Carlo (2019).
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi.errors import NotAvailableError
from gpvi.generators import AbstractGenerator
from gpvi.targets.coordinates import Whitened
from gpvi.targets.density import gradient_operations
from gpvi.targets.stream import Stream


class NoiseSpace(eqx.Module):
    """A posterior in the coordinates z of a generator: log p(z) = log p(f(z)) + log|det J(z)|.

    Parameters
    ----------
    density
        The posterior in the coordinates of training.
    generator
        f, an injective map from noise to these coordinates.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * ((x - 5.0) ** 2 / 4.0).sum(), dim=1)
    >>> affine = gpvi.targets.Affine(jnp.array([5.0]), jnp.array([2.0]))
    >>> whitened = gpvi.targets.Whitened(target, affine)
    >>> generator = gpvi.generators.FullRank().build(1, key=key, dtype="float32")
    >>> density = NoiseSpace(whitened, generator)
    >>> print(jax.grad(density.log_density)(jnp.array([1.0])))
    [-1.]
    """

    density: Whitened
    generator: AbstractGenerator

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.density.dim

    @property
    def dtype(self) -> np.dtype:
        """The float type of the target."""
        return self.density.dtype

    @property
    def size(self) -> int | None:
        """N, the number of data; None for a target made of a log-density."""
        return self.density.size

    @property
    def stream(self) -> Stream | None:
        """The data if they are streamed, else None."""
        return self.density.stream

    @property
    def draws_its_start(self) -> bool:
        """False: chains start at draws of the generator."""
        return False

    def batch(self, indices: Int[Array, " b"]) -> PyTree:
        """The data with these indices."""
        return self.density.batch(indices)

    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """Noise of the generator."""
        return jax.random.normal(key, (n, self.dim), self.dtype)

    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar:
        """log p(z), where `x` is the point z."""
        u, _, log_det = self.generator.transform_and_log_det(x)
        return self.density.log_density(u, batch) + log_det

    def log_densities(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p of all data at many points z."""
        u, _, log_det = jax.vmap(self.generator.transform_and_log_det)(x)
        return self.density.log_densities(u) + log_det

    def local_log_density(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> Scalar:
        """Not available: independent noise in each z is not independent in each x."""
        raise NotAvailableError(
            "a density in the noise of a generator has no separate noise for each datum: use the target itself."
        )

    def operations(self) -> float:
        """The operations of one evaluation of log p and its gradient."""
        return gradient_operations(self)
