"""Claims name figures that exist, and are decided as they say."""

import dataclasses
import math
from pathlib import Path

import pytest

from gpvi_paper import records
from gpvi_paper.claims import Claim, claims, judge
from gpvi_paper.claims.base import FAILS, HOLDS, OPEN, Alike, Below, Bounded, Equals, Figure
from gpvi_paper.claims.page import page
from gpvi_paper.claims.statements import TABLES
from gpvi_paper.experiments import EXPERIMENTS, Published
from gpvi_paper.records import Summary
from gpvi_paper.report.claims import claims_html
from made_records import made

ROOT = Path(__file__).parents[2]
ERROR = Figure("blr", "SVGD", "covariance_error")
OTHER = Figure("blr", "Amortized SVGD", "covariance_error")


def of(value, sd=0.0, n=3):
    return Summary(value, sd, n)


def test_there_is_a_row_for_every_claim_and_no_two_are_the_same():
    made = claims()
    assert len(made) >= 40
    assert len({(claim.text, claim.where) for claim in made}) == len(made)
    of_paper = {n: e for n, e in EXPERIMENTS.items() if e.published and "beyond" not in e.source}
    assert of_paper.keys() == TABLES.keys()
    published = sum(len(rows) for e in of_paper.values() for rows in e.published.values())
    assert sum(isinstance(claim.test, Equals) for claim in made) == published


def test_every_figure_is_a_row_of_a_recipe_and_a_metric_of_a_case():
    for claim in claims():
        assert claim.test is not None or claim.reason
        for figure in claim.test.figures if claim.test else ():
            experiment = EXPERIMENTS[figure.experiment]
            labels = {label for p in ("paper", "authors") for label in experiment.recipes(p)}
            case, _, metric = figure.row.rpartition("/")
            assert figure.method in labels, (claim.text, figure)
            assert case in experiment.cases
            assert metric in {each.key for each in experiment.metrics}


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(of(0.1), HOLDS), (of(0.14), HOLDS), (of(0.3), FAILS), (of(0.3, 0.2), HOLDS)],
)
def test_a_printed_figure_is_reached_or_bettered(ours, verdict):
    assert Equals(ERROR, Published(0.125, 0.03))(ours)[0] == verdict


def test_a_known_reason_narrows_the_spread_to_the_published_one():
    verdict, why = Equals(ERROR, Published(0.125, 0.03, "It did not learn."))(of(0.3, 0.2))
    assert (verdict, why) == (FAILS, "It did not learn")


def test_orders_hold_beyond_their_standard_error():
    test = Below(ERROR, OTHER)
    assert test(of(1.0, 0.3), of(2.0, 0.4))[0] == HOLDS
    assert test(of(2.0, 0.3), of(1.0, 0.4))[0] == FAILS
    error = math.hypot(0.3, 0.4) / 3**0.5
    assert test(of(1.0, 0.3), of(1.0 + 0.99 * error, 0.4))[0] == OPEN
    assert test(of(1.0, 0.3), of(1.0 + 1.01 * error, 0.4))[0] == HOLDS
    assert test(of(1.0, math.nan, 1), of(1.1, math.nan, 1))[0] == HOLDS


def test_likeness_and_bounds():
    assert Alike(ERROR, OTHER)(of(1.0, 0.3), of(1.59, 0.3))[0] == HOLDS
    assert Alike(ERROR, OTHER)(of(1.0, 0.3), of(1.7, 0.3))[0] == FAILS
    assert Bounded(ERROR, least=0.99)(of(0.99))[0] == HOLDS
    assert Bounded(ERROR, most=0.5)(of(0.6))[0] == FAILS


CLAIM = Claim("one below the other", "Table 2", Below(ERROR, OTHER))


def decided(*made_up):
    (one,) = judge([CLAIM], made_up)
    return one


def test_the_published_recipes_decide_and_others_are_only_shown():
    low, high = made("blr", "SVGD", "paper", value=0.01), made("blr", "Amortized SVGD", "paper")
    one = decided(low, high)
    assert (one.verdict, one.decided_by) == (HOLDS, "paper")
    best = [made("blr", method, "best") for method in ("SVGD", "Amortized SVGD")]
    one = decided(*best)
    assert (one.verdict, one.decided_by) == (OPEN, None)
    assert set(one.figures) == {"best"}
    assert decided(low, best[1]).verdict == OPEN


def test_runs_of_a_changed_recipe_decide_nothing():
    pair = [made("blr", method, "paper") for method in ("SVGD", "Amortized SVGD")]
    older = [dataclasses.replace(r, specification=r.specification | {"steps": 3}) for r in pair]
    one = decided(*older)
    assert one.verdict == OPEN
    assert set(one.figures) == {"earlier"}


def test_an_invalid_figure_decides_nothing():
    label = "GPVI (functional, exact Jacobian)"
    claim = Claim(
        "KL is small", "App. D", Bounded(Figure("energy", label, "sinusoid/kl"), most=9.0)
    )
    (folded,) = judge([claim], [made("energy", label, "paper", fold=0.2)])
    (whole,) = judge([claim], [made("energy", label, "paper")])
    assert (folded.verdict, whole.verdict) == (OPEN, HOLDS)


def test_the_report_and_the_page_show_figures_and_verdicts():
    one = decided(made("blr", "SVGD", "paper", value=0.01), made("blr", "Amortized SVGD", "paper"))
    shown = claims_html([one])
    assert "0.020 ± 0.010 / 0.25 ± 0.1" in shown
    assert one.verdict in shown
    assert f"| {CLAIM.text} | Table 2 |" in page([one])
    assert claims_html(judge(claims(), [])) == ""


@pytest.mark.slow
def test_the_page_of_the_documentation_is_that_of_the_records():
    found = judge(claims(), records.find([ROOT / "results"]))
    assert (ROOT / "docs" / "claims.md").read_text("utf-8") == page(found)
