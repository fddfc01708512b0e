"""The names, modules and files that the pages of the documentation mention exist, and their Python code compiles."""

import ast
import importlib
import re
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IDS = [page.name for page in PAGES]


def exists(name: str) -> bool:
    """Whether a dotted name leads from a module to an attribute, or is that of a group of entry points."""
    if entry_points(group=name):
        return True
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[depth:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def blocks(page: Path) -> list[str]:
    """The pieces of Python code on a page."""
    return re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE)


def compiled(code: str) -> ast.Module:
    """The syntax tree of a piece; an ellipsis stands for what the reader has."""
    return ast.parse(textwrap.dedent(code).replace("…", "..."))


def mentioned(page: Path) -> set[str]:
    """The names of this distribution, in the text and in the imports of its code, less those of files."""
    found = re.findall(r"(?<!\.)\bgpvi(?:_paper)?(?:\.[A-Za-z]\w*)+\b(?![-/])", page.read_text())
    names = {name for name in found if not name.endswith(".py")}
    for code in blocks(page):
        for node in ast.walk(compiled(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpvi"):
                names |= {f"{node.module}.{each.name}" for each in node.names}
    return names


def test_a_name_exists_or_does_not():
    assert exists("gpvi.Target.score") and exists("gpvi.bnn.networks")
    assert (
        not exists("gpvi.Target.nothing") and not exists("gpvi.nothing") and not exists("nothing")
    )


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_names_exist(page):
    assert not sorted(name for name in mentioned(page) if not exists(name))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_exist(page):
    text = page.read_text()
    paths = set(re.findall(r"\b(?:src|tests|docs)/[\w/]+\.(?:py|md)\b", text))
    assert not sorted(path for path in paths if not (ROOT / path).is_file())
    links = set(re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text))
    assert not sorted(link for link in links if not (page.parent / link).exists())
