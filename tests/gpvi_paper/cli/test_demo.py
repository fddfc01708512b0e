"""`gpvi demo` trains with the defaults, says the verdict of each fit, and writes a page that needs nothing else."""

import html
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from gpvi.cli import load_app
from gpvi.diagnostics import Diagnosis, Verdict
from gpvi_paper import demonstration
from gpvi_paper.report import demo_page


def call(*words):
    return CliRunner().invoke(load_app(), list(map(str, words)))


def test_the_moments_of_the_banana_are_those_of_exact_draws():
    """x₀ ~ N(0, 4) and x₁ | x₀ ~ N(x₀²/4, 1/4) have the density of the case, up to its constant."""
    rng = np.random.default_rng(0)
    x0 = 2 * rng.standard_normal(1_000_000)
    draws = np.stack([x0, x0**2 / 4 + 0.5 * rng.standard_normal(1_000_000)], 1)
    mean, spread = demonstration.largest_error(demonstration.moments(draws), demonstration.BANANA)
    assert mean < 0.005 and abs(spread) < 0.01
    log_p = jax.vmap(demonstration.banana)(jnp.asarray(draws[:5]))
    exact = -(draws[:5, 0] ** 2) / 8 - 2 * (draws[:5, 1] - draws[:5, 0] ** 2 / 4) ** 2
    np.testing.assert_allclose(log_p, exact, rtol=1e-5)


def test_nothing_is_chosen_for_the_library_itself():
    """Each density is given to `gpvi.fit` with its defaults; another method stands beside it only by name."""
    assert all(case.methods[0] is None for case in demonstration.CASES)
    assert [type(m).__name__ for c in demonstration.CASES for m in c.methods[1:]] == ["NUTS"]


@pytest.mark.slow
def test_the_demo(tmp_path):
    result = call("demo", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(tmp_path / "index.html")
    assert re.search("NUTS +do not trust", result.stdout)
    assert result.stdout.count(" good ") == len(demonstration.CASES), result.stdout
    page = (tmp_path / "index.html").read_text()
    assert page.count('class="verdict good"') == len(demonstration.CASES)
    assert page.count("<img ") == 2 * len(demonstration.CASES) + 1
    assert "http" not in page


def test_the_page_shows_what_was_said():
    """A verdict that is not good is printed in full, with its remedy."""
    verdict = Verdict("do not trust", "R̂ = 1.2: the chains disagree", "Run longer.")
    draws = np.random.default_rng(0).standard_normal((20, 2))
    found = Diagnosis(20, verdict, rhat=1.2, ess=31.0, divergences=7)
    shown = demonstration.Shown(demonstration.CASES[0], "NUTS", found, draws, 1.0)
    page = demo_page.render([shown])
    assert html.escape(str(verdict)) in page and "7 divergences" in page
    assert 'class="verdict do"' in page and 'class="verdict good"' not in page
