"""Figures that differ from the published ones are marked, and the reason is given."""

import html
import math
import re

import pytest

from gpvi_paper import report
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.base import Published
from gpvi_paper.records import Summary
from gpvi_paper.report.differences import differs
from made_records import made


@pytest.mark.parametrize(
    ("ours", "published", "differ"),
    [
        ((0.4, 0.2), Published(0.1, 0.05), True),
        ((0.4, 0.2), Published(0.16, 0.05), False),
        ((0.4, 0.2), Published(0.16, 0.05, "known"), True),
        ((0.4, math.nan), Published(0.3, 0.05), True),
        ((0.9934, math.nan), Published(0.993, math.nan), False),
        ((0.9936, math.nan), Published(0.993, math.nan), True),
        ((0.0, 0.0), Published(0.0, 0.0), False),
    ],
)
def test_figures_differ_beyond_their_spreads(ours, published, differ):
    mean, sd = ours
    assert differs(Summary(mean, sd, 3), published) == differ


def test_differences_have_their_reason_on_the_page():
    page = report.render([made("blr", "SVGD", "paper", value=0.2)])
    reason = EXPERIMENTS["blr"].published["SVGD"]["mean_error_samples"].reason
    assert html.escape(reason) in page
    letter = re.search(r'0\.4 .{1,40}<a class="why" href="#(blr-why-a)">a</a>', page)
    assert letter
    assert f'<li id="{letter[1]}"><b>μ error of SVGD.</b>' in page


def test_differences_without_a_reason_are_called_so():
    """The covariance error of amortised KSD has no reason; 20 ± 10 is not 0.43 ± 0.10."""
    page = report.render([made("blr", "Amortized KSD", "paper", value=10.0)])
    assert "<b>Σ error of Amortized KSD.</b> Not explained.</li>" in page


def test_figures_that_agree_or_of_another_preset_are_not_marked():
    agree = report.render([made("blr", "Deep ensemble", "paper", value=1e-3)])
    assert "Σ error of Deep ensemble" in agree
    assert 'class="why"' not in report.render([made("blr", "SVGD", "best")])
