"""What MkDocs adds to the site: the reference of every public name, and a notebook of each tutorial.

The reference is read from the source, which is not imported; a name belongs to it if its module imports it `as` itself
or defines it.
"""

import ast
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import freeze

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files beside README.md that are pages, too."""
LINKS = "**[Run it yourself]({name}.ipynb)** · a notebook of this page, without its output.\n\n"


FIRST = (
    *("fit", "Target", "Posterior", "load"),
    *("BayesianMLPRegressor", "BayesianMLPClassifier", "Network", "Predictive"),
    *("GPVI", "NUTS", "NormalizingFlow", "FullRankVI", "MeanFieldVI", "Pathfinder", "SVGD"),
    *("Triangular", "SplineFlow", "FullRank", "Residual"),
)
"""Names that stand at the top of their pages; the others follow in the order of the source."""


def reference() -> dict[str, str]:
    """The pages of the API reference by their path."""
    pages = {}
    others = set(exported("gpvi.methods"))
    for page, (title, about, modules) in API.items():
        text = f"# {title}\n\n{about}\n"
        for module in modules:
            shown = f"gpvi.{page}" if page == "hosts" else module
            text += f"\n## `{shown}`\n" if len(modules) > 1 else ""
            names = [n for n in exported(module) if module != "gpvi" or n not in others]
            names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
            text += "".join(f"\n::: {module}.{name}\n" for name in names)
        pages[f"api/{page}.md"] = text
    return pages


API = {
    "index": (
        "gpvi",
        "The names of `import gpvi`: a target, a fit, the posterior it returns, and ways to judge them. Methods have "
        "[a page of their own](methods.md).",
        ("gpvi",),
    ),
    "methods": ("Methods", "What `gpvi.fit(target, method)` takes.", ("gpvi.methods",)),
    "bnn": ("Bayesian neural networks", "From a network and data to predictions.", ("gpvi.bnn",)),
    "generators": ("Generators", "Maps x = f(z) from noise to draws.", ("gpvi.generators",)),
    "directions": (
        "Directions, kernels and solvers",
        "Where particles move; what measures their distance; the inverse Jacobian product of Thm 3.1.",
        ("gpvi.directions", "gpvi.kernels", "gpvi.solvers"),
    ),
    "diagnostics": (
        "Diagnosis and metrics",
        "What a posterior says of itself, and scores of predictions.",
        ("gpvi.diagnostics", "gpvi.metrics"),
    ),
    "support": (
        "Errors, progress, files",
        "Errors and warnings by what the caller can do; meters; specifications; caches; several hosts.",
        ("gpvi.errors", "gpvi.progress", "gpvi.specs", "gpvi.cache", "gpvi.parallel.hosts"),
    ),
}
"""Title, introduction and modules of each page."""


def exported(module: str) -> list[str]:
    """The classes and functions that a module defines or imports `as` themselves, in the order of its source."""
    path = place(module)
    tree = ast.parse(path.read_text())
    names = [
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.name == each.asname and not place(f"{node.module}.{each.name}").exists()
    ]
    names += [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def place(module: str) -> Path:
    """The file of a module; that of a name which is no module does not exist."""
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference, the notebooks, and the pages that lie beside README.md."""
    for name, path in ROOT_PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, path, content=text))
    for path, text in reference().items():
        files.append(File.generated(config, path, content=text))
    for page in freeze.PAGES:
        content = freeze.notebook(page.read_text())
        files.append(File.generated(config, f"tutorials/{page.stem}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Link each tutorial to its notebook, below its title."""
    source = Path(page.file.src_uri)
    if source.parent.name != "tutorials" or source.stem == "index":
        return markdown
    return re.sub(r"\A(# .*\n\n)", rf"\1{LINKS.format(name=source.stem)}", markdown)
