"""Progress of long work: training tells a `Meter` how far it is, and the meter shows it.

A bar by Rich is shown where Rich is installed (`pip install 'gpvi[cli]'`), and a line of text otherwise.
"""

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress

WIDTH = 79
"""Characters of a line of text."""


@runtime_checkable
class Meter(Protocol):
    """What is told about the progress of long work, such as training.

    Pass an object with these three methods as `progress=` to `gpvi.fit`, `gpvi.fit_seeds`, `gpvi.compare`,
    `gpvi.sbc` or `gpvi.bnn.fit`. An error that one of them raises never stops the work: the meter is then told
    nothing more.

    Examples
    --------
    >>> class Printer:
    ...     def start(self, total, label):
    ...         print(f"{label}: {total} steps")
    ...
    ...     def update(self, done, message):
    ...         self.done = done
    ...
    ...     def close(self):
    ...         print(f"{self.done} done")
    >>> isinstance(Printer(), gpvi.progress.Meter)
    True
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.SVGD(particles=8), key=key, steps=20, progress=Printer())
    SVGD: 20 steps
    20 done
    """

    def start(self, total: int, label: str) -> None:
        """Begin to show work.

        Parameters
        ----------
        total
            The number of steps of the work.
        label
            What is done, in a few words.
        """
        ...

    def update(self, done: int, message: str) -> None:
        """Show how far the work is.

        Parameters
        ----------
        done
            The number of steps finished so far.
        message
            A few words on the present state, such as the value of the objective.
        """
        ...

    def close(self) -> None:
        """End the display. It is called once, whether the work succeeded, failed or was interrupted."""
        ...


class NullMeter:
    """A meter that shows nothing."""

    def start(self, total: int, label: str) -> None:
        """Do nothing."""

    def update(self, done: int, message: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TextMeter:
    """A line of text on standard output, for use without Rich.

    In a terminal the line is rewritten at every update. Elsewhere only the last state is printed.
    """

    def start(self, total: int, label: str) -> None:
        """Write the first line."""
        self._total, self._label = total, label
        self.update(0, "compiling")

    def update(self, done: int, message: str) -> None:
        """Rewrite the line."""
        self._line = f"{self._label} {done:,}/{self._total:,} {message}"[:WIDTH]
        if sys.stdout.isatty():
            print(f"\r{self._line:<{WIDTH}}", end="", flush=True)

    def close(self) -> None:
        """Leave the last state on the screen."""
        print() if sys.stdout.isatty() else print(self._line)


class RichMeter:
    """A bar with the value of the objective, the time since the start and the time left."""

    def start(self, total: int, label: str) -> None:
        """Open the bar."""
        self._progress = self._new_bar()
        self._progress.start()
        self._task = self._progress.add_task(label, total=total, message="compiling")

    def update(self, done: int, message: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, message=message)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()

    def _new_bar(self) -> "Progress":
        from rich import progress

        return progress.Progress(
            progress.TextColumn("[bold]{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[message]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
        )


class SafeMeter:
    """Passes everything on to another meter until that raises an error, and nothing from then on."""

    def __init__(self, meter: Meter):
        self._meter: Meter = meter

    def start(self, total: int, label: str) -> None:
        """Pass it on."""
        self._try(lambda: self._meter.start(total, label))

    def update(self, done: int, message: str) -> None:
        """Pass it on."""
        self._try(lambda: self._meter.update(done, message))

    def close(self) -> None:
        """Pass it on."""
        self._try(self._meter.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._meter = NullMeter()


def as_meter(progress: bool | Meter) -> Meter:
    """Return the meter for a `progress=` argument: a bar for True, silence for False, or the meter passed."""
    if progress is False:
        return NullMeter()
    if progress is True:
        progress = RichMeter() if importlib.util.find_spec("rich") else TextMeter()
    return SafeMeter(progress)
