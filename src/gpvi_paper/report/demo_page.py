"""The page of `gpvi demo`: for each density its picture, the draws of each method, and the verdict on them."""

import itertools
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from gpvi_paper import demonstration
from gpvi_paper.demonstration import Case, Shown
from gpvi_paper.files import write_file
from gpvi_paper.report.charts import planes
from gpvi_paper.report.elements import panel
from gpvi_paper.report.page import PAGE, page_html

MARKS = {"good": "✓", "do not trust": "✗"}
"""What stands before a verdict, beside its colour; other levels have a tilde."""
NAMES = {"GPVI": "gpvi.fit", "NUTS": "NUTS, 4 chains of 1,000"}


def write(shown: Iterable[Shown], directory: str | os.PathLike[str]) -> Path:
    """Write the page into a directory, and return its path."""
    path = Path(directory) / PAGE
    write_file(path, render(list(shown)), "the demo page")
    return path


def render(shown: Sequence[Shown]) -> str:
    """Return the page as HTML."""
    groups = itertools.groupby(shown, key=lambda one: one.case)
    sections = [_section(case, list(group)) for case, group in groups]
    head = (
        "<header><p class='kicker'>gpvi</p><h1>A sampler, and whether to trust it</h1>"
        "<p>Each density below was given to <code>gpvi.fit(target, key=key)</code> with nothing else chosen. "
        "Its draws are shown with the verdict of their diagnosis.</p></header>"
    )
    tail = (
        "<footer><h2>Next</h2><p>Your own density: <code>gpvi fit FILE.py:log_density --dim 2</code>. The paper’s "
        "experiments: <code>gpvi list</code> and <code>gpvi run</code>.</p></footer>"
    )
    return page_html(
        "gpvi: demo", "\n".join([head, sections[0], _side_by_side(sections[1:]), tail])
    )


def _side_by_side(sections: Sequence[str]) -> str:
    return f'<div class="demos">{"".join(sections)}</div>'


def _section(case: Case, fits: Sequence[Shown]) -> str:
    """Return a density with the draws of each method."""
    density = demonstration.picture(case)
    (x, y), half = case.frame
    figures = [panel(planes.density_panel(density), "The density", f"the density of {case.title}")]
    for fit in fits:
        inside = fit.draws[: demonstration.SHOWN] - (x, y)
        image = planes.draws_panel(density, inside, half)
        about = f"draws by {fit.method} over two contours of the density"
        figures.append(panel(image, _caption(fit), about))
    return (
        f'<section class="demo"><h2>{escape(case.title)}</h2>'
        f'<div class="panels">{"".join(figures)}</div>{_remark(fits)}</section>'
    )


def _caption(fit: Shown) -> str:
    """Return the method, the verdict and the figures behind it."""
    verdict = fit.diagnosis.verdict
    kind = verdict.level.split()[0]
    return (
        f"<b>{escape(NAMES.get(fit.method, fit.method))}</b><br>"
        f'<span class="verdict {kind}">{MARKS.get(verdict.level, "~")} {escape(verdict.level)}</span><br>'
        f"{escape(demonstration.in_words(fit))}<br>"
        f"{fit.seconds:.0f} s{_errors(fit)}"
    )


def _errors(fit: Shown) -> str:
    """Return the errors of the moments where these are known."""
    if fit.case.exact is None:
        return ""
    mean, spread = demonstration.largest_error(demonstration.moments(fit.draws), fit.case.exact)
    return f"<br>largest errors: of a mean {mean:.2f} sd, of an sd {abs(spread):.0%}"


def _remark(fits: Sequence[Shown]) -> str:
    """Return in full why a fit is not called good, and what to do."""
    doubts = [fit for fit in fits if fit.diagnosis.verdict.level != "good"]
    return "".join(
        f"<p class='remark'>{escape(NAMES.get(fit.method, fit.method))}: {escape(str(fit.diagnosis.verdict))}</p>"
        for fit in doubts
    )
