"""The code of the page "Write your own" runs: each part of a fit can be a class of the user."""

import re
import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gpvi
from gpvi import specs
from selection import some_slow

pytestmark = pytest.mark.usefixtures("unexplored")

PAGE = Path(__file__).parents[1] / "docs" / "write-your-own.md"
MODULE = "write_your_own"


def sections() -> dict[str, str]:
    """The Python code of each section by its heading; "" is the beginning that all share."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE):
        blocks = re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
        if blocks:
            found["" if part.startswith("# ") else part.split("\n")[0]] = "\n".join(blocks)
    return found


SECTIONS = sections()
PARTS = [heading for heading in SECTIONS if heading]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs the code of a section, or only its definitions, and returns the names it makes."""
    monkeypatch.chdir(tmp_path)

    def run(heading: str, definitions: bool = False) -> dict[str, Any]:
        code = SECTIONS[heading].split("\n\n\nposterior, ")[0] if definitions else SECTIONS[heading]
        file = tmp_path / "section.py"
        file.write_text(f"{SECTIONS['']}\n{code}")
        return runpy.run_path(str(file), run_name=MODULE)

    return run


def test_the_page_has_every_part():
    kinds = ("generator", "kernel", "direction", "solver", "method", "likelihood", "prior")
    assert [f"A {kind}" for kind in kinds] == PARTS


@pytest.mark.parametrize("heading", some_slow(PARTS[:5], fast=["A kernel"]))
def test_parts_of_your_own_are_trained_diagnosed_saved_and_loaded(heading, run, monkeypatch):
    names, key = run(heading), jax.random.key(1)
    posterior, loaded = names["posterior"], names["loaded"]
    own = {name for name, cls in specs._registry.items() if cls.__module__ == MODULE}
    assert any(name in str(posterior.method) for name in own)
    np.testing.assert_array_equal(posterior.sample(20, key=key), loaded.sample(20, key=key))
    x = posterior.sample(100, key=key)
    np.testing.assert_allclose(x.mean(0), [1.0, 2.0], atol=0.4)
    np.testing.assert_allclose(np.cov(x.T), [[1.0, 1.0], [1.0, 2.0]], atol=0.8)
    posterior.save("again.gpvi")
    for name in own:
        monkeypatch.delitem(specs._registry, name)
    with pytest.raises(gpvi.errors.StorageError, match=r"your own, import.*classes="):
        gpvi.load("again.gpvi")
    given = gpvi.load("again.gpvi", classes=[names[name] for name in own & names.keys()])
    assert given.method == posterior.method


@pytest.mark.parametrize("heading", some_slow(PARTS[5:], fast=["A prior"]))
def test_networks_with_parts_of_your_own_predict_and_are_loaded(heading, run):
    names, key = run(heading), jax.random.key(1)
    x = np.linspace(-1.5, 1.5, 7)[:, None]
    first, again = (names[each].predict(x, key=key) for each in ("predictive", "loaded"))
    np.testing.assert_array_equal(first.mean, again.mean)
    np.testing.assert_allclose(first.mean, 0.8 * x, atol=0.4)


def test_a_map_of_your_own_knows_its_density(run, getkey):
    """By automatic differentiation: q integrates to one."""
    made = run("A generator", definitions=True)["SinhArcsinh"](0.7).build(
        1, key=getkey(), dtype="float32"
    )
    x = np.linspace(-40, 40, 20_001, dtype="float32")[:, None]
    z = jax.vmap(made.inverse)(x)
    np.testing.assert_allclose(jax.vmap(made)(z), x, atol=1e-3)
    log_q = jax.scipy.stats.norm.logpdf(z[:, 0]) - jax.vmap(made.log_det)(z)[1]
    np.testing.assert_allclose(np.trapezoid(np.exp(log_q), x[:, 0]), 1.0, atol=1e-3)


def test_the_slope_of_the_pages_kernel_is_its_derivative(run):
    kernel = run("A kernel", definitions=True)["RationalQuadratic"](power=0.5)
    squares = np.linspace(0.1, 4.0, 9)
    slopes = jax.vmap(jax.grad(lambda square: kernel.profile(square, 0.8)[0]))(squares)
    np.testing.assert_allclose(kernel.profile(squares, 0.8)[1], slopes, rtol=1e-5)
