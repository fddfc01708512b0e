"""Everything public is documented: its parameters, what it returns, and an example that runs.

`python tests/test_docstrings.py` prints what is missing, module by module.
"""

import ast
import dataclasses
import doctest
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi

MODULES = (
    "gpvi",
    "gpvi.bnn",
    "gpvi.generators",
    "gpvi.kernels",
    "gpvi.solvers",
    "gpvi.directions",
    "gpvi.methods",
    "gpvi.metrics",
    "gpvi.supports",
    "gpvi.targets",
    "gpvi.cache",
)
"""What a user reaches as `gpvi.X` and `gpvi.module.X`."""
WITH_METHODS = ("Target", "Posterior", "Stream", "Network", "Predictive")
"""Classes whose methods a user calls; methods may do without an example."""
LONG_FLOAT = re.compile(r"\d\.\d{4,}|\d[eE]-?\d")
"""A printed number whose last digits may differ on another machine."""


class Public(NamedTuple):
    """A class, a function, a method or a property that a user may name."""

    module: str
    name: str
    value: Any
    owner: type | None = None

    @property
    def text(self) -> str:
        """The docstring of its own; a method may inherit that of the protocol it implements."""
        raw = inspect.getdoc(self.value) if self.owner else self.value.__doc__
        return inspect.cleandoc(raw or "")


def exported(module: ModuleType) -> list[str]:
    """The names that a module offers: those it defines, and those it imports `as` themselves."""
    tree, names = ast.parse(Path(module.__file__ or "").read_text()), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [each.name for each in node.names if each.name == each.asname]
    names += [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def public() -> Iterator[Public]:
    """Every public object once, under the first name that it has."""
    seen = set()
    for place in MODULES:
        module = importlib.import_module(place)
        for name in exported(module):
            value = getattr(module, name)
            if not callable(value) or get_origin(value) is not None or id(value) in seen:
                continue
            seen.add(id(value))
            yield Public(place, name, value)
            if isinstance(value, type) and name in WITH_METHODS:
                yield from methods(place, name, value)


def methods(place: str, name: str, owner: type) -> Iterator[Public]:
    for attribute in sorted(dir(owner)):
        value = inspect.getattr_static(owner, attribute)
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if not attribute.startswith("_") and isinstance(value, FunctionType | property):
            yield Public(place, f"{name}.{attribute}", value, owner)


def parameters(one: Public) -> list[str]:
    """The names that a caller may give; of a specification, its fields."""
    if isinstance(one.value, property) or getattr(one.value, "_is_protocol", False):
        return []
    names = [field.name for field in fields(one.value) if field.init]
    if not names:
        names = list(inspect.signature(one.value).parameters)
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def fields(value: Any) -> tuple[dataclasses.Field, ...]:
    """Those of a dataclass that has no `__init__` of its own."""
    made = dataclasses.is_dataclass(value) and "__init__" not in vars(value)
    return dataclasses.fields(value) if made else ()


def returns(one: Public) -> bool:
    if inspect.isclass(one.value) or isinstance(one.value, property):
        return False
    return inspect.signature(one.value).return_annotation not in (None, "None")


def sections(text: str) -> dict[str, str]:
    """The parts of a numpydoc docstring by their underlined headings; "" is what stands above them."""
    pieces = re.split(r"^(\S.*)\n-{3,}$", text, flags=re.MULTILINE)
    return {"": pieces[0]} | dict(zip(pieces[1::2], pieces[2::2], strict=True))


def described(section: str) -> set[str]:
    """The names that a section of parameters describes: `name`, `name : type` or `one, two`."""
    entries = re.findall(r"^(\S.*)\n[ ]+\S", section, flags=re.MULTILINE)
    names = (entry.split(" : ")[0].split(":")[0] for entry in entries)
    return {name.strip().lstrip("*") for entry in names for name in entry.split(",")}


def missing(one: Public) -> list[str]:
    """What a docstring lacks."""
    parts = sections(one.text)
    if not parts[""].strip():
        return ["a docstring"]
    lacks = []
    if left := [
        name for name in parameters(one) if name not in described(parts.get("Parameters", ""))
    ]:
        lacks.append(f"Parameters: {', '.join(left)}")
    if returns(one) and not parts.keys() & {"Returns", "Yields"}:
        lacks.append("Returns")
    if one.owner is None and not examples(one):
        lacks.append("Examples")
    return lacks


def examples(one: Public) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(sections(one.text).get("Examples", ""))


PUBLIC = list(public())
NAMES = [f"{one.module}.{one.name}" for one in PUBLIC]


def test_the_walk_finds_what_is_known():
    assert {"gpvi.fit", "gpvi.GPVI", "gpvi.Target", "gpvi.Target.checked"} <= set(NAMES)
    assert {"gpvi.bnn.BayesianMLPRegressor", "gpvi.metrics.auroc"} <= set(NAMES)
    assert "gpvi.methods.GPVI" not in NAMES, "once"
    assert not any("._" in name for name in NAMES)


def test_what_is_missing_is_found():
    def bare(x): ...

    def wrong():
        """Say something.

        Examples
        --------
        >>> 1 + 1
        3
        """

    def half(x, y) -> int:
        """Say something.

        Parameters
        ----------
        x : int
            A number.
        """
        return x + y

    def full(x, y=1, *rest, **options) -> int:
        """Say something.

        Parameters
        ----------
        x, y
            Numbers.
        *rest
            More.
        **options
            Others.

        Returns
        -------
        int
            Their sum.

        Examples
        --------
        >>> 1 + 1
        2
        """
        return x + y

    @dataclasses.dataclass
    class Fields:
        """A specification without a word on `size`."""

        size: int

    def lacks(value):
        return missing(Public("here", value.__name__, value))

    assert lacks(bare) == ["a docstring"]
    assert lacks(half) == ["Parameters: y", "Returns", "Examples"]
    assert lacks(full) == []
    assert differences(Public("here", "full", full)) == ""
    assert "Expected:\n    3\nGot:\n    2" in differences(Public("here", "wrong", wrong))
    assert lacks(Fields) == ["Parameters: size", "Examples"]


@pytest.mark.parametrize("one", PUBLIC, ids=NAMES)
def test_public_names_are_documented(one):
    assert not missing(one)


@pytest.mark.parametrize("one", PUBLIC, ids=NAMES)
def test_examples_print_no_long_floats(one):
    for example in examples(one):
        assert not LONG_FLOAT.search(example.want), f"{example.source}{example.want}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "one",
    [one for one in PUBLIC if examples(one)],
    ids=[name for name, one in zip(NAMES, PUBLIC, strict=True) if examples(one)],
)
def test_examples_run(one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert differences(one) == ""


def differences(one: Public) -> str:
    """Where the examples of one object print something else than they say."""
    names = {"gpvi": gpvi, "jax": jax, "jnp": jnp, "np": np, "key": jax.random.key(0)}
    test = doctest.DocTest(examples(one), names, one.name, None, None, one.text)
    flags, reports = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, []
    doctest.DocTestRunner(verbose=False, optionflags=flags).run(test, out=reports.append)
    return "".join(reports)


def main() -> None:
    """Print what is missing, module by module."""
    for place in MODULES:
        there = [one for one in PUBLIC if one.module == place]
        lacking = {one.name: missing(one) for one in there if missing(one)}
        print(f"{place}: {len(there) - len(lacking)} of {len(there)} documented")
        for name, lacks in lacking.items():
            print(f"    {name}: {'; '.join(lacks)}")


if __name__ == "__main__":
    with warnings.catch_warnings(action="ignore"):
        main()
