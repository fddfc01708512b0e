"""What carries the draws: a set of particles that are their own parameters, or a generator.

A carrier gives noise and turns it into particles; `gpvi.methods.pullback.push` differentiates that. With a direction
it makes a method: SVGD, GFSD, GFSF and KSD on `Particles`, and the same four amortised on a generator.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, PyTree

from gpvi.generators import AbstractGenerator
from gpvi.parallel.mesh import rows


class Particles(eqx.Module):
    """n particles: the "table generator" x_i = θ_i, whose pullback is φ itself (Eq. 12).

    Parameters
    ----------
    positions
        The particles, (n, d).

    Examples
    --------
    >>> particles = gpvi.methods.Particles(jnp.zeros((10, 2)))
    """

    positions: Float[Array, "n d"]
    placement: ClassVar[Literal["rows", "replicated"]] = "rows"
    """How the particles are placed on several devices: some rows on each, or all on every device."""

    def noise(self, n: int, *, key: PRNGKeyArray) -> None:
        """No noise: the particles are the parameters."""

    def particles(self, z: None) -> Float[Array, "n d"]:
        """x_i = θ_i."""
        return self.positions

    @property
    def drawn(self) -> Float[Array, "m d"]:
        """The rows that hold a draw: all of them."""
        return self.positions


class Chains(Particles):
    """The draws of Markov chains: row i·c + j is draw i of chain j of the c chains.

    The table has its full size from the start; `kept` draws of each chain have been written so far, and `divergent`
    says for each row whether a transition on the way to it diverged.
    """

    divergent: Bool[Array, " n"]
    kept: Int[Array, ""]
    chains: int = eqx.field(static=True)
    placement: ClassVar[Literal["rows", "replicated"]] = "replicated"

    @classmethod
    def empty(cls, chains: int, draws: int, dim: int, dtype: DTypeLike) -> "Chains":
        """A table without draws."""
        rows = chains * draws
        kept = jnp.zeros((), jnp.int32)
        return cls(jnp.zeros((rows, dim), dtype), jnp.zeros(rows, bool), kept, chains)

    def write(
        self,
        index: Int[Array, ""],
        positions: Float[Array, "c d"],
        divergent: Bool[Array, " c"],
        *,
        begins: Bool[Array, ""],
        ends: Bool[Array, ""],
    ) -> "Chains":
        """Return the table after one of the transitions that lead to draw `index` of every chain.

        The first transition (`begins`) clears the draw's divergence flags, each one adds its own, and the last one
        (`ends`) stores the positions. Under `jit` the table is updated in place.
        """
        first = index * self.chains

        def current(table: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(table, first, self.chains)

        def put(table: Array, rows: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(table, rows, first, 0)

        return Chains(
            put(self.positions, jnp.where(ends, positions, current(self.positions))),
            put(self.divergent, divergent | (current(self.divergent) & ~begins)),
            jnp.where(ends, index + 1, self.kept).astype(self.kept.dtype),
            self.chains,
        )

    @property
    def drawn(self) -> Float[Array, "m d"]:
        """The rows written so far."""
        return self.positions[: int(self.kept) * self.chains]

    def by_chain(
        self, rows: Float[Array | np.ndarray, "m d"]
    ) -> Float[Array | np.ndarray, "c n d"]:
        """Reshape rows in the order of `drawn`, with a first axis for the chains."""
        return rows.reshape(-1, self.chains, rows.shape[-1]).swapaxes(0, 1)

    @property
    def divergences(self) -> int:
        """The number of draws with a divergent transition on the way to them."""
        return int(self.divergent[: int(self.kept) * self.chains].sum())


class Population(Particles):
    """The particles of several islands, one island after the other, which weigh as much as their estimates of Z.

    Parameters
    ----------
    log_evidence
        log Z as each island estimates it.
    temperature
        How far each island has come: 1 at the posterior.
    """

    log_evidence: Float[Array, " k"]
    temperature: Float[Array, " k"]
    placement: ClassVar[Literal["rows", "replicated"]] = "replicated"

    @property
    def drawn(self) -> Float[Array, "m d"]:
        """As many rows as there are particles, each island's by its weight: some are repeated, others left out."""
        log_z = np.asarray(self.log_evidence, np.float64)
        weights = np.exp(log_z - log_z.max())
        rows, islands = len(self.positions), len(log_z)
        size = rows // islands
        ends = np.round(rows * np.cumsum(weights) / weights.sum()).astype(int)
        counts = np.diff(ends, prepend=0)
        chosen = [i * size + np.arange(n) % size for i, n in enumerate(counts)]
        return self.positions[np.concatenate(chosen)]

    def by_island(self) -> Float[Array, "k n d"]:
        """The particles with a first axis for the islands."""
        return self.positions.reshape(len(self.log_evidence), -1, self.positions.shape[-1])


class Sampler(eqx.Module):
    """A generator and its noise: x_i = f_θ(z_i)."""

    generator: AbstractGenerator

    def noise(self, n: int, *, key: PRNGKeyArray) -> PyTree[Array]:
        """n rows of the generator's noise."""
        return self.generator.noise(n, key=key)

    def particles(self, z: PyTree[Array]) -> Float[Array, "n d"]:
        """x_i = f(z_i)."""
        return rows(jax.vmap(self.generator)(z))
