"""One table and one figure for several methods."""

import signal

import jax
import pytest

import gpvi
from gpvi.errors import InputError

pytestmark = pytest.mark.usefixtures("unexplored")

TARGET = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=2)


@pytest.fixture(scope="module")
def compared():
    methods = {
        "full rank": gpvi.FullRankVI(particles=64),
        "SVGD": gpvi.SVGD(particles=20),
        "impossible": gpvi.GPVI(generator=gpvi.generators.Triangular(latent=3)),
    }
    return gpvi.compare(TARGET, methods, key=jax.random.key(0), steps=50, progress=False)


def test_every_method_has_a_row_and_a_failure_says_why(compared):
    assert [row.label for row in compared.rows] == ["full rank", "SVGD", "impossible"]
    text = str(compared)
    assert "good" in text
    assert "failed" in text
    assert "3" in compared.rows[2].error
    assert compared.rows[0].diagnosis.elbo is not None
    assert compared.rows[1].diagnosis.elbo is None


def test_posteriors_are_found_by_label(compared):
    assert compared["SVGD"].particles.shape == (20, 2)
    with pytest.raises(InputError, match="impossible"):
        compared["impossible"]


def test_the_figure_shows_those_that_worked(compared):
    figure = compared.figure()
    assert len(figure.axes) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["full rank", "SVGD"]


@pytest.mark.slow
def test_what_cannot_be_diagnosed_is_kept():
    """R̂ needs eight draws, and the posterior is there all the same."""
    few = gpvi.NUTS(chains=1, draws=4, warmup=20)
    found = gpvi.compare(TARGET, {"few": few}, key=jax.random.key(0), progress=False)
    assert "4 draws each" in found.rows[0].error
    assert found["few"].particles.shape == (4, 2)
    assert "failed" in str(found)


def test_no_methods_no_comparison():
    with pytest.raises(InputError, match="empty"):
        gpvi.compare(TARGET, [], key=jax.random.key(0))


def test_ctrl_c_ends_the_comparison():
    """What was trained is kept, and the methods after it are left out."""
    seen = []

    def press(event):
        seen.append(event)
        signal.raise_signal(signal.SIGINT)

    methods = {"first": gpvi.SVGD(particles=10), "second": gpvi.SVGD(particles=10)}
    found = gpvi.compare(
        TARGET, methods, key=jax.random.key(0), steps=200, callbacks=[press], progress=False
    )
    assert [row.label for row in found.rows] == ["first"]
    assert found["first"].training.interrupted and len(seen) == 1
