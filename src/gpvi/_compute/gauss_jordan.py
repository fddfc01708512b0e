r"""Linear systems with small matrices on an NVIDIA GPU, by Gauss–Jordan exchanges in kernels of our own.

The table of A expresses y = A x in terms of x. An exchange takes the row with the largest coefficient of x_p among the
rows not yet taken, solves it for x_p, and substitutes x_p in all other rows. After k exchanges the table expresses x in
terms of y: it is A⁻¹.

A library factorises a batch of matrices in several kernels with k pivots each, which mostly wait. Here one kernel makes
many exchanges on columns that stay in registers. It takes a table of up to 64 columns at once. A wider table is taken
in panels of 32 columns, and after each panel a matrix product updates the other columns. Figures are in docs/speed.md.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

LEAST = 16
"""Tables are padded to a power of two, which is at least this."""
SINGLE, PANEL = 64, 32
"""The most columns of a table that is exchanged at once, and the columns in a panel of a wider one."""
WARPS = 4
FREE = -1
"""Marks a row that has not been taken."""


def solve_transposed(
    a: Float[Array, "k k"], v: Float[Array, "m k"], *, interpret: bool = False
) -> Float[Array, "m k"]:
    """The rows y = vA⁻¹. `interpret` runs the kernels as plain JAX.

    Rows and columns of the table are never moved. Row i was taken for x_{taken_for[i]}, and column taken_for[j] stands
    for y_j. So v and y are permuted instead.
    """
    k = len(a)
    table, taken_for = _exchanged(a, interpret)
    padded = jnp.pad(v, ((0, 0), (0, len(table) - k)))
    y = jnp.matmul(padded[:, taken_for], table, precision="highest")
    return y[:, taken_for][:, :k]


def _exchanged(
    a: Float[Array, "k k"], interpret: bool
) -> tuple[Float[Array, "n n"], Int[Array, " n"]]:
    """The table after all exchanges, and the column for which each row was taken."""
    k = len(a)
    size = max(LEAST, 1 << (k - 1).bit_length())
    width = size if size <= SINGLE else PANEL
    table = jnp.eye(size, dtype=a.dtype).at[:k, :k].set(a)
    taken_for = jnp.full(size, FREE, jnp.int32)
    for number in range(size // width):
        panel, pivots, now = _exchange_panel(table, taken_for, number, width, interpret)
        taken = now != taken_for
        table = panel if width == size else _caught_up(table, panel, pivots, taken, number)
        taken_for = now
    return table, taken_for


def _exchange_panel(
    table: Float[Array, "n n"],
    taken_for: Int[Array, " n"],
    number: int,
    width: int,
    interpret: bool,
) -> tuple[Float[Array, "n w"], Int[Array, " w"], Int[Array, " n"]]:
    """The panel after its exchanges, the rows they took, and the column for which each row is now taken."""
    size = len(table)
    return pl.pallas_call(
        partial(_exchange_all, first=number * width),
        out_shape=(
            jax.ShapeDtypeStruct((size, width), table.dtype),
            jax.ShapeDtypeStruct((width,), jnp.int32),
            jax.ShapeDtypeStruct((size,), jnp.int32),
        ),
        in_specs=[
            pl.BlockSpec((size, width), lambda: (0, number)),
            pl.BlockSpec((size,), lambda: (0,)),
        ],
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        name="gauss_jordan",
    )(table, taken_for)


def _exchange_all(columns, taken_before, exchanged, pivots, taken_after, *, first: int) -> None:
    """Exchange every column of the panel with a row that has not been taken."""
    size, width = columns.shape
    row, column = (lax.broadcasted_iota(jnp.int32, (n,), 0) for n in (size, width))
    row_of, column_of = (lax.broadcasted_iota(jnp.int32, (size, width), axis) for axis in (0, 1))

    def exchange(p: Int[Array, ""], state: tuple[Array, Array, Array]):
        m, taken_for, taken = state
        down = jnp.where(column_of == p, m, 0.0).sum(1)
        r = _largest(down, taken_for == FREE, row)
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


def _largest(
    v: Float[Array, " n"], eligible: Bool[Array, " n"], place: Int[Array, " n"]
) -> Int[Array, ""]:
    """The index of the largest eligible |v|, compared as integers whose last bits are replaced by the index.

    The bits of non-negative floats, read as integers, are in the order of the floats.
    """
    last_bits = len(v) - 1
    bits = lax.bitcast_convert_type(jnp.abs(v), jnp.int32) & ~last_bits
    return jnp.max(jnp.where(eligible, bits | place, -1), axis=0) & last_bits


def _caught_up(
    table: Float[Array, "n n"],
    panel: Float[Array, "n w"],
    pivots: Int[Array, " w"],
    taken: Bool[Array, " n"],
    number: int,
) -> Float[Array, "n n"]:
    """The table after the exchanges of a panel: the rows that it took are substituted in the other columns, too.

    The same product gives the panel's own columns, if they are replaced by the identity before.
    """
    size, width = panel.shape
    column = lax.broadcasted_iota(jnp.int32, (1, size), 1)
    own = column // width == number
    identity = (column - number * width == jnp.arange(width)[:, None]).astype(table.dtype)
    solved_for = jnp.where(own, identity, table[pivots])
    rest = jnp.where(own | taken[:, None], 0.0, table)
    return rest + jnp.matmul(panel, solved_for, precision="highest")
