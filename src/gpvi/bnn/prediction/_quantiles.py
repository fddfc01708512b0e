r"""Quantiles of a distribution function that is costly to ask: the least y with F(y) ≥ p, all at once, in few calls.

Two ends with F(low) < p ≤ F(high) are looked for first: those that are proposed, moved outwards, four times as far each
time, while they do not hold the quantile. So the distribution needs neither a mean nor a variance. Then the bracket is
narrowed by the rule ITP (Oliveira and Takahashi 2020), which interpolates, here between Φ⁻¹(F), a straight line for a
normal distribution, and is never more than `AHEAD` calls behind bisection. Whole numbers are narrowed to the very one;
others until F(y) is p to `RELATIVE`, or to what the floats can tell.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int

RELATIVE = 2.0**-25
"""How well F(y) is p, as a share of the smaller of p and 1 − p."""
AHEAD = 4
"""How many calls more than bisection there may be."""
CENTRAL = 0.2
"""How far an interpolated point is moved to the middle of the first bracket, so that both ends close in."""
OUTWARDS = 4.0

Values = Float[Array, "*n"]


class _Bracket(NamedTuple):
    """Ends, and the distribution function there."""

    low: Values
    high: Values
    below: Values
    above: Values

    def moved(self, at: Values, value: Values, low: Bool[Array, "*n"], high: Bool[Array, "*n"]):
        """With one end, or both, at a new place where it is so said."""
        return _Bracket(
            jnp.where(low, at, self.low),
            jnp.where(high, at, self.high),
            jnp.where(low, value, self.below),
            jnp.where(high, value, self.above),
        )


def inverted(
    cdf: Callable[[Values], Values], p: Values, low: Values, high: Values, *, whole: bool
) -> Values:
    """The least y with F(y) ≥ p, between `low` and `high` or beyond; NaN where F is.

    Where nothing is known, `low` and `high` may be any two numbers, low < high.
    """
    low, high = (jnp.floor(low), jnp.ceil(high)) if whole else (low, high)
    below, above = jax.lax.map(cdf, jnp.stack([low, high]))
    first = _enclosing(cdf, p, _Bracket(low, high, below, above))
    last = _narrowed(cdf, p, first, whole=whole)
    found = last.high if whole else last.low + (last.high - last.low) / 2
    return jnp.where(jnp.isnan(last.below + last.above), jnp.nan, found)


def _enclosing(cdf: Callable[[Values], Values], p: Values, proposed: _Bracket) -> _Bracket:
    """A bracket of the quantile; it reaches to infinity where no number is far enough."""

    def outside(bracket: _Bracket) -> tuple[Bool[Array, "*n"], Bool[Array, "*n"]]:
        left = (bracket.below >= p) & jnp.isfinite(bracket.low)
        return left, (bracket.above < p) & jnp.isfinite(bracket.high)

    def further(state: tuple[_Bracket, Values]) -> tuple[_Bracket, Values]:
        bracket, step = state
        left, right = outside(bracket)
        at = jnp.where(left, bracket.low - step, bracket.high + step)
        value = cdf(at)
        passed = bracket.moved(bracket.low, bracket.below, low=jnp.zeros_like(left), high=left)
        passed = passed.moved(bracket.high, bracket.above, low=right, high=jnp.zeros_like(left))
        return passed.moved(at, value, low=left, high=right), OUTWARDS * step

    def searching(state: tuple[_Bracket, Values]) -> Bool[Array, ""]:
        left, right = outside(state[0])
        return (left | right).any()

    width = proposed.high - proposed.low
    return jax.lax.while_loop(searching, further, (proposed, width))[0]


def _narrowed(
    cdf: Callable[[Values], Values], p: Values, first: _Bracket, *, whole: bool
) -> _Bracket:
    """The bracket, so narrow that either end will do; of whole numbers the upper one."""
    unit = jnp.finfo(p.dtype).eps
    accuracy = jnp.maximum(RELATIVE * jnp.minimum(p, 1 - p), 4 * unit * p)
    width = first.high - first.low

    def wide(bracket: _Bracket) -> Bool[Array, "*n"]:
        spacing = 2 * unit * jnp.maximum(jnp.abs(bracket.low), jnp.abs(bracket.high))
        own = bracket.high - bracket.low
        return jnp.isfinite(own) & (own > (jnp.maximum(spacing, 1) if whole else spacing))

    def closer(state: tuple[_Bracket, Int[Array, ""]]) -> tuple[_Bracket, Int[Array, ""]]:
        bracket, calls = state
        own = bracket.high - bracket.low
        fraction = _fraction(bracket, p, own / width, width / own * 2.0 ** (AHEAD - calls))
        at = bracket.low + fraction * own
        if whole:
            at = jnp.clip(jnp.round(at), bracket.low + 1, bracket.high - 1)
        value = cdf(at)
        rounding = 2 * unit * jnp.abs(at) * (bracket.above - bracket.below) / own
        met = (jnp.abs(value - p) <= accuracy + rounding) & (not whole)
        open_, reached = wide(bracket), value >= p
        moved = bracket.moved(at, value, low=open_ & (~reached | met), high=open_ & (reached | met))
        return moved, calls + 1

    begin = first, jnp.zeros((), int)
    return jax.lax.while_loop(lambda state: wide(state[0]).any(), closer, begin)[0]


def _fraction(bracket: _Bracket, p: Values, share: Values, allowed: Values) -> Values:
    """Where in the bracket to ask next, between 0 and 1.

    `share` is its width, and `allowed` the width that bisection would have left it, in units of the first bracket's and
    of its own.
    """
    edge = jnp.finfo(p.dtype).eps / 2
    below, above = (
        ndtri(jnp.clip(value, jnp.finfo(p.dtype).tiny, 1 - edge)) - ndtri(p)
        for value in (bracket.below, bracket.above)
    )
    straight = jnp.where(above > below, -below / (above - below), 0.5)
    gap = 0.5 - straight
    left = jnp.maximum(jnp.abs(gap) - CENTRAL * share, 0)
    return 0.5 - jnp.sign(gap) * jnp.minimum(left, jnp.maximum((allowed - 1) / 2, 0))
