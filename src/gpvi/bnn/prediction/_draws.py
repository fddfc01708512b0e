"""Networks drawn from posteriors a block at a time, so that they need not all be in memory.

A block is computed from its number alone: a second pass over the blocks draws the same networks again.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import standard_normal
from gpvi.posterior.posterior import Posterior
from gpvi.specs import is_whole

DEFAULT_DRAWS = 1_000
"""The number of networks, if new ones can be drawn."""
BLOCK_WEIGHTS = 2**21
"""About how many weights the networks of one block have together."""


class NetworkDraws(eqx.Module):
    """A number of networks, drawn from a generator or taken from a table of particles, in blocks.

    Several generators are stacked into one, whose arrays have a leading axis. Each block is drawn from one of them:
    of M members, the m-th has networks m, m + M, m + 2M, …
    """

    source: AbstractGenerator | Float[Array, "n d"]
    key: PRNGKeyArray
    number: int = eqx.field(static=True)
    block: int = eqx.field(static=True)
    """The number of networks in a block."""
    members: int = eqx.field(static=True, default=1)

    @property
    def blocks(self) -> int:
        """The number of blocks; the last one of each member may be partly unused."""
        return self.members * -(-self.number // (self.members * self.block))

    def draw(self, index: Int[Array, ""]) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        """Return a block of networks, and for each of them 1 if it is used and 0 if not."""
        member, first = index % self.members, index // self.members * self.block
        numbers = (first + jnp.arange(self.block)) * self.members + member
        used = numbers < self.number
        if isinstance(self.source, AbstractGenerator):
            generator = self.source if self.members == 1 else _member(self.source, member)
            z = standard_normal(generator, self.block, key=jax.random.fold_in(self.key, index))
            flat = jax.vmap(generator)(z)
        else:
            flat = self.source[jnp.minimum(numbers, self.number - 1)]
        return flat, used.astype(flat.dtype)

    def in_order(self, blocks: Shaped[Array, "j k ..."]) -> Shaped[Array, "n ..."]:
        """Return results computed block by block in the order of the networks, without the unused ones."""
        rest = blocks.shape[2:]
        by_member = blocks.reshape(-1, self.members, self.block, *rest)
        return by_member.swapaxes(1, 2).reshape(-1, *rest)[: self.number]


def network_draws(
    posteriors: Sequence[Posterior], draws: int | None, *, key: PRNGKeyArray
) -> NetworkDraws:
    """Return networks of an even mixture of posteriors of one form.

    Of particles and chains, all are used by default, and a random subset if fewer are asked for.
    """
    first, members = posteriors[0], len(posteriors)
    block = max(1, min(256, BLOCK_WEIGHTS // first.dim))
    if available_draws(posteriors) is not None:
        table = jnp.concatenate([each.particles for each in posteriors])
        if draws is not None:
            table = _subset(table, _count(draws), key)
        return NetworkDraws(table, key, len(table), min(block, len(table)))
    number = DEFAULT_DRAWS if draws is None else _count(draws)
    block = min(block, -(-number // members))
    if members == 1:
        return NetworkDraws(first.generator, key, number, block)
    order_key, key = jax.random.split(key)
    order = np.asarray(jax.random.permutation(order_key, members))
    stacked = _stacked([posteriors[i].generator for i in order])
    return NetworkDraws(stacked, key, number, block, members)


def available_draws(posteriors: Sequence[Posterior]) -> int | None:
    """Return how many draws particles or chains hold together; None if new ones can be drawn."""
    sizes = [each.size for each in posteriors if each.size is not None]
    return sum(sizes) if sizes else None


def _subset(table: Float[Array, "n d"], number: int, key: PRNGKeyArray) -> Float[Array, "m d"]:
    """Return some rows of a table, chosen at random without replacement."""
    if number > len(table):
        raise NotAvailableError(
            f"the particles are {len(table)} networks, and {number} are asked for. Ask for at most {len(table)}, train "
            "with more particles, or use GPVI or AmortizedSVGD, which draw as many as you like."
        )
    return table[jax.random.permutation(key, len(table))[:number]]


def _stacked(generators: Sequence[AbstractGenerator]) -> AbstractGenerator:
    """Return generators of one form as one, whose arrays have a leading axis."""
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *generators
    )


def _member(stacked: AbstractGenerator, index: Int[Array, ""]) -> AbstractGenerator:
    """Return one of the generators that `_stacked` joined."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stacked)


def _count(draws: Any) -> int:
    if not is_whole(draws) or draws < 1:
        raise InputError(f"the number of networks is {draws!r}; it must be a whole number ≥ 1.")
    return int(draws)
