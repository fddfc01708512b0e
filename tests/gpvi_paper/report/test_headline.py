"""The first table of the page compares GPVI with the best other method, and marks the better one."""

import re

import numpy as np
import pytest

from gpvi_paper import report
from made_records import made


def marked(page):
    """By experiment: whether a mark stands at GPVI, and at the others."""
    begin = page.index("id='headline'")
    table = page[begin : page.index("</table>", begin)]
    rows = re.findall(r"<tr><th scope='row'>.*?</tr>", table)
    return {
        re.sub("<.*?>", "", row.split("</th>")[0]): ["✓" in c for c in sides(row)] for row in rows
    }


def sides(row):
    return row.split("<td")[2:4]


@pytest.mark.parametrize(
    ("ours", "theirs", "who"),
    [(1.0, 2.0, [True, False]), (2.0, 1.0, [False, True]), (1.0, 1.0, [False] * 2)],
)
def test_the_better_one_is_marked_and_nobody_in_a_tie(ours, theirs, who):
    """The error of Σ is better if it is lower."""
    rows = [
        made("blr", "GPVI (pathwise)", "best", value=ours),
        made("blr", "NUTS", "best", value=theirs),
    ]
    assert marked(report.render(rows)) == {"Bayesian linear regression": who}


def test_the_best_row_of_each_side_stands_for_it():
    rows = [
        made("blr", "GPVI (pathwise)", "best", value=3.0),
        made("blr", "GPVI (l2)", "best", value=0.1),
        made("blr", "NUTS", "best", value=0.2),
        made("blr", "Pathfinder", "best", value=4.0),
        made("blr", "SVGD", "paper", value=0.01),
    ]
    page = report.render(rows)
    begin = page.index("id='headline'")
    table = page[begin : page.index("</table>", begin)]
    assert "GPVI (l2)</small>" in table and "NUTS</small>" in table
    assert not any(name in table for name in ("pathwise", "Pathfinder", "SVGD"))


def test_a_folded_generator_does_not_count_where_that_voids_the_metric():
    rows = [
        made("energy", "GPVI (default)", "best", value=0.1, fold=0.2),
        made("energy", "Planar flow", "best", value=0.2),
    ]
    assert "TV" in report.render(rows), "a histogram needs no density"


def test_many_problems_are_counted():
    rows = [
        made("posteriordb", "GPVI (default)", "best", value=0.2),
        made("posteriordb", "NUTS", "best", value=0.1),
    ]
    page = report.render(rows)
    assert "better on 17 of 17 problems" in page and "better on 0 of 17 problems" in page


def test_nothing_to_compare_is_no_table():
    assert "id='headline'" not in report.render([made("blr", "SVGD", "best")])


def test_headings_are_in_order_and_the_contents_lead_to_every_section():
    rows = [
        made("blr", "GPVI (pathwise)", "best"),
        made("blr", "NUTS", "best"),
        made("energy", "GPVI (default)", "best"),
    ]
    page = report.render(rows)
    levels = [int(n) for n in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(np.diff(levels) <= 1), levels
    contents = page[page.index("<nav class='contents'") : page.index("</nav>")]
    for section in re.findall(r"<section id=[\"'](\w+)", page):
        assert f"#{section}" in contents
