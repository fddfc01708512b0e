"""Progress is an object: `start`, `update`, `close`. It shows, and never raises."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Meter(Protocol):
    """What a training loop tells whoever watches."""

    def start(self, total: int, label: str) -> None:
        """Work of `total` steps begins."""
        ...

    def update(self, done: int, message: str) -> None:
        """`done` steps are finished."""
        ...

    def close(self) -> None:
        """The work ended, in whatever way."""
        ...


class NullMeter:
    """Shows nothing."""

    def start(self, total: int, label: str) -> None:
        """Nothing."""

    def update(self, done: int, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RichMeter:
    """A bar with the running objective and the time left."""

    def start(self, total: int, label: str) -> None:
        """Open the bar."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[message]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total, message="compiling")

    def update(self, done: int, message: str) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, message=message)

    def close(self) -> None:
        """Leave the last line on the screen."""
        self._bar.stop()


class SafeMeter:
    """Wraps a meter so that a broken screen never stops a run."""

    def __init__(self, meter: Meter):
        self._meter: Meter = meter

    def start(self, total: int, label: str) -> None:
        """Fall back to silence if the screen fails."""
        self._quietly(lambda: self._meter.start(total, label))

    def update(self, done: int, message: str) -> None:
        """Fall back to silence if the screen fails."""
        self._quietly(lambda: self._meter.update(done, message))

    def close(self) -> None:
        """Fall back to silence if the screen fails."""
        self._quietly(self._meter.close)

    def _quietly(self, action) -> None:
        try:
            action()
        except Exception:
            self._meter = NullMeter()


def as_meter(progress: bool | Meter) -> Meter:
    """`True` is a bar, `False` silence, and a meter itself."""
    if isinstance(progress, bool):
        return SafeMeter(RichMeter()) if progress else NullMeter()
    return SafeMeter(progress)
