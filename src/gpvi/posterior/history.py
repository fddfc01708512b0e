"""How a training run went, as a posterior and its file keep it."""

import dataclasses
from typing import Any

import numpy as np

from gpvi._html import paragraph, table
from gpvi.errors import InputError, UnknownOptionError
from gpvi.posterior import plots


@dataclasses.dataclass(frozen=True)
class Training:
    """How a training run went.

    Parameters
    ----------
    steps, planned
        Steps taken, and steps planned. They differ after Ctrl-C, a failure, or a callback that stopped the run.
    seconds
        Wall-clock time of the steps.
    history
        Every reported term, such as "elbo" or "gradient_norm", with one value per step.
    notes
        What the user should know of the run; troubles are also given as warnings.
    chosen
        What the library chose by itself, and why training stopped.
    gradients
        The evaluations of log p and its gradient that the steps took; None if the method does not count them. With
        mini-batches, each is of a batch. All attempts are counted, and looks at chains that training went on after; the
        search for a start and exploration are not.
    interrupted
        Whether Ctrl-C ended it. Files do not keep this.
    unfinished
        Whether a run with a checkpoint would take further steps, as after Ctrl-C. Files do not keep this.
    """

    steps: int
    planned: int
    seconds: float
    history: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    chosen: str = ""
    gradients: int | None = None
    interrupted: bool = False
    unfinished: bool = False

    def plot(self, term: str | None = None, *, ax: Any = None) -> Any:
        """Draw a value that every step reported, and its running mean.

        Parameters
        ----------
        term
            Its name in `history`; "elbo" by default if there is one, else the first.
        ax
            Matplotlib axes to draw on; new ones by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        gpvi.errors.InputError
            If there is no such term, or nothing was reported.
        gpvi.errors.NotAvailableError
            If Matplotlib is not installed.
        """
        known = {name: values for name, values in self.history.items() if values.size}
        if not known:
            raise InputError("no step has reported anything, so there is no curve to draw.")
        name = next(iter({"elbo": 0} if "elbo" in known else known)) if term is None else term
        if name not in known:
            raise UnknownOptionError("term", name, known)
        return plots.plot_curve(known[name], name, ax)

    def __repr__(self) -> str:
        chosen = f"; {self.chosen}" if self.chosen else ""
        return (
            f"<Training: {self.steps:,} of {self.planned:,} steps in {self.seconds:.1f} s{chosen}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("steps", f"{self.steps:,} of {self.planned:,}"),
            ("time", f"{self.seconds:.1f} s"),
            *([("chosen", self.chosen)] if self.chosen else []),
            *([] if self.gradients is None else [("gradients", f"{self.gradients:,}")]),
            *(
                (name, f"{values[-1]:.4g} at the end")
                for name, values in self.history.items()
                if values.size
            ),
        ]
        return table(rows, left=(0, 1), caption="Training") + "".join(map(paragraph, self.notes))
