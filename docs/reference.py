"""The signatures of the API reference, which is read from the source alone."""

import ast
from typing import Any

from griffe import Class, Decorator, ExprName, Extension

DATACLASS = ExprName("dataclass", parent="dataclasses")


class Fields(Extension):
    """Shows the fields of a class as its parameters, where it documents parameters and has no `__init__`.

    Such a class is a dataclass by `gpvi.specs.spec` or by Equinox, or a named tuple.
    """

    def on_class_instance(self, *, node: ast.AST | Any, cls: Class, **_: Any) -> None:
        """Mark such a class as a dataclass."""
        own = any(getattr(each, "name", "") == "__init__" for each in getattr(node, "body", ()))
        documented = cls.docstring is not None and "Parameters\n" in cls.docstring.value
        if documented and not own:
            cls.decorators.append(Decorator(DATACLASS, lineno=cls.lineno, endlineno=cls.lineno))
