"""Progress of long work: training tells a `Meter` how far it is, and the meter shows it.

By default this is one line on standard error, in terminals and notebooks alike.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from gpvi.errors import InputError, brief

WIDTH = 79
"""Characters of a line."""
BAR, LABEL = 16, 32
"""Characters of the bar, and at most of the label before it."""
SHORTEST = 6
"""Characters below which a message is left out."""


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
        """Begin to show work. It is called before `update`, and again if the search for a start changes the plan.

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
            The number of steps finished so far. It goes back if training begins anew.
        message
            A few words: what is being done, the value of the objective, or at last how the work ended.
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


class LineMeter:
    """A line on standard error: a bar, a count, what is being done, and the time left.

    A terminal and a notebook rewrite the line; at the end it says how the work ended and how long it took. Where
    output goes to a file, only this end is written. Work that fails before its first step leaves nothing.

    Parameters
    ----------
    prefix
        Text before the label, such as the number of a job.
    keep
        Whether the end stays on the screen.
    clock
        Returns the time in seconds.
    """

    def __init__(
        self, prefix: str = "", *, keep: bool = True, clock: Callable[[], float] = time.monotonic
    ):
        self._prefix, self._keep, self._clock = prefix, keep, clock
        self._open = False

    def start(self, total: int, label: str) -> None:
        """Write the first line."""
        self._total = total
        full = f"{self._prefix} {label}".strip()
        self._label = full if len(full) <= LABEL else _clipped(full.partition(" (")[0], LABEL)
        if not self._open:
            self._begun, self._open = self._clock(), True
        self._pace = Pace()
        self._done, self._message = 0, ""
        self._live = sys.stderr.isatty() or _in_notebook()
        self.update(0, "")

    def update(self, done: int, message: str) -> None:
        """Rewrite the line."""
        self._done, self._message = done, message
        self._pace.note(done, self._clock())
        if self._live:
            self._write(f"\r{self._line():<{WIDTH}}\r")

    def close(self) -> None:
        """Say how the work ended, or clear the line."""
        if self._live:
            self._write(f"\r{'':<{WIDTH}}\r")
        if self._keep and self._done:
            self._write(f"{self._ending()}\n")
        self._open = False

    def _line(self) -> str:
        share = min(1.0, self._done / self._total) if self._total else 0.0
        filled = int(share * BAR)
        count = f"{self._done:,}/{self._total:,}"
        left = self._pace.left(self._total)
        known = "" if left is None else f"{duration(left)} left"
        fixed = f"{self._label}  {'━' * filled}{'─' * (BAR - filled)}  {count}"
        room = WIDTH - len(fixed) - (len(known) + 2 if known else 0) - 2
        message = _clipped(self._message, room) if room > SHORTEST else ""
        return "  ".join(filter(None, (fixed, message, known)))[:WIDTH]

    def _ending(self) -> str:
        took = f" ({duration(self._clock() - self._begun)})"
        what = self._message or f"{self._done:,}/{self._total:,}"
        return _clipped(f"{self._label}: {what}", WIDTH - len(took)) + took

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class Pace:
    """How fast work has gone, since its first unit was done: what comes before, such as compiling, is not counted."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] = 0, 0.0

    def note(self, done: int, now: float) -> None:
        """Note how far the work is; work that begins again has a pace of its own."""
        if done < self._last[0]:
            self._first = None
        if self._first is None and done > 0:
            self._first = done, now
        if done != self._last[0]:
            self._last = done, now

    def left(self, total: int) -> float | None:
        """Return the seconds that the rest will take at this pace; None as long as there is none."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        (first, began), (done, now) = self._first, self._last
        return (total - done) * (now - began) / (done - first)


def duration(seconds: float) -> str:
    """Return a time in words, such as "12 s", "3 min" or "1.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)].rstrip()}…"


def _in_notebook() -> bool:
    """Return whether output goes to a notebook, which rewrites a line as a terminal does."""
    shell = sys.modules.get("IPython")
    get = getattr(shell, "get_ipython", None)
    return get is not None and type(get()).__name__ == "ZMQInteractiveShell"


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
        progress = LineMeter()
    if not isinstance(progress, Meter):
        raise InputError(
            f"progress is {brief(progress)}; pass True, False, or an object with start, update and close."
        )
    return SafeMeter(progress)


@contextmanager
def shown(meter: Meter, total: int, label: str) -> Iterator[Meter]:
    """A context in which a meter shows work; it is closed however the work ends.

    Parameters
    ----------
    meter
        The meter.
    total, label
        Those of `Meter.start`.

    Yields
    ------
    Meter
        The same meter, to be told of the progress.
    """
    meter.start(total, label)
    try:
        yield meter
    finally:
        meter.close()
