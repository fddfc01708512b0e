r"""Inverses of small matrices by kernels of an NVIDIA GPU: the exchanges of Gauss and Jordan.

y = A x says what y is for each x. One exchange solves one of its rows for x_p, of those not yet taken the row with the
largest coefficient, and puts that into the others; after k of them the table says what x is for each y. A library
factors a batch of blocks in several kernels with k pivots each, mostly waiting. Here one kernel makes many exchanges
on columns that stay in registers from beginning to end: on the whole of a table of up to 64, and of a wider one on
32 columns at a time, after which a matrix product catches up on the others. Figures are in docs/speed.md.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

LEAST = 16
"""Tables are padded to a power of two, and to no less."""
WHOLE, PANEL = 64, 32
"""Columns of a table that is exchanged in one go, and that a wider one has exchanged at a time."""
FREE = -1
"""In the place of the column that a row was taken for."""


def inverse(a: Float[Array, "k k"], *, interpret: bool = False) -> Float[Array, "k k"]:
    """A⁻¹, with partial pivoting; `interpret` runs the kernels as plain JAX."""
    k = len(a)
    size = max(LEAST, 1 << (k - 1).bit_length())
    width = size if size <= WHOLE else PANEL
    table = jnp.eye(size, dtype=a.dtype).at[:k, :k].set(a)
    taken_for, rows = jnp.full(size, FREE, jnp.int32), []
    for number in range(size // width):
        panel, pivots, now = _exchange_panel(table, taken_for, number, width, interpret)
        if width < size:
            table = _caught_up(table, panel, pivots, now != taken_for)
        table = lax.dynamic_update_slice(table, panel, (0, number * width))
        taken_for = now
        rows.append(pivots)
    return table[jnp.concatenate(rows)][:, taken_for][:k, :k]


def _exchange_panel(
    table: Float[Array, "k k"],
    taken_for: Int[Array, " k"],
    number: int,
    width: int,
    interpret: bool,
) -> tuple[Float[Array, "k w"], Int[Array, " w"], Int[Array, " k"]]:
    """The columns of a panel after its exchanges, the rows they took, and what every row is now taken for."""
    k = len(table)
    return pl.pallas_call(
        partial(_exchange_all, first=number * width),
        out_shape=(
            jax.ShapeDtypeStruct((k, width), table.dtype),
            jax.ShapeDtypeStruct((width,), jnp.int32),
            jax.ShapeDtypeStruct((k,), jnp.int32),
        ),
        in_specs=[pl.BlockSpec((k, width), lambda: (0, number)), pl.BlockSpec((k,), lambda: (0,))],
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4 if k <= WHOLE else 8, num_stages=1),
        name="gauss_jordan",
    )(table, taken_for)


def _exchange_all(columns, taken_before, exchanged, pivots, taken_after, *, first: int) -> None:
    """Exchange every column of the panel with a row that is free."""
    k, width = columns.shape
    row, column = (lax.broadcasted_iota(jnp.int32, (size,), 0) for size in (k, width))
    row_of, column_of = (lax.broadcasted_iota(jnp.int32, (k, width), axis) for axis in (0, 1))

    def exchange(p: Int[Array, ""], state: tuple[Array, Array, Array]):
        m, taken_for, taken = state
        down = jnp.where(column_of == p, m, 0.0).sum(1)
        r = jnp.argmax(jnp.where(taken_for == FREE, jnp.abs(down), -1.0), axis=0).astype(jnp.int32)
        across = jnp.where(row_of == r, m, 0.0).sum(0)
        pivot = jnp.where(column == p, across, 0.0).sum()
        across = jnp.where(column == p, 1.0, across) / pivot
        others = jnp.where(column_of == p, 0.0, m) - down[:, None] * across[None, :]
        return (
            jnp.where(row_of == r, across[None, :], others),
            jnp.where(row == r, first + p, taken_for),
            jnp.where(column == p, r, taken),
        )

    nothing = jnp.full((width,), FREE, jnp.int32)
    exchanged[...], taken_after[...], pivots[...] = lax.fori_loop(
        0, width, exchange, (columns[...], taken_before[...], nothing)
    )


def _caught_up(
    table: Float[Array, "k k"],
    panel: Float[Array, "k w"],
    pivots: Int[Array, " w"],
    taken: Bool[Array, " k"],
) -> Float[Array, "k k"]:
    """The columns outside the panel after its exchanges: rows that it took were solved for, and put into the rest."""
    solved = jnp.matmul(panel, table[pivots], precision="highest")
    return jnp.where(taken[:, None], 0.0, table) + solved
