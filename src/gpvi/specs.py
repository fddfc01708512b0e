"""Specifications: what a user configures, as frozen dataclasses that can be saved as JSON and rebuilt.

A specification holds only plain values (numbers, strings, tuples and other specifications), so it can be
printed, compared, hashed, and rebuilt by name from a closed registry without executing anything it names.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, dataclass_transform, get_args

import jax
import jax.numpy as jnp
import numpy as np

from gpvi.errors import InputError, NotAvailableError, StorageError, UnknownOptionError

Spec = TypeVar("Spec")
_registry: dict[str, type] = {}


@dataclass_transform(frozen_default=True)
def spec(cls: type[Spec]) -> type[Spec]:
    """Make `cls` a frozen dataclass that refuses unknown options and suggests the nearest valid name."""
    made = dataclasses.dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(made) if field.init]  # pyright: ignore[reportArgumentType]
    assign = made.__init__

    @functools.wraps(assign)
    def construct(self, *args, **options):
        for name in options:
            if name not in names:
                raise UnknownOptionError(f"option of {cls.__name__}", name, names)
        assign(self, *map(_plain, args), **{name: _plain(each) for name, each in options.items()})

    made.__init__ = construct  # pyright: ignore[reportAttributeAccessIssue]
    _registry[cls.__name__] = made
    return made


def _plain(value: Any) -> Any:
    """NumPy scalars as Python's, and lists as tuples: types that JSON supports and that can be hashed."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def resolve(
    value: Any, shorthands: Mapping[str, Callable[[], Any]], kind: str, of: type | UnionType
) -> Any:
    """Turn a shorthand string into the object it stands for; pass objects `of` the right type through."""
    if isinstance(value, str):
        if value not in shorthands:
            raise UnknownOptionError(kind, value, shorthands)
        return shorthands[value]()
    if isinstance(value, type) or not isinstance(value, of):
        names = ", ".join(
            [*(["a number"] if float in get_args(of) else []), *map(repr, shorthands)]
        )
        example = type(next(iter(shorthands.values()))()).__name__
        missing = [] if isinstance(value, type) else _missing(value, of)
        lacks = f" This one lacks {', '.join(missing)}." if missing else ""
        raise InputError(
            f"{kind} is {value!r}; pass {names}, or a configured object such as {example}().{lacks}"
        )
    return value


def _missing(value: Any, of: type | UnionType) -> list[str]:
    """The members of a protocol that the value lacks."""
    if not getattr(of, "_is_protocol", False):
        return []
    names = (*getattr(of, "__annotations__", ()), *vars(of))
    return [name for name in names if not name.startswith("_") and not hasattr(value, name)]


def require_instance(name: str, value: Any, of: type | UnionType) -> None:
    """Refuse anything that is not an instance of these types, such as a class without parentheses or a name."""
    if isinstance(value, type) or not isinstance(value, of):
        types = ", ".join(f"{each.__name__}(…)" for each in get_args(of | None)[:-1])
        raise InputError(f"{name} is {value!r}; it must be an object: {types}.")


def require_choice(value: Any, valid: tuple[str, ...], kind: str) -> None:
    """Refuse a string option outside `valid`."""
    if value not in valid:
        raise UnknownOptionError(kind, value, valid)


def hyphenated(name: str) -> str:
    """AmortizedSVGD → amortized-svgd."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def is_whole(value: Any) -> bool:
    """Whether it is an integer, Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number, Python's or NumPy's."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def require_positive(name: str, value: Any, remedy: str) -> None:
    """Refuse anything but a finite number > 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise InputError(f"{name} is {value!r}; it must be > 0 and finite. {remedy}")


def require_between(name: str, value: Any, low: int, high: int) -> None:
    """Refuse anything but a number strictly between two others."""
    if not is_number(value) or not low < value < high:
        raise InputError(f"{name} is {value!r}; it must be a number between {low} and {high}.")


def require_flag(name: str, value: Any) -> None:
    """Refuse anything but True or False, such as "no", which is truthy."""
    if not isinstance(value, bool | np.bool):
        raise InputError(f"{name} is {value!r}; it must be True or False.")


def require_key(key: Any) -> None:
    """Refuse anything but a single key, such as a bare seed."""
    is_array = isinstance(key, jax.Array)
    typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = is_array and key.dtype == jnp.uint32 and key.ndim == 1
    if not typed and not raw:
        seed = key if isinstance(key, int) else 0
        raise InputError(f"key is {key!r}; pass one JAX key, such as jax.random.key({seed}).")


def require_count(name: str, value: Any, remedy: str) -> None:
    """Refuse anything but an integer ≥ 1."""
    if not is_whole(value) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number ≥ 1. {remedy}")


def to_json(value: Any) -> Any:
    """Encode a specification (and what it nests) as JSON values tagged with class names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    name = type(value).__name__
    if _registry.get(name) is type(value):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": name, **fields}
    raise InputError(
        f"{value!r} of type {name} cannot be saved: only numbers, strings, tuples and this library's own "
        "specifications can. Pass one of those instead of a custom object."
    )


def from_json(value: Any) -> Any:
    """Rebuild what `to_json` wrote; only classes in this library's registry are instantiated."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if isinstance(value, dict):
        fields = dict(value)
        name = fields.pop("type", None)
        if not isinstance(name, str) or name not in _registry:
            raise StorageError(
                f"the saved specification names {str(name)[:80]!r}, which this version of gpvi does not know. "
                "It may come from a newer version: upgrade gpvi."
            )
        try:
            return _registry[name](**{key: from_json(item) for key, item in fields.items()})
        except (TypeError, ValueError, AttributeError, NotAvailableError) as error:
            why = str(error)[:500]
            raise StorageError(f"the saved specification of {name} is invalid: {why}") from error
    return value


def completed(value: Any) -> Any:
    """JSON values as `to_json` writes them today: fields that are newer than the document get their defaults."""
    if isinstance(value, list):
        return [completed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "type" in value:
        return to_json(from_json(value))
    return {key: completed(item) for key, item in value.items()}
