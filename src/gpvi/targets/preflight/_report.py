"""What the checks of a log-density found, and how it is printed."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

SHOWN = 10
"""The most coordinates that are listed."""

Level = Literal["error", "warning", "note"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that a check of a log-density found.

    Parameters
    ----------
    level
        An "error" will stop or spoil training; a "warning" may; a "note" is worth knowing.
    what
        What was found.
    remedy
        What to do about it.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -(x[0] ** 2), dim=2)
    >>> [finding.level for finding in target.debug().findings]
    ['error', 'warning']
    """

    level: Level
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level.upper()}: {self.what}\n    {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The result of the checks of a log-density; `str` gives a table.

    Parameters
    ----------
    names
        The names of the coordinates.
    dtype
        The float type of the target.
    findings
        What was found.
    size
        The number of data, if any.
    initial
        The starting point.
    value, gradient
        log p and ∇ log p there.
    scale
        |∂²log p/∂x_i²|^{-1/2} there; infinite without curvature.

    Examples
    --------
    >>> gpvi.Target(lambda x: -0.5 * x @ x, initial=[1.0, 2.0]).debug()
    log-density on R^2 in float32
    log p at the start: -2.5
    coordinate  start  gradient  scale
    x[0]            1        -1      1
    x[1]            2        -2      1
    no problems found
    """

    names: tuple[str, ...]
    dtype: np.dtype
    findings: tuple[Finding, ...]
    size: int | None = None
    initial: np.ndarray | None = None
    value: float | None = None
    gradient: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    def __str__(self) -> str:
        data = "" if self.size is None else f", {self.size} data"
        lines = [f"log-density on R^{len(self.names)} in {self.dtype}{data}"]
        if self.value is not None:
            lines.append(f"log p at the start: {self.value:.6g}")
        lines += self._coordinates()
        lines += [str(finding) for finding in self.findings] or ["no problems found"]
        return "\n".join(lines)

    __repr__ = __str__

    def _coordinates(self) -> list[str]:
        """A table of all coordinates if there are few, else of those with the smallest and the largest scales."""
        if self.initial is None or self.gradient is None or self.scale is None:
            return []
        order = np.arange(len(self.names))
        if len(order) > SHOWN:
            by_scale = np.argsort(self.scale, kind="stable")
            order = np.concatenate([by_scale[: SHOWN // 2], by_scale[-SHOWN // 2 :]])
        rows = [("coordinate", "start", "gradient", "scale")]
        rows += [
            (
                self.names[i],
                f"{self.initial[i]:.4g}",
                f"{self.gradient[i]:.4g}",
                f"{self.scale[i]:.4g}",
            )
            for i in order.tolist()
        ]
        if len(self.names) > SHOWN:
            rows.insert(1 + SHOWN // 2, ("…", "…", "…", "…"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return [
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}"
            for row in rows
        ]


def listed(indices: np.ndarray, names: Sequence[str]) -> str:
    """The names of these coordinates, in words; the first few of many."""
    shown = ", ".join(names[int(i)] for i in indices[:SHOWN])
    return shown if len(indices) <= SHOWN else f"{shown} … ({len(indices)} in all)"
