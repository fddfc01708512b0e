r"""Simulation-based calibration: whether a method is right on average over a model, with no reference draws.

Draw x* from the prior, data from p(data | x*), and L draws from the posterior given these data. If the posterior is
exact, x* and the draws are exchangeable, so the rank of x* among the draws is uniform on 0…L in every coordinate.
Ranks that crowd in the middle say that the posterior is too wide, at both ends too narrow, at one end biased.

Talts, Betancourt, Simpson, Vehtari, Gelman: Validating Bayesian inference algorithms with simulation-based calibration
(2018).
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from gpvi.errors import InputError
from gpvi.methods import GPVI, Method
from gpvi.progress import Meter, as_meter
from gpvi.specs import require_count, require_key
from gpvi.targets.target import Target
from gpvi.training.arguments import served_together
from gpvi.training.fit import fit_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 1_000
AT_ONCE = 20
"""Simulations that are fitted side by side in one program."""
BINS = 20
LEVEL = 0.99

Simulate = Callable[[PRNGKeyArray], tuple[Float[Array, " d"], PyTree]]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The ranks of the truth among posterior draws; prints as a table."""

    ranks: Int[np.ndarray, "n d"]
    draws: int
    names: tuple[str, ...]

    @property
    def p_values(self) -> Float[np.ndarray, " d"]:
        """Of Pearson's χ² test that the ranks of a coordinate are uniform."""
        from scipy.stats import chi2

        counts, expected = self._counts(), self._expected()
        statistic = ((counts - expected) ** 2 / expected).sum(1)
        return np.asarray(chi2.sf(statistic, counts.shape[1] - 1))

    @property
    def calibrated(self) -> bool:
        """Whether no coordinate is ruled out at the 1 % level, all of them counted."""
        return bool(self.p_values.min() * len(self.names) > 1 - LEVEL)

    def __str__(self) -> str:
        rows = [
            f"{name:<{max(map(len, self.names))}}  p = {p:.3f}  mean rank {mean:.2f}"
            for name, p, mean in zip(
                self.names, self.p_values, self.ranks.mean(0) / self.draws, strict=True
            )
        ]
        word = "calibrated" if self.calibrated else "NOT calibrated"
        return "\n".join([*rows, f"{word}: {len(self.ranks)} simulations, {self.draws} draws each"])

    def figure(self) -> "Figure":
        """A histogram of ranks for each coordinate; 99 % of bars of a calibrated method lie in the grey band."""
        from matplotlib.figure import Figure
        from scipy.stats import binom

        counts, expected = self._counts(), self._expected()
        d, columns = len(self.names), min(4, len(self.names))
        figure = Figure(figsize=(2.6 * columns, 1.9 * -(-d // columns)), layout="constrained")
        shares = expected / len(self.ranks)
        low, high = binom.interval(LEVEL, len(self.ranks), shares)
        for i, name in enumerate(self.names):
            axes = figure.add_subplot(-(-d // columns), columns, i + 1)
            centres = np.arange(len(expected)) + 0.5
            axes.fill_between(centres, low, high, step="mid", color="0.88", zorder=0)
            axes.bar(centres, counts[i], width=0.9, color="#3f7fe0")
            axes.set_title(f"{name}   p = {self.p_values[i]:.2f}", fontsize=9)
            axes.set_xticks([0, len(expected)], ["0", str(self.draws)], fontsize=8)
            axes.tick_params(axis="y", labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel("rank of the truth among the draws", fontsize=9)
        return figure

    def _edges(self) -> np.ndarray:
        """Bins of whole ranks, with five or more simulations in each."""
        bins = max(2, min(BINS, len(self.ranks) // 5, self.draws + 1))
        return np.round(np.linspace(0, self.draws + 1, bins + 1))

    def _counts(self) -> np.ndarray:
        return np.stack([np.histogram(column, self._edges())[0] for column in self.ranks.T])

    def _expected(self) -> np.ndarray:
        return np.diff(self._edges()) / (self.draws + 1) * len(self.ranks)


def sbc(
    simulate: Simulate,
    target: Callable[[PyTree], Target],
    method: Method | None = None,
    *,
    key: PRNGKeyArray,
    simulations: int = 200,
    draws: int = 99,
    steps: int | None = None,
    progress: bool | Meter = True,
    **options: Any,
) -> Calibration:
    """Fit `target(data)` to data simulated from the prior, many times, and rank the truth among the draws.

    Parameters
    ----------
    simulate: key → (x*, data): a draw from the prior, and data given it.
    target: data → the posterior. All must be of one form: define its functions once, and let them see the data
        through `Target(log_likelihood=…, data=data)`. They are traced once.
    method, options: as for `gpvi.fit`; simulations are trained side by side.
    steps: of each fit; 1,000 by default, and of Markov chains and Pathfinder their own.
    simulations, draws: how many fits, and how many draws of each. More simulations see smaller faults.
    """
    require_key(key)
    require_count("simulations", simulations, "200 see most faults.")
    if simulations < 10:
        raise InputError(f"simulations is {simulations}; ranks of fewer than 10 say nothing.")
    require_count("draws", draws, "99 is usual.")
    method = GPVI() if method is None else method
    fixed = method.fixed_draws
    if fixed is not None and fixed < draws:
        raise InputError(
            f"draws is {draws}, and {type(method).__name__} ends with {fixed}: use draws={fixed}, or let it make more."
        )
    if steps is None and not method.full_data:
        steps = STEPS
    meter, ranks, names = as_meter(progress), [], ()
    form: Target | None = None
    meter.start(simulations, f"calibration of {type(method).__name__}")
    try:
        for first in range(0, simulations, AT_ONCE):
            count = min(AT_ONCE, simulations - first)
            data_key, fit_key, draw_key = jax.random.split(jax.random.fold_in(key, first), 3)
            truths, data = zip(*map(simulate, jax.random.split(data_key, count)), strict=True)
            targets = [target(each) for each in data]
            form = form or targets[0]
            posteriors = fit_seeds(
                served_together([form, *targets])[1:],
                method,
                key=fit_key,
                steps=steps,
                progress=False,
                **options,
            )
            names = posteriors[0].names
            for i, (truth, posterior) in enumerate(zip(truths, posteriors, strict=True)):
                x = np.asarray(posterior.sample(draws, key=jax.random.fold_in(draw_key, i)))
                ranks.append((x < np.asarray(truth)).sum(0))
            meter.update(first + count, "")
    finally:
        meter.close()
    return Calibration(np.stack(ranks), draws, names)
