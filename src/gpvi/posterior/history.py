"""How a training went, as a posterior and its file keep it."""

import dataclasses

import numpy as np

from gpvi.diagnostics.missing_mass import FromStart


@dataclasses.dataclass(frozen=True)
class Training:
    """How the training went."""

    steps: int
    planned: int
    seconds: float
    history: dict[str, np.ndarray]
    """Each reported term, one value for each step."""
    notes: tuple[str, ...] = ()
    start: str = ""
    """Where it began."""
    chosen: str = ""
    """What the library chose, and why training stopped."""
    evidence: FromStart | None = None
    """log Z as the start estimated it."""
    interrupted: bool = False
    """Whether Ctrl-C ended it; not kept in files."""
    unfinished: bool = False
    """Whether steps are left that a run with a checkpoint would still take, as after Ctrl-C; not kept in files."""
