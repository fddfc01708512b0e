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

from gpvi.errors import InputError, brief, require_extra
from gpvi.methods import GPVI, Method, as_method
from gpvi.progress import Meter, as_meter
from gpvi.specs import as_key, require_count
from gpvi.targets.target import Target
from gpvi.training.arguments import served_together
from gpvi.training.fit import fit_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 1_000
"""Training steps of each fit by default."""
AT_ONCE = 20
"""Simulations that are fitted side by side in one program."""
BINS = 20
"""Bins of a histogram of ranks, at most."""
LEVEL = 0.99
"""Confidence level of the test and of the band in the figure."""

Simulate = Callable[[PRNGKeyArray], tuple[Float[Array, " d"], PyTree]]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The result of `gpvi.sbc`: the rank of the true value among the posterior draws. It prints as a table.

    Parameters
    ----------
    ranks
        One row per simulation and one column per coordinate: how many of the draws are below the true value.
    draws
        The number of draws of each posterior; ranks go from 0 to this number.
    names
        The names of the coordinates.
    """

    ranks: Int[np.ndarray, "n d"]
    draws: int
    names: tuple[str, ...]

    @property
    def p_values(self) -> Float[np.ndarray, " d"]:
        """The p-value of each coordinate, by Pearson's χ² test that its ranks are uniform."""
        from scipy.stats import chi2

        counts, expected = self._counts(), self._expected()
        statistic = ((counts - expected) ** 2 / expected).sum(1)
        return np.asarray(chi2.sf(statistic, counts.shape[1] - 1))

    @property
    def calibrated(self) -> bool:
        """Whether uniform ranks are not rejected in any coordinate, at the 1 % level with Bonferroni's correction."""
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

    def __repr__(self) -> str:
        word = "calibrated" if self.calibrated else "not calibrated"
        return (
            f"<Calibration: {word}; {len(self.ranks)} simulations of {len(self.names)} coordinates>"
        )

    def figure(self) -> "Figure":
        """Draw a histogram of the ranks of each coordinate.

        Returns
        -------
        matplotlib.figure.Figure
            One panel per coordinate. If the method is calibrated, 99 % of the bars end in the grey band.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If Matplotlib is not installed.
        """
        require_extra("plots", "matplotlib", "a figure")
        from scipy.stats import binom

        from gpvi.evaluation._figures import NotebookFigure

        counts, expected = self._counts(), self._expected()
        d, columns = len(self.names), min(4, len(self.names))
        figure = NotebookFigure(
            figsize=(2.6 * columns, 1.9 * -(-d // columns)), layout="constrained"
        )
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
        """Return the edges of the bins: whole ranks, with five or more simulations expected in each bin."""
        bins = max(2, min(BINS, len(self.ranks) // 5, self.draws + 1))
        return np.round(np.linspace(0, self.draws + 1, bins + 1))

    def _counts(self) -> np.ndarray:
        return np.stack([np.histogram(column, self._edges())[0] for column in self.ranks.T])

    def _expected(self) -> np.ndarray:
        return np.diff(self._edges()) / (self.draws + 1) * len(self.ranks)


def sbc(
    simulate: Simulate,
    target: Callable[[PyTree], Target],
    method: Method | str | None = None,
    *,
    key: PRNGKeyArray | int,
    simulations: int = 200,
    draws: int = 99,
    steps: int | None = None,
    progress: bool | Meter = True,
    **options: Any,
) -> Calibration:
    """Check by simulation whether a method is calibrated over a model (simulation-based calibration).

    For each simulation, true parameters are drawn from the prior and data given them; `method` is fitted to the
    posterior given these data, and the true parameters are ranked among its draws. If the method is right, the ranks
    are uniform.

    Parameters
    ----------
    simulate
        A function of a random key that returns the true parameters, drawn from the prior, and data given them.
    target
        A function of the data that returns the posterior, a `gpvi.Target`. Targets may differ in their data alone:
        define the functions once, and pass `Target(log_likelihood=…, log_prior=…, data=data)`. The functions are
        traced once for all simulations.
    method
        The method to check, or its name; `gpvi.GPVI()` by default.
    key
        A random key, or a seed.
    simulations
        The number of fits, 10 or more. More simulations detect smaller faults.
    draws
        The number of draws from each posterior.
    steps
        Training steps of each fit: 1,000 by default. Markov chains and Pathfinder have their own default.
    progress
        True for a bar, False for silence, or a `gpvi.progress.Meter`.
    **options
        Further arguments of `gpvi.fit`, the same for every fit.

    Returns
    -------
    Calibration
        The ranks, and a test of whether they are uniform. It prints as a table.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used, or if the method ends with fewer draws than requested.

    Examples
    --------
    The mean of a normal distribution, with a normal prior, from three observations:

    >>> def log_likelihood(x, y):
    ...     return -0.5 * ((y - x) ** 2).sum()
    >>> def log_prior(x):
    ...     return -0.5 * (x**2).sum()
    >>> def simulate(key):
    ...     prior_key, data_key = jax.random.split(key)
    ...     x = jax.random.normal(prior_key, (1,))
    ...     return x, x + jax.random.normal(data_key, (3, 1))
    >>> def target(data):
    ...     return gpvi.Target(log_likelihood=log_likelihood, log_prior=log_prior, data=data, dim=1)
    >>> method = gpvi.SVGD(particles=9)
    >>> calibration = gpvi.sbc(
    ...     simulate, target, method, key=key, simulations=10, draws=9, steps=20, progress=False
    ... )
    >>> calibration.ranks.shape
    (10, 1)
    """
    key = as_key(key)
    for name, function in (("simulate", simulate), ("target", target)):
        if not callable(function):
            raise InputError(f"{name} is {brief(function)}; pass a function.")
    require_count("simulations", simulations, "200 detect most faults.")
    if simulations < 10:
        raise InputError(f"simulations is {simulations}; ranks of fewer than 10 say nothing.")
    require_count("draws", draws, "99 is usual.")
    method = GPVI() if method is None else as_method(method)
    fixed = method.fixed_draws
    if fixed is not None and fixed < draws:
        raise InputError(
            f"draws is {draws}, and {type(method).__name__} ends with {fixed}: use draws={fixed}, or a method "
            "with more."
        )
    if steps is None and not method.full_data:
        steps = STEPS
    meter, ranks, names = as_meter(progress), [], ()
    first_target: Target | None = None
    meter.start(simulations, f"calibration of {type(method).__name__}")
    try:
        for first in range(0, simulations, AT_ONCE):
            count = min(AT_ONCE, simulations - first)
            data_key, fit_key, draw_key = jax.random.split(jax.random.fold_in(key, first), 3)
            truths, data = zip(*map(simulate, jax.random.split(data_key, count)), strict=True)
            targets = [target(each) for each in data]
            first_target = first_target or targets[0]
            posteriors = fit_seeds(
                served_together([first_target, *targets])[1:],
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
