"""Several methods on one posterior: one table, one figure."""

import dataclasses
import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.errors import GPVIError, InputError, TrainingWarning, quietly, require_extra
from gpvi.methods import Method
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.summary import aligned
from gpvi.progress import Meter
from gpvi.specs import require_key
from gpvi.targets.target import Target
from gpvi.training.fit import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_DRAWS = 2_000
SHOWN_COORDINATES = 4
COLOURS = ("#3f7fe0", "#e07b39", "#12a594", "#b65fcf", "#d6455d", "#8a8f98")


@dataclasses.dataclass(frozen=True)
class Row:
    """One method: its posterior and diagnosis, or why one or the other is missing."""

    label: str
    seconds: float
    posterior: Posterior | None
    diagnosis: Diagnosis | None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What each method made of the target; `str` of it is a table."""

    rows: tuple[Row, ...]
    key: PRNGKeyArray

    def __str__(self) -> str:
        head = (
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
        table = [head, *(self._cells(row) for row in self.rows)]
        lines = aligned(table, left=(0, len(head) - 1))
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])

    def __getitem__(self, label: str) -> Posterior:
        """The posterior of one method."""
        found = {row.label: row.posterior for row in self.rows}
        posterior = found.get(label)
        if posterior is None:
            raise InputError(f"there is no posterior of {label!r}; there are {', '.join(found)}.")
        return posterior

    def figure(self) -> "Figure":
        """The marginals of the first coordinates, and the draws in the first two."""
        require_extra("plots", "matplotlib", "a figure")
        from matplotlib.figure import Figure

        drawn = [(row, self._draws(row)) for row in self.rows if row.posterior is not None]
        if not drawn:
            raise InputError("no method has a posterior to show.")
        first = drawn[0][0].posterior
        assert first is not None
        shown = min(SHOWN_COORDINATES, first.dim)
        figure = Figure(figsize=(2.7 * (shown + (first.dim > 1)), 2.6), layout="constrained")
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
        seen = row.diagnosis
        if seen is None:
            return (row.label, *[""] * 6, f"{row.seconds:.1f}", f"failed: {row.error}")
        spread = seen.stein_spread
        return (
            row.label,
            _number(seen.elbo, ".3f"),
            _number(seen.log_evidence, ".3f"),
            _number(seen.effective_share, ".3f"),
            _number(seen.k_hat, ".2f"),
            "" if spread is None else f"{spread[0]:.2f}–{spread[1]:.2f}",
            _number(seen.rhat, ".3f"),
            f"{row.seconds:.1f}",
            seen.verdict.level,
        )


def compare(
    target: Target,
    methods: Sequence[Method] | Mapping[str, Method],
    *,
    key: PRNGKeyArray,
    progress: bool | Meter = True,
    **options: Any,
) -> Comparison:
    """Fit each method to the target with the same key, and diagnose all alike.

    `methods` is a sequence, or a mapping from labels; `options` go to `gpvi.fit`. A method that fails gets a row that
    says why, and the others go on; Ctrl-C ends the method that is being trained, and leaves out those after it.
    """
    require_key(key)
    labelled = dict(methods) if isinstance(methods, Mapping) else _labelled(methods)
    if not labelled:
        raise InputError("methods is empty; pass one or more, such as [gpvi.GPVI(), gpvi.SVGD()].")
    rows, (fit_key, check_key, show_key) = [], jax.random.split(key, 3)
    for label, method in labelled.items():
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)
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
    """By class name, numbered where one occurs twice."""
    found: dict[str, Method] = {}
    for method in methods:
        name, number = type(method).__name__, 2
        label = name
        while label in found:
            label, number = f"{name} {number}", number + 1
        found[label] = method
    return found


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
