"""Imports point one way, heavy libraries are imported where they are used, and the documentation names what exists."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpvi

ROOT = Path(gpvi.__file__).parent
NOTATION = Path(__file__).parents[1] / "docs" / "notation.md"

LAYERS = (
    {
        "errors",
        "untrusted",
        "gauss_jordan",
        "nvidia",
        "names",
        "evidence",
        "writing",
        "arithmetic",
        "warning",
        "progress",
        "operations",
    },
    {"specs", "entries"},
    {
        "storage",
        "records",
        "minibatch",
        "model",
        "start",
        "cache",
        "classes",
        "data",
        "convergence",
        "communication",
        "memory",
        "mesh",
        "noise",
        "products",
        "indexing",
        "inverses",
        "stein",
        "stream",
        "lock",
        "verdict",
    },
    {
        "kernels",
        "affine",
        "metrics",
        "pytree_model",
        "numpyro_model",
        "preflight",
        "hosts",
        "density",
    },
    {"target", "generators", "summary"},
    {"jacobian", "diagnostics", "whitened"},
    {"directions"},
    {"carriers", "export"},
    {"pullback"},
    {"methods"},
    {"coverage", "drawing"},
    {"training"},
    {"saving", "diagnosis"},
    {"posterior", "pace", "program"},
    {"arguments", "feed", "recovery"},
    {"checkpoint"},
    {"loop", "starting"},
    {"fit"},
    {"bnn", "calibration", "comparison", "cost"},
    {"experiments"},
    {"report"},
    {"bench"},
    {"cli"},
    {"__main__"},
)
"""A module imports from earlier layers and from its own package only; `gpvi` itself from anywhere."""

LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name: str) -> set[str]:
    """The modules of this package that a module names anywhere in its source, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "gpvi"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            if node.module is not None and node.module.split(".")[0] == "gpvi":
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {full if full in MODULES else node.module for full in inner}
    return found


def public_names(name: str) -> set[str]:
    """What a module takes from the package itself, by `gpvi.x` or `from gpvi import x`."""
    nodes = list(ast.walk(ast.parse(MODULES[name].read_text())))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    taken = {n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id == "gpvi"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "gpvi":
            taken |= {alias.name for alias in node.names if f"gpvi.{alias.name}" not in MODULES}
    return taken


def test_the_walk_finds_what_is_known():
    assert "gpvi.jacobian" in imports("gpvi.directions.functional")
    assert {"gpvi.density", "gpvi.errors"} <= imports("gpvi.target")
    assert len(MODULES) > 20


def test_every_module_has_a_place():
    new = {name.split(".")[1] for name in MODULES if name != "gpvi"} - LAYER.keys()
    assert not new, f"give {new} a place in LAYERS"


@pytest.mark.parametrize("name", [n for n in MODULES if n != "gpvi" and n.split(".")[1] in LAYER])
def test_imports_point_one_way(name):
    here = name.split(".")[1]
    for other in imports(name):
        if other == "gpvi":
            assert public_names(name) == {"__version__"}, "import the module that holds a name"
            continue
        there = other.split(".")[1]
        assert there == here or LAYER.get(there, -1) < LAYER[here], f"{name} may not import {other}"


def test_no_module_imports_itself_by_a_detour():
    """Within a package, too: repeatedly remove modules that import nothing that is left."""
    left = {name: imports(name) - {name, "gpvi"} for name in MODULES}
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert not left, f"a cycle among {sorted(left)}"


def test_heavy_libraries_are_imported_where_they_are_used():
    heavy = {"blackjax", "flowjax", "matplotlib", "typer", "rich", "numpyro", "sklearn", "arviz"}
    mathematics = sorted(
        name for name in MODULES if LAYER.get((*name.split("."), "errors")[1], 99) <= LAYER["fit"]
    )
    code = f"import sys, {', '.join(mathematics)}; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT.parent), "JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gpvi.warning"])
def test_warnings_point_out_of_the_library(name):
    assert "warnings.warn(" not in MODULES[name].read_text(), "use gpvi.warning"


def named() -> list[str]:
    return sorted(set(re.findall(r"`(gpvi(?:\.\w+)+)`", NOTATION.read_text())))


@pytest.mark.parametrize("name", named())
def test_names_of_the_notation_page_exist(name):
    parts = name.split(".")
    depth = max(i for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in MODULES)
    found = importlib.import_module(".".join(parts[:depth]))
    for attribute in parts[depth:]:
        assert hasattr(found, attribute), f"{name}: {found} has no {attribute}"
        found = getattr(found, attribute)


def test_the_notation_page_covers_every_equation_and_line():
    tables = re.split(r"^## ", NOTATION.read_text(), flags=re.MULTILINE)
    firsts = {t.split("\n")[0]: re.findall(r"^\| (\w+) \|.*`gpvi", t, re.MULTILINE) for t in tables}
    assert firsts["Equations"] == [str(i) for i in range(1, 16)]
    assert firsts["Algorithm 1"] == ["Initialize", *(str(i) for i in range(1, 9))]
