"""Warnings that point at the line of the user's program that led to them, however deep in the library they arise."""

import sys
import warnings

_BETWEEN = {"gpvi", "contextlib", "jaxtyping", "beartype"}
"""The library, and what may stand between two of its functions: a `with`, and checks of types."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the nearest caller outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame.f_globals.get("__name__")) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(module: object) -> str:
    return str(module).partition(".")[0]
