"""Run the tutorials and keep what they print and draw: `make tutorials`, some minutes on two cores.

A tutorial is a page of Markdown. Its Python blocks share one namespace and run in order. What a block prints replaces
the block titled "Output" after it; each figure that is open after it is saved under the name of the picture that
follows. `python docs/freeze.py banana` runs the pages whose names begin so.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent / "tutorials"
PAGES = sorted(page for page in HERE.glob("*.md") if page.stem != "index")
CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text title=\"Output\"\n(?P<output>.*?)^```\n)?"
    r"(?P<pictures>(?:\n!\[[^\]]*\]\([^)]*\)\n)*)",
    re.DOTALL | re.MULTILINE,
)
MOST_LINES = 40
"""Of output that a page keeps."""
WIDTH = 88
"""Columns at which lines of prose are wrapped; rows of tables, which have gaps, are not."""


class Block(NamedTuple):
    """A piece of code and the names of the pictures after it."""

    code: str
    pictures: tuple[str, ...]
    match: re.Match[str]


def blocks(text: str) -> Iterator[Block]:
    """The Python blocks of a page, in order."""
    for match in CODE.finditer(text):
        pictures = re.findall(r"\]\(([^)]*)\)", match["pictures"])
        yield Block(match["code"], tuple(pictures), match)


def run(page: Path, folder: Path) -> list[str]:
    """Run a page, save its pictures into a folder, and return what each block printed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcdefaults()
    plt.rc("figure", dpi=100, autolayout=True)
    plt.rc("axes.spines", top=False, right=False)
    names: dict[str, Any] = {"__name__": f"tutorial_{page.stem}"}
    printed = []
    for number, block in enumerate(blocks(page.read_text()), 1):
        code = compile(block.code, f"{page.name}, block {number}", "exec")
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(code, names)  # noqa: S102
        printed.append(stream.getvalue())
        figures = [plt.figure(each) for each in plt.get_fignums()]
        if len(figures) != len(block.pictures):
            raise ValueError(
                f"{page.name}, block {number}: {len(figures)} figures and {len(block.pictures)} pictures"
            )
        for figure, name in zip(figures, block.pictures, strict=True):
            save(figure, folder / name)
        plt.close("all")
    return printed


def save(figure: Any, path: Path) -> None:
    """Save a figure as a PNG of few colours, below 100 KB."""
    from PIL import Image

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})
    picture.seek(0)
    with Image.open(picture) as image:
        flat = image.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT)
        flat.save(path, "png", optimize=True)


def wrapped(line: str) -> list[str]:
    """A line of output as the page shows it."""
    text = line.lstrip()
    if "  " in text or len(line) <= WIDTH:
        return [line]
    margin = line[: len(line) - len(text)]
    return textwrap.wrap(line, WIDTH, subsequent_indent=margin, break_on_hyphens=False)


def frozen(text: str, printed: list[str]) -> str:
    """The page with what its blocks printed."""
    outputs = iter(printed)

    def replaced(match: re.Match[str]) -> str:
        printed = next(outputs).rstrip().splitlines()
        lines = [line for long in printed for line in wrapped(long.rstrip())]
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES], "…"]
        body = "\n".join(lines)
        output = f'\n```text title="Output"\n{body}\n```\n' if body else ""
        return f"```python\n{match['code']}```\n{output}{match['pictures']}"

    return CODE.sub(replaced, text)


def notebook(text: str) -> str:
    """The page as a Jupyter notebook without output; pictures are drawn where the code is run."""
    cells, place = [], 0
    for block in blocks(text):
        cells.append(_cell("markdown", text[place : block.match.start()]))
        cells.append(_cell("code", block.code))
        place = block.match.end()
    cells.append(_cell("markdown", text[place:]))
    numbered = [
        cell | {"id": f"cell-{i}"} for i, cell in enumerate(cells) if "".join(cell["source"])
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {
        "cells": numbered,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    text = re.sub(r"(\]\([\w/.-]+)\.md", r"\1.html", text) if kind == "markdown" else text
    extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(True)} | extra


def main(names: list[str]) -> None:
    """Freeze the pages whose names begin with one of the names; all if there is none."""
    for page in PAGES:
        if not names or page.stem.startswith(tuple(names)):
            print(page.stem, flush=True)
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                printed = run(page, HERE)
            page.write_text(frozen(page.read_text(), printed))


if __name__ == "__main__":
    main(sys.argv[1:])
