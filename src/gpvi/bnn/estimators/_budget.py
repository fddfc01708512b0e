"""What `budget=` stands for: how a network, a noise model and a method are chosen, and how much is spent on them.

On tables of some hundred rows or more, chains that start at fitted networks predict better than generators. A density
that factorises over the weights of a network takes structure for noise: on held-out parts of the airfoil data its noise
was 0.26 where that of chains was 0.14 and the errors were 0.19. On fewer rows, generators with a prior that drops units
were better.
"""

import dataclasses
from typing import NamedTuple

from gpvi.bnn.generators import LARGE
from gpvi.bnn.microcanonical import MCLMC
from gpvi.specs import require_choice

HIDDEN, ACTIVATION = (50,), "relu"
"""The network that generators are trained for."""
CHAIN_HIDDEN, CHAIN_ACTIVATION = (16, 16, 16, 16), "silu"
"""The network that chains are run for: a gradient costs as much as with one layer of 50 units and a dozen inputs, and
functions bend more sharply."""
CHAIN_ROWS = 500
"""The least number of rows for chains."""
FEWEST_STEPS, DRAWS = 200, 50
"""The fewest steps of a chain that are worth it, and the networks that are kept of each."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much may be spent.

    Parameters
    ----------
    members
        The number of generators or chains.
    steps
        The steps of the generators; None is their own number.
    fitted_steps
        The most steps in which the networks are fitted that chains start from.
    chain_steps
        The most steps of a chain.
    work
        The most products of a row and a weight that all chains take together; they are shorter on larger tables.
    """

    members: int
    steps: int | None
    fitted_steps: int
    chain_steps: int
    work: float


BUDGETS = {
    "fast": Budget(3, 1_500, 5_000, 600, 1e10),
    "default": Budget(5, None, 20_000, 2_000, 6e10),
    "thorough": Budget(10, 15_000, 30_000, 8_000, 6e11),
}
"""By name. "fast" does about a sixth of the work of "default", "thorough" about eight times as much."""


def as_budget(name: str) -> Budget:
    """Return the budget of this name."""
    require_choice(name, tuple(BUDGETS), "budget")
    return BUDGETS[name]


class Chains(NamedTuple):
    """The chains that a budget pays for."""

    members: int
    method: MCLMC


def affordable_chains(
    budget: Budget, rows: int, weights: int, members: int | None
) -> Chains | None:
    """Return the chains for a network and a table, or None if they are too small, or too large for the budget."""
    number = budget.members if members is None else members
    per_step = 2 * rows * weights * number
    steps = int(min(budget.chain_steps, budget.work / per_step))
    if rows < CHAIN_ROWS or steps < FEWEST_STEPS or weights >= LARGE:
        return None
    half = steps // 2
    thin = max(1, half // DRAWS)
    return Chains(number, MCLMC(chains=1, draws=half // thin, warmup=steps - half, thin=thin))
