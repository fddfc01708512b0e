r"""Quantiles of a distribution function F that is costly to evaluate: the least y with F(y) ≥ p, in few evaluations.

First a bracket with F(low) < p ≤ F(high) is searched: ends that do not enclose the quantile move outwards, four times
as far each time. So the distribution needs neither a mean nor a variance. Then the bracket is narrowed by the ITP rule
(Oliveira and Takahashi 2020), which interpolates, here in Φ⁻¹(F), a straight line for a normal distribution, and never
takes more than `EXTRA_EVALUATIONS` evaluations more than bisection. Integers are narrowed to the exact one; real
numbers until F(y) is p up to `RELATIVE_ERROR`, or to the resolution of floats.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int

RELATIVE_ERROR = 2.0**-25
"""The error of F(y), relative to the smaller of p and 1 − p."""
EXTRA_EVALUATIONS = 4
"""How many evaluations more than bisection there may be."""
TRUNCATION = 0.2
"""How far an interpolated point is moved to the middle of the first bracket, so that both ends close in."""
EXPANSION = 4.0
"""The factor by which the step outwards grows."""

Values = Float[Array, "*n"]


class _Bracket(NamedTuple):
    """The ends of a bracket, and the distribution function there."""

    low: Values
    high: Values
    below: Values
    above: Values

    def moved(self, at: Values, value: Values, low: Bool[Array, "*n"], high: Bool[Array, "*n"]):
        """Return the bracket with its lower end, its upper end, or both moved, where `low` and `high` are true."""
        return _Bracket(
            jnp.where(low, at, self.low),
            jnp.where(high, at, self.high),
            jnp.where(low, value, self.below),
            jnp.where(high, value, self.above),
        )


def invert_cdf(
    cdf: Callable[[Values], Values], p: Values, low: Values, high: Values, *, integers: bool
) -> Values:
    """Return the least y with F(y) ≥ p, between `low` and `high` or beyond; NaN where F is NaN.

    If nothing is known, `low` and `high` may be any two numbers, low < high. `integers`: y takes integer values only.
    """
    low, high = (jnp.floor(low), jnp.ceil(high)) if integers else (low, high)
    below, above = jax.lax.map(cdf, jnp.stack([low, high]))
    first = _enclosing(cdf, p, _Bracket(low, high, below, above))
    last = _narrowed(cdf, p, first, integers=integers)
    found = last.high if integers else last.low + (last.high - last.low) / 2
    return jnp.where(jnp.isnan(last.below + last.above), jnp.nan, found)


def _enclosing(cdf: Callable[[Values], Values], p: Values, proposed: _Bracket) -> _Bracket:
    """Return a bracket of the quantile; its end is infinite if no float is far enough."""

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
        return passed.moved(at, value, low=left, high=right), EXPANSION * step

    def searching(state: tuple[_Bracket, Values]) -> Bool[Array, ""]:
        left, right = outside(state[0])
        return (left | right).any()

    width = proposed.high - proposed.low
    return jax.lax.while_loop(searching, further, (proposed, width))[0]


def _narrowed(
    cdf: Callable[[Values], Values], p: Values, first: _Bracket, *, integers: bool
) -> _Bracket:
    """Return the bracket, narrowed so far that either end is the quantile; for integers the upper end."""
    unit = jnp.finfo(p.dtype).eps
    accuracy = jnp.maximum(RELATIVE_ERROR * jnp.minimum(p, 1 - p), 4 * unit * p)
    width = first.high - first.low

    def wide(bracket: _Bracket) -> Bool[Array, "*n"]:
        spacing = 2 * unit * jnp.maximum(jnp.abs(bracket.low), jnp.abs(bracket.high))
        gap = bracket.high - bracket.low
        return jnp.isfinite(gap) & (gap > (jnp.maximum(spacing, 1) if integers else spacing))

    def closer(state: tuple[_Bracket, Int[Array, ""]]) -> tuple[_Bracket, Int[Array, ""]]:
        bracket, evaluations = state
        gap = bracket.high - bracket.low
        fraction = _fraction(
            bracket, p, gap / width, width / gap * 2.0 ** (EXTRA_EVALUATIONS - evaluations)
        )
        at = bracket.low + fraction * gap
        if integers:
            at = jnp.clip(jnp.round(at), bracket.low + 1, bracket.high - 1)
        value = cdf(at)
        rounding = 2 * unit * jnp.abs(at) * (bracket.above - bracket.below) / gap
        met = (jnp.abs(value - p) <= accuracy + rounding) & (not integers)
        open_, reached = wide(bracket), value >= p
        moved = bracket.moved(at, value, low=open_ & (~reached | met), high=open_ & (reached | met))
        return moved, evaluations + 1

    begin = first, jnp.zeros((), int)
    return jax.lax.while_loop(lambda state: wide(state[0]).any(), closer, begin)[0]


def _fraction(bracket: _Bracket, p: Values, share: Values, allowed: Values) -> Values:
    """Return where in the bracket to evaluate next, between 0 and 1.

    `share` is the width of the bracket, in units of the first one; `allowed` is the width that bisection would have
    left, in units of this bracket.
    """
    edge = jnp.finfo(p.dtype).eps / 2
    below, above = (
        ndtri(jnp.clip(value, jnp.finfo(p.dtype).tiny, 1 - edge)) - ndtri(p)
        for value in (bracket.below, bracket.above)
    )
    straight = jnp.where(above > below, -below / (above - below), 0.5)
    offset = 0.5 - straight
    left = jnp.maximum(jnp.abs(offset) - TRUNCATION * share, 0)
    return 0.5 - jnp.sign(offset) * jnp.minimum(left, jnp.maximum((allowed - 1) / 2, 0))
