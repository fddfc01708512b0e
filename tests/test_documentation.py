"""The names, modules and files that the pages of the documentation mention exist, and their Python code compiles."""

import ast
import importlib
import itertools
import re
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify, unique

ROOT = Path(__file__).parents[1]
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
MADE = re.compile(r"(?:\.\./)*api/\w+\.md|changelog\.md|contributing\.md")
"""Pages that are made when the site is built."""
MOST_WORDS = 900


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
    broken = [link for link in links if not (page.parent / link).exists()]
    assert not sorted(link for link in broken if not MADE.fullmatch(link))


def headings(page: Path) -> list[str]:
    """The lines of a page that are headings, in order; those within code are none."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ .*$", text, re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What links to a page may name, as the site spells it."""
    seen: set[str] = set()
    for line in headings(page):
        words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# "))
        unique(slugify(words, "-"), seen)
    return seen


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_headings_that_are_linked_to_exist(page):
    links = re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text())
    leads = {(page.parent / path if path else page, anchor) for path, anchor in links}
    assert not [x for x in leads if x[0].suffix == ".md" and x[1] not in anchors(x[0])]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_headings_are_in_order(page):
    levels = [len(line.split()[0]) for line in headings(page)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_picture_says_what_it_shows(page):
    """And is small."""
    for alt, path in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page.read_text()):
        assert len(alt.split()) >= 2, path
        assert (page.parent / path).stat().st_size < 300_000, path


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS
