"""Imports point one way, heavy libraries are imported where they are used, and the documentation names what exists."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpvi

SOURCE = Path(gpvi.__file__).parents[1]
NOTATION = Path(__file__).parents[1] / "docs" / "notation.md"
MOST_MODULES = 12

LAYERS = (
    {"errors"},
    {"_compute", "_html", "_inputs", "specs", "progress", "cache", "persistence"},
    {"parallel", "supports"},
    {"targets", "kernels", "metrics"},
    {"exploration", "generators"},
    {"solvers"},
    {"directions"},
    {"methods"},
    {"diagnostics"},
    {"initialization", "posterior"},
    {"training"},
    {"bnn", "evaluation"},
    {"cli"},
)
"""A module of gpvi imports from earlier layers and from its own package only (docs/house.md draws them)."""
LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("gpvi", "gpvi_paper")
    for path in sorted((SOURCE / package).rglob("*.py"))
}
LIBRARY = [name for name in MODULES if name.split(".")[0] == "gpvi"]
ROOMS = [name for name in LIBRARY if name.count(".") == 1 and name.split(".")[1] in LAYER]
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py" and "." in name]


def room(name: str) -> str:
    return (*name.split("."), "gpvi")[1]


def imports(name: str) -> set[str]:
    """The modules of this distribution that a module names anywhere in its source, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name in MODULES}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            if node.module in MODULES:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {full if full in MODULES else node.module for full in inner}
    return found


def test_the_walk_finds_what_is_known():
    assert "gpvi.solvers" in imports("gpvi.directions.functional")
    assert {"gpvi.targets.density", "gpvi.errors"} <= imports("gpvi.targets.target")
    assert len(LIBRARY) > 80


def test_every_room_has_a_layer():
    assert {room(name) for name in LIBRARY} - {"gpvi", "__main__"} == LAYER.keys()


@pytest.mark.parametrize("here", ROOMS)
def test_imports_point_one_way(here):
    for name in LIBRARY:
        if room(name) != room(here):
            continue
        for other in imports(name) - {"gpvi"}:
            assert other in LIBRARY, f"{name} imports {other}: the library stands on its own"
            below = LAYER[room(other)] < LAYER[room(here)]
            assert room(other) == room(here) or below, f"{name} may not import {other}"


def test_the_library_takes_nothing_but_its_version_from_its_own_front_door():
    for name in LIBRARY:
        if "gpvi" in imports(name) and name not in ("gpvi", "gpvi.__main__"):
            tree = ast.parse(MODULES[name].read_text())
            taken = {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gpvi"
            }
            assert taken == {"__version__"}, f"{name}: import the module that holds a name"


def test_no_module_imports_itself_by_a_detour():
    """Within a package, too: repeatedly remove modules that import nothing that is left."""
    left = {name: imports(name) - {name, "gpvi"} for name in MODULES}
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert not left, f"a cycle among {sorted(left)}"


def test_private_modules_are_imported_by_their_own_package_only():
    for name in MODULES:
        for other in imports(name):
            parts = other.split(".")
            private = [i for i, part in enumerate(parts) if part.startswith("_") and i > 1]
            if private:
                owner = ".".join(parts[: private[0]])
                assert f"{name}.".startswith(f"{owner}."), f"{name} imports {other}"


def test_what_regenerates_the_paper_uses_no_private_part_of_the_library():
    """But for benchmarks, which time its building blocks one by one."""
    for name in MODULES.keys() - set(LIBRARY):
        for other in imports(name) & set(LIBRARY):
            private = any(part.startswith("_") for part in other.split("."))
            measured = name.startswith("gpvi_paper.bench.") and other.startswith("gpvi._compute.")
            assert measured or not private, f"{name} imports {other}"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_small_and_says_what_it_holds(name):
    modules = [path for path in MODULES[name].parent.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES, f"{name} has {len(modules)} modules"
    about = ast.get_docstring(ast.parse(MODULES[name].read_text())) or ""
    if name in ROOMS:
        assert "May import:" in about, f"{name} does not say what it may import"
        assert "Start reading at" in about or name == "gpvi._compute"


def test_heavy_libraries_are_imported_where_they_are_used():
    heavy = {
        "blackjax",
        "flowjax",
        "matplotlib",
        "typer",
        "rich",
        "numpyro",
        "pymc",
        "sklearn",
        "arviz",
    }
    mathematics = sorted(name for name in LIBRARY if LAYER.get(room(name), 99) <= LAYER["training"])
    code = f"import sys, {', '.join(mathematics)}; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE), "JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gpvi.errors"])
def test_warnings_point_out_of_the_library(name):
    assert "warnings.warn(" not in MODULES[name].read_text(), "use gpvi.errors.warn"


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
