"""The page on choosing a method says of each what the method says of itself."""

from pathlib import Path

import pytest

from gpvi.methods import METHODS

PAGE = (Path(__file__).parents[1] / "docs" / "choosing.md").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_the_page_has_a_row_for_every_method(method):
    about = method.about
    density, draws = ("yes" if has else "no" for has in (method.density, method.generative))
    row = f"| `{method.__name__}` | {about.purpose} | {about.cost} | {density} | {draws} | {about.citation} |"
    assert row in PAGE.splitlines()


def test_the_table_has_no_other_rows():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(METHODS)
