"""Where training began: one type, from the search for a start to the posterior and its file."""

from typing import NamedTuple

from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.targets.coordinates import Affine


class Start(NamedTuple):
    """The start of a training run.

    Parameters
    ----------
    affine
        The coordinates x = location + L u in which the posterior is trained.
    report
        How they were found, in words.
    evidence
        log Z as the search for them estimated it; None if there was no search, or its estimate was too uncertain.
    """

    affine: Affine
    report: str = ""
    evidence: InitialEvidence | None = None
