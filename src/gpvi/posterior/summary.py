"""The summary of a posterior: mean, spread and quantiles of each quantity, as a table."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from gpvi._html import table
from gpvi.diagnostics import mcmc
from gpvi.errors import InputError
from gpvi.targets.coordinate_names import entry_names

QUANTILES = {"5 %": 0.05, "median": 0.5, "95 %": 0.95}
SHOWN = 40
"""Rows of a longer table that are printed."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """What `Posterior.summary` returns: one row per number that a draw holds; printed, it is a table.

    Parameters
    ----------
    names
        The names of the rows, such as `theta[0,1]` for an entry of an array.
    columns
        Mean, sd and quantiles by name, each with one value per row; Markov chains also have R̂ and ESS.
    draws
        The number of draws.
    """

    names: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    draws: int

    def __getitem__(self, name: str) -> dict[str, float]:
        """Return the row of one quantity, by its name."""
        if name not in self.names:
            raise InputError(
                f"there is no row {name!r}; .names has the {len(self.names)} there are."
            )
        row = self.names.index(name)
        return {column: float(values[row]) for column, values in self.columns.items()}

    def __str__(self) -> str:
        shown = range(min(len(self.names), SHOWN))
        rows = [["", *self.columns], *(self._cells(row) for row in shown)]
        rest = len(self.names) - len(shown)
        more = [f"… and {rest:,} more, in .names and .columns"] if rest else []
        return "\n".join([*aligned(rows), *more])

    def __repr__(self) -> str:
        return f"<Summary of {len(self.names):,} quantities by {self.draws:,} draws>"

    def _repr_html_(self) -> str:
        shown = min(len(self.names), SHOWN)
        rows = [self._cells(row) for row in range(shown)]
        rest = len(self.names) - shown
        caption = f"{self.draws:,} draws" + (f"; {rest:,} more rows in .columns" if rest else "")
        return table(rows, ["", *self.columns], caption=caption)

    def _cells(self, row: int) -> list[str]:
        own = {"R̂": "{:.3f}", "ESS": "{:.0f}"}
        sd = float(self.columns["sd"][row])
        return [
            self.names[row],
            *(
                own.get(column, _places(sd)).format(values[row])
                for column, values in self.columns.items()
            ),
        ]


def summarise(
    named: Mapping[str, Shaped[np.ndarray, "n ..."]],
    by_chain: Callable[[np.ndarray], Any],
) -> Summary:
    """Tabulate arrays whose first axis is that of the draws.

    `by_chain` adds an axis for Markov chains, or returns None if the draws form none.
    """
    names, x = columns_of(named)
    columns = {"mean": x.mean(0), "sd": x.std(0)}
    columns |= dict(zip(QUANTILES, np.quantile(x, list(QUANTILES.values()), axis=0), strict=True))
    chains = by_chain(x)
    if chains is not None:
        mixed = mcmc.summary(chains)
        columns |= {"R̂": mixed.rhat, "ESS": np.minimum(mixed.ess_bulk, mixed.ess_tail)}
    return Summary(tuple(names), columns, len(x))


def columns_of(
    named: Mapping[str, Shaped[np.ndarray, "n ..."]],
) -> tuple[list[str], Float[np.ndarray, "n m"]]:
    """Return one name and one column for every number that a draw holds."""
    names = [name for key, values in named.items() for name in entry_names(key, values.shape[1:])]
    parts = [np.asarray(v, np.float64).reshape(len(v), -1) for v in named.values()]
    return names, np.concatenate(parts, axis=1)


def aligned(rows: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Return the lines of a table; the columns in `left` are left-aligned, all others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _places(sd: float) -> str:
    """Return a number format that shows three digits of the standard deviation."""
    if not 1e-4 <= sd < 1e5:
        return "{:.4g}"
    return f"{{:.{max(0, 2 - math.floor(math.log10(sd)))}f}}"
