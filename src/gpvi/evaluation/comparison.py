"""Several methods fitted to one posterior, in one table and one figure."""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from gpvi._html import badge, table
from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.errors import GPVIError, InputError, brief, quietly, require_extra
from gpvi.methods import Method, as_method
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.summary import aligned
from gpvi.progress import Meter
from gpvi.specs import as_key
from gpvi.targets.target import Target
from gpvi.training.fit import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_DRAWS = 2_000
"""Draws of each method in a figure."""
SHOWN_COORDINATES = 4
"""Coordinates whose marginals a figure shows."""
HEAD = (
    "method",
    "ELBO",
    "log evidence",
    "ESS",
    "k̂",
    "Stein spread",
    "R̂",
    "seconds",
    "verdict",
)
"""The columns of a comparison."""
COLOURS = ("#3f7fe0", "#e07b39", "#12a594", "#b65fcf", "#d6455d", "#8a8f98")


@dataclasses.dataclass(frozen=True)
class Row:
    """What one method made of the target: a row of `Comparison`.

    Parameters
    ----------
    label
        The name of the method.
    seconds
        The time of the fit, with compilation.
    posterior
        The posterior; None if the fit failed.
    diagnosis
        Its diagnosis; None if the fit or the diagnosis failed.
    error
        Why the posterior or the diagnosis is missing; empty if neither is.
    """

    label: str
    seconds: float
    posterior: Posterior | None
    diagnosis: Diagnosis | None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of `gpvi.compare`. It prints as a table, and `comparison[label]` is the posterior of one method.

    Parameters
    ----------
    rows
        One row per method, in the order in which they were fitted.
    key
        The random key of the draws that the figure shows.
    """

    rows: tuple[Row, ...]
    key: PRNGKeyArray

    def __str__(self) -> str:
        lines = aligned([HEAD, *(self._cells(row) for row in self.rows)], left=(0, len(HEAD) - 1))
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{row.label} {self._cells(row)[-1]}" for row in self.rows)
        return f"<Comparison of {len(self.rows)} methods: {verdicts}>"

    def _repr_html_(self) -> str:
        rows = []
        for row in self.rows:
            *numbers, verdict = self._cells(row)
            rows.append([*numbers, verdict if row.diagnosis is None else badge(verdict)])
        return table(rows, HEAD, left=(0, len(HEAD) - 1))

    def __getitem__(self, label: str) -> Posterior:
        """Return the posterior of the method with this label."""
        posteriors = {row.label: row.posterior for row in self.rows if row.posterior is not None}
        if label not in posteriors:
            failed = " Its fit failed." if label in [row.label for row in self.rows] else ""
            valid = ", ".join(posteriors) or "none"
            raise InputError(f"there is no posterior of {label!r}.{failed} There are: {valid}.")
        return posteriors[label]

    def figure(self) -> "Figure":
        """Draw the marginals of the first coordinates, and the draws in the first two coordinates.

        Returns
        -------
        matplotlib.figure.Figure
            One panel per coordinate, four at most, and one for the first two together. A method whose fit failed is
            left out.

        Raises
        ------
        gpvi.errors.InputError
            If no method has a posterior.
        gpvi.errors.NotAvailableError
            If Matplotlib is not installed.
        """
        require_extra("plots", "matplotlib", "a figure")
        from gpvi.evaluation._figures import NotebookFigure

        drawn = [(row, self._draws(row)) for row in self.rows if row.posterior is not None]
        if not drawn:
            raise InputError("no method has a posterior to show.")
        first = drawn[0][0].posterior
        assert first is not None
        shown = min(SHOWN_COORDINATES, first.dim)
        figure = NotebookFigure(
            figsize=(2.7 * (shown + (first.dim > 1)), 2.6), layout="constrained"
        )
        panels = figure.subplots(1, shown + (first.dim > 1), squeeze=False)[0]
        everything = np.concatenate([x for _, x in drawn])
        for i in range(shown):
            low, high = np.quantile(everything[:, i], [0.005, 0.995])
            for (row, x), colour in zip(drawn, itertools.cycle(COLOURS), strict=False):
                bins = np.linspace(low, high, 41)
                panels[i].hist(
                    x[:, i], bins, density=True, histtype="step", color=colour, label=row.label
                )
            panels[i].set(title=first.names[i], yticks=[])
        if first.dim > 1:
            for (_, x), colour in zip(drawn, itertools.cycle(COLOURS), strict=False):
                panels[-1].plot(*x[:500, :2].T, ".", ms=2, alpha=0.5, color=colour)
            panels[-1].set(xlabel=first.names[0], ylabel=first.names[1])
        for panel in panels:
            panel.spines[["top", "right"]].set_visible(False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return figure

    def _draws(self, row: Row) -> np.ndarray:
        assert row.posterior is not None
        try:
            return np.asarray(row.posterior.sample(SHOWN_DRAWS, key=self.key))
        except GPVIError:
            return np.asarray(row.posterior.particles)

    def _cells(self, row: Row) -> tuple[str, ...]:
        diagnosis = row.diagnosis
        if diagnosis is None:
            return (row.label, *[""] * 6, f"{row.seconds:.1f}", f"failed: {row.error}")
        spread = diagnosis.stein_spread
        return (
            row.label,
            _number(diagnosis.elbo, ".3f"),
            _number(diagnosis.log_evidence, ".3f"),
            _number(diagnosis.effective_share, ".3f"),
            _number(diagnosis.k_hat, ".2f"),
            "" if spread is None else f"{spread[0]:.2f}–{spread[1]:.2f}",
            _number(diagnosis.rhat, ".3f"),
            f"{row.seconds:.1f}",
            diagnosis.verdict.level,
        )


def compare(
    target: Target,
    methods: Sequence[Method | str] | Mapping[str, Method | str],
    *,
    key: PRNGKeyArray | int,
    progress: bool | Meter = True,
    **options: Any,
) -> Comparison:
    """Fit several methods to one target with the same key, and diagnose all of them alike.

    A method that fails gets a row that says why, and the others are fitted all the same. Ctrl-C ends the fit of the
    present method, whose posterior so far is kept, and the methods after it are left out.

    Parameters
    ----------
    target
        The posterior to approximate.
    methods
        The methods or their names, or a mapping from labels to them. Without labels the names of the classes are used.
    key
        A random key, or a seed.
    progress
        True for a bar, False for silence, or a `gpvi.progress.Meter`.
    **options
        Further arguments of `gpvi.fit`, the same for every method.

    Returns
    -------
    Comparison
        A row for each method: its posterior, its diagnosis and the time it took. It prints as a table.

    Raises
    ------
    gpvi.errors.InputError
        If there are no methods.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> methods = {"few": gpvi.SVGD(particles=8), "many": gpvi.SVGD(particles=32)}
    >>> comparison = gpvi.compare(target, methods, key=key, steps=20, init=None, progress=False)
    >>> [row.label for row in comparison.rows]
    ['few', 'many']
    >>> comparison["many"].particles.shape
    (32, 2)
    """
    key = as_key(key)
    if isinstance(methods, Mapping):
        labelled = {label: as_method(method) for label, method in methods.items()}
    else:
        if isinstance(methods, str) or not isinstance(methods, Iterable):
            raise InputError(f"methods is {brief(methods)}; pass a list, such as [gpvi.GPVI()].")
        labelled = _labelled([as_method(method) for method in methods])
    if not labelled:
        raise InputError("methods is empty; pass one or more, such as [gpvi.GPVI(), gpvi.SVGD()].")
    rows, (fit_key, check_key, show_key) = [], jax.random.split(key, 3)
    for label, method in labelled.items():
        began = time.perf_counter()
        try:
            with quietly():
                posterior = fit(target, method, key=fit_key, progress=progress, **options)
        except GPVIError as error:
            rows.append(Row(label, time.perf_counter() - began, None, None, str(error)))
            continue
        seconds = time.perf_counter() - began
        try:
            rows.append(Row(label, seconds, posterior, posterior.diagnose(key=check_key)))
        except GPVIError as error:
            rows.append(Row(label, seconds, posterior, None, str(error)))
        if posterior.training.interrupted:
            break
    return Comparison(tuple(rows), show_key)


def _labelled(methods: Sequence[Method]) -> dict[str, Method]:
    """Return the methods by the names of their classes, with a number from the second of a class on."""
    counts: Counter[str] = Counter()
    labelled: dict[str, Method] = {}
    for method in methods:
        name = type(method).__name__
        counts[name] += 1
        labelled[name if counts[name] == 1 else f"{name} {counts[name]}"] = method
    return labelled


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
