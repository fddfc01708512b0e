"""What results show in a notebook and at a prompt."""

import dataclasses
from html.parser import HTMLParser
from typing import Any, get_args

import jax
import numpy as np
import pytest

import gpvi
from gpvi import Target, _html
from gpvi.diagnostics.diagnosis import Diagnosis
from gpvi.diagnostics.verdict import Level, Verdict
from gpvi.evaluation.comparison import Comparison, Row
from gpvi.exploration.modes import Mode, Modes
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.summary import summarise
from gpvi.training.cost import Estimate
from known_posteriors import NO_TRAINING, gaussian

HOSTILE = "<script>&"
VOID = {"br", "img", "meta"}


class Page(HTMLParser):
    """The text of a piece of HTML, whose tags must match."""

    def __init__(self, source):
        super().__init__()
        self.open, self.text, self.cells = [], "", 0
        self.feed(source)
        self.close()
        assert not self.open, f"{self.open} are not closed"

    def handle_starttag(self, tag, attrs):
        assert tag != "script"
        self.cells += tag in ("td", "th")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def verdict(level: Any = "good"):
    return Verdict(level, f"because {HOSTILE}", "Do this.")


def posterior():
    training = Training(
        3, 5, 1.5, {"elbo": np.linspace(0, 1, 3)}, (f"a note {HOSTILE}",), f"GPVI {HOSTILE}"
    )
    of = Target(lambda x: -0.5 * x @ x, dim=2, names=(HOSTILE, "b"), dtype="float64")
    plain = gaussian(of, mean=0.0, variance=1.0)
    return Posterior(plain.method, plain.model, plain.start, plain.names, training, of)


def results():
    diagnosis = Diagnosis(
        4_000,
        verdict(),
        elbo=1.0,
        elbo_se=0.1,
        log_evidence=1.0,
        log_evidence_se=0.1,
        effective_share=0.9,
        k_hat=0.3,
        notes=(HOSTILE,),
    )
    draws = {HOSTILE: np.zeros((50, 60))}
    rows = (
        Row(HOSTILE, 1.0, posterior(), diagnosis),
        Row("failed", 1.0, None, None, f"error {HOSTILE}"),
    )
    network = gpvi.bnn.mlp((1, 1), "tanh")
    of_network = gaussian(Target(lambda x: -0.5 * x @ x, dim=network.size, dtype="float64"))
    return {
        "modes": Modes(
            Mode(1 / 8, 0.01, np.zeros(2), np.ones(2), -1.5, 8, HOSTILE) for _ in range(8)
        ),
        "verdict": verdict(),
        "diagnosis": diagnosis,
        "diagnosis of chains": dataclasses.replace(
            diagnosis,
            effective_share=None,
            k_hat=None,
            elbo=None,
            rhat=1.001,
            ess=900.0,
            divergences=0,
        ),
        "summary": summarise(draws, lambda x: None),
        "training": posterior().training,
        "posterior": posterior(),
        "estimate": Estimate(5_000, 2.0, 1e-3, 2**20, 3),
        "comparison": Comparison(rows, jax.random.key(0)),
        "predictive": gpvi.bnn.Predictive(of_network, network, "poisson"),
    }


@pytest.mark.parametrize("name", results())
def test_html_is_well_formed_and_holds_what_is_printed(name):
    one = results()[name]
    page = Page(one._repr_html_())
    assert page.cells > 4 or name == "verdict"
    if name != "predictive":
        assert "script" not in page.text or HOSTILE in page.text, "escaped once"
    if name == "diagnosis":
        assert "good" in page.text
        for number in ("1.0000 ± 0.1000", "0.900 of 4000", "0.30"):
            assert number in str(one)
            assert number in page.text
    if name == "comparison":
        assert "failed: error" in page.text
    if name == "summary":
        assert "20 more" in page.text


@pytest.mark.parametrize("name", results())
def test_representations_are_short_and_hold_no_array(name):
    shown = repr(results()[name])
    assert shown.startswith("<")
    assert "array" not in shown
    assert "\n" not in shown
    assert len(shown) < 160


def test_a_target_says_what_it_is_and_no_more():
    assert repr(posterior().target) == "<Target in 2 dimensions, float64>"
    data = np.zeros((20, 3))
    of_data = Target(log_likelihood=lambda w, x: -((x @ w) ** 2), data=data, dim=3)
    assert repr(of_data) == "<Target in 3 dimensions, float32, 20 data>"


@pytest.mark.parametrize("level", [*get_args(Level), "some level of tomorrow"])
def test_every_level_has_a_badge_in_words_that_can_be_read(level):
    shown = verdict(level)._repr_html_()
    assert level in Page(shown).text
    colour = _html.COLOURS.get(level, _html.NEUTRAL)
    assert f"background:{colour};color:#fff" in shown
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    contrast = 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)
    assert contrast >= 4.5, "WCAG AA"


def test_levels_of_the_table_exist():
    assert set(_html.COLOURS) <= set(get_args(Level))


def test_a_posterior_of_a_network_does_not_list_its_weights(monkeypatch):
    monkeypatch.setattr("gpvi.posterior.saving.LISTED", 3)
    few = gaussian(Target(lambda x: -0.5 * x @ x, dim=4, dtype="float64"), mean=0.0, variance=1.0)

    def names():
        raise AssertionError("many names take time")

    one = Posterior(few.method, few.model, few.start, names, NO_TRAINING)
    assert "dimensions 4" in " ".join(Page(one._repr_html_()).text.split())
