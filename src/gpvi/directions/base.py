"""The interface of a direction φ: where each particle should move, to bring all of them nearer to the posterior."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree


class Points(NamedTuple):
    """Points y at which a direction is wanted.

    Parameters
    ----------
    x
        The points, (m, d).
    score
        ∇ log p at them, (m, d).

    Examples
    --------
    >>> at = gpvi.directions.Points(jnp.zeros((4, 2)), jnp.ones((4, 2)))
    """

    x: Float[Array, "m d"]
    score: Float[Array, "m d"]


class Direction(ABC):
    """A rule for φ: subclass it and decorate the subclass with `gpvi.specs.spec`.

    A subclass must define `__call__`, and `init` if it learns something, such as a critic. Both are traced, so they
    must be pure functions of JAX arrays. A method uses a direction by its `direction()`: see
    `gpvi.methods.ParticleMethod` (a fixed set of particles) and `gpvi.methods.AmortizedMethod` (a generator).

    Examples
    --------
    >>> direction = gpvi.directions.SVGDDirection()
    >>> x = jax.random.normal(key, (10, 2))
    >>> phi, _ = direction(None, x, -x, key=key)
    >>> phi.shape
    (10, 2)
    """

    def init(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> Any:
        """Make what the direction learns; None by default.

        Parameters
        ----------
        dim
            The dimension d of the particles.
        key
            A JAX key.
        dtype
            The dtype of the particles.

        Returns
        -------
        PyTree
            The state that the first call gets.
        """
        return None

    @abstractmethod
    def __call__(
        self,
        state: Any,
        x: Float[Array, "n d"],
        score: Float[Array, "n d"],
        *,
        key: PRNGKeyArray,
        at: Points | None = None,
    ) -> tuple[Float[Array, "m d"], PyTree]:
        """Return φ.

        Parameters
        ----------
        state
            What `init` or the last call returned.
        x
            Draws of the current approximation q, (n, d), over which expectations are taken.
        score
            ∇ log p at them, (n, d).
        key
            A JAX key.
        at
            The m points where φ is wanted; None for `x` itself.

        Returns
        -------
        Array
            φ, (m, d).
        PyTree
            The state for the next call.
        """
