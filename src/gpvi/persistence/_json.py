"""Strict JSON, bounded in size and depth before anything else sees it.

JSON has no infinities and no NaN, but a diagnostic may be either, and that must not cost the user a posterior. Such a
float is written as `{"$float": "nan"}` (or `"inf"`, `"-inf"`) and comes back as a float.

Everything here raises `ValueError` for a value that cannot be written or a text that cannot be read.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:
    Json = (
        object  # run-time type checkers cannot follow a recursive alias; `encode` checks by itself
    )

MAX_NESTING = 64
MAX_ELEMENTS = 1_000_000
"""Lists, objects and commas in a text. Three bytes, `[],`, make a list of 56, so a bound on bytes is not enough."""

_FLOAT = "$float"
_NON_FINITE = ("nan", "inf", "-inf")


def encode(value: object, where: str, depth: int = 0) -> Json:
    """Convert `value` to JSON's own types, and spell out non-finite floats.

    Tuples become lists. `where` names the value in error messages.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if depth == MAX_NESTING:
        raise ValueError(f"{where[:80]}… is nested more than {MAX_NESTING} deep. Flatten it.")
    if isinstance(value, list | tuple):
        return [encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}; JSON keys are strings. Use one.")
            if key == _FLOAT:
                raise ValueError(f"{where} has the key {_FLOAT!r}, which is reserved. Rename it.")
        return {key: encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise ValueError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold. Convert it to None, bool, "
        "int, float, str, list or dict, or pass it among the arrays."
    )


def dump(value: Json, indent: int | None = None) -> bytes:
    """Return the text of a value in JSON's own types."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(
            value, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except ValueError as error:  # text that is not Unicode, integers of thousands of digits
        raise ValueError(
            f"the document cannot be written as JSON: {error}. Change that value."
        ) from error


def parse(content: bytes) -> Any:
    """Parse JSON as it stands."""
    return _parse(content, _object)


def parse_encoded(content: bytes) -> Any:
    """Parse JSON that `encode` prepared: non-finite floats come back as floats."""
    return _parse(content, _object_or_float)


def count_elements(content: bytes) -> int:
    """Bound the number of values in a JSON text from above, without parsing it."""
    return sum(map(content.count, (b"[", b"{", b",")))


def _parse(content: bytes, make_object: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    elements = count_elements(content)
    if elements > MAX_ELEMENTS:
        raise ValueError(f"its JSON has about {elements:,} elements, more than {MAX_ELEMENTS:,}")
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=make_object,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
        _check_nesting(value)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"it does not hold valid JSON: {str(error)[:200]}") from error
    return value


def _check_nesting(value: Any) -> None:
    """Refuse JSON that parses but is so deep that a recursive reader would overflow the stack."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_NESTING + 1):  # in version 1 the document stands within the manifest
        containers = [
            item
            for container in containers
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    if containers:
        raise RecursionError


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return mapping


def _object_or_float(pairs: list[tuple[str, Any]]) -> dict[str, Any] | float:
    mapping = _object(pairs)
    if _FLOAT not in mapping:
        return mapping
    if len(mapping) > 1 or mapping[_FLOAT] not in _NON_FINITE:
        raise ValueError(f"{_FLOAT!r} is not alone with one of {_NON_FINITE}")
    return float(mapping[_FLOAT])


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
