"""The site: tutorials are frozen whole, the reference has every public name, and nothing comes from outside."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

import freeze
import gpvi
import hooks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = [page.stem for page in freeze.PAGES]
RUN = [
    "README.md",
    "docs/get-started.md",
    "docs/models.md",
    "docs/networks.md",
    "docs/exploration.md",
    "docs/numpyro.md",
    "docs/pymc.md",
    "docs/own-networks.md",
]
"""Pages whose Python blocks run in order, beside the tutorials and write-your-own.md, which has tests of its own."""
FRAGMENTS = {
    "docs/functional-gradient.md": "a target that the reader has",
    "docs/index.md": "the beginning of README.md",
    "docs/command-line.md": "a line of a user's file",
    "docs/scaling.md": "several devices and hosts",
    "docs/results.md": "fits of some minutes",
    "docs/surviving.md": "names that the reader has",
    "docs/write-your-own.md": "tests/test_docs.py",
}
"""Pages whose blocks do not run as they stand, and why."""
UNKNOWN = ("eight_schools", "MyModule")
"""README.md shows a few lines with names that the reader has."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_every_page_with_code_is_run_or_says_why_not():
    pages = {
        str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *DOCS.glob("*.md")] if blocks(p)
    }
    other = pages - {*RUN, *FRAGMENTS}
    assert not other, f"{sorted(other)}: name them in RUN or FRAGMENTS"


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs(name, tmp_path, hasty):
    """In a process of its own, as a reader would."""
    code = [
        b
        for b in blocks(ROOT / name)
        if not any(word in b for word in UNKNOWN if name == "README.md")
    ]
    assert code
    run(tmp_path, hasty, "\n".join(code))


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs(name, tmp_path, hasty):
    """As frozen: each block prints and draws what the page has room for."""
    (page,) = (p for p in freeze.PAGES if p.stem == name)
    program = f"""
import sys, pathlib
sys.path.insert(0, {str(DOCS)!r})
import freeze
page = pathlib.Path({str(page)!r})
printed = freeze.run(page, pathlib.Path("."))
kept = [bool(block.match["output"]) for block in freeze.blocks(page.read_text())]
assert [bool(text.strip()) for text in printed] == kept, "run `make tutorials`"
for block in freeze.blocks(page.read_text()):
    for picture in block.pictures:
        assert pathlib.Path(picture).stat().st_size < 100_000
"""
    run(tmp_path, hasty, program)


def run(folder: Path, environment: dict[str, str], program: str) -> None:
    """Run Python in a folder; what it says is the failure."""
    (folder / "page.py").write_text(program)
    quiet = environment | {"MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env=quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_is_frozen_whole(name):
    """Its pictures are there and small, and freezing what it has changes nothing."""
    text = (DOCS / "tutorials" / f"{name}.md").read_text()
    found = list(freeze.blocks(text))
    assert found and len(found) == len(blocks(DOCS / "tutorials" / f"{name}.md"))
    assert freeze.frozen(text, [block.match["output"] or "" for block in found]) == text
    assert any(block.match["output"] for block in found), "run `make tutorials`"
    for block in found:
        for picture in block.pictures:
            assert (DOCS / "tutorials" / picture).stat().st_size < 100_000


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_is_a_notebook_too(name):
    text = (DOCS / "tutorials" / f"{name}.md").read_text()
    book = json.loads(freeze.notebook(text))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [f"{piece}\n" for piece in code] == [block.code for block in freeze.blocks(text)]
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


def test_freezing_replaces_old_output():
    page = 'a\n\n```python\nprint(1)\n```\n\n```text title="Output"\nold\n```\n\n![two words](x.png)\n\nb\n'
    new = freeze.frozen(page, ["1\n"])
    assert new == page.replace("old", "1")
    assert freeze.frozen(new, [""]) == "a\n\n```python\nprint(1)\n```\n\n![two words](x.png)\n\nb\n"


def test_prose_is_wrapped_and_rows_of_tables_are_not():
    row = "k̂   0.5   " + "word " * 30
    assert freeze.wrapped(row) == [row]
    lines = freeze.wrapped("word " * 30)
    assert len(lines) == 2 and " ".join(lines).split() == ["word"] * 30


class Page(HTMLParser):
    """What a page of the site asks for, links to and names."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads, self.links, self.ids, self.bare = [], [], set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.add(given["id"])
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loads.append(given["href"])
        if tag == "img" and not given.get("alt"):
            self.bare.append(given.get("src"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@pytest.mark.slow
def test_the_site(tmp_path):
    """It builds without a warning; all links lead somewhere; nothing is loaded from elsewhere; every name is there."""
    out = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    pages = {path: Page(path) for path in out.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    for path, page in pages.items():
        assert not page.bare, f"{path.name}: pictures without a text"
        assert not [x for x in page.loads if re.match(r"(https?:)?//", x)], path.name
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:", target) or target.startswith("//"):
                continue
            leads = (path.parent / target).resolve() if target else path.resolve()
            leads = leads / "index.html" if leads.is_dir() else leads
            assert leads.exists(), f"{path.name} links to {link}"
            if anchor and leads in pages:
                assert anchor in pages[leads].ids, f"{path.name} links to {link}"
    identifiers = set().union(
        *(page.ids for path, page in pages.items() if path.parent.name == "api")
    )
    assert not public() - identifiers


def public() -> set[str]:
    """The public names of the modules that users name."""
    methods = set(hooks.exported("gpvi.methods"))
    return {
        f"{module}.{name}"
        for _, _, modules in hooks.API.values()
        for module in modules
        for name in hooks.exported(module)
        if module != "gpvi" or name not in methods
    }


def test_the_reference_knows_the_names():
    names = public()
    assert {
        "gpvi.fit",
        "gpvi.Target",
        "gpvi.methods.GPVI",
        "gpvi.bnn.fit",
        "gpvi.metrics.auroc",
    } <= names
    assert all(
        callable(getattr(gpvi, name[5:]))
        for name in names
        if re.fullmatch(r"gpvi\.[A-Za-z]\w*", name)
    )


@pytest.mark.slow
def test_the_distribution_builds_and_is_complete(tmp_path):
    """A source archive with tests and pages, and a wheel with both packages, the type marker and the style sheet."""
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    (wheel,) = tmp_path.glob("*.whl")
    (archive,) = tmp_path.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"gpvi/py.typed", "gpvi_paper/report/style.css", "gpvi/__init__.py"} <= inside
    assert not any(name.startswith(("tests", "docs")) for name in inside)
    with tarfile.open(archive) as packed:
        held = {name.split("/", 1)[1] for name in packed.getnames() if "/" in name}
    assert {
        "mkdocs.yml",
        "CITATION.cff",
        "tests/test_site.py",
        "docs/index.md",
        "README.md",
    } <= held
