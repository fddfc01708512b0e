"""Specifications: what a user configures, as frozen dataclasses that can be saved as JSON and rebuilt.

A specification holds only plain values (numbers, strings, tuples and other specifications), so it can be printed,
compared, hashed and saved. It is rebuilt by the name of its class, which must be in a registry of known classes:
nothing that a file contains is executed. `spec` adds a class to the registry.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import isabstract
from types import UnionType
from typing import Any, TypeVar, dataclass_transform, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gpvi.errors import InputError, NotAvailableError, StorageError, UnknownOptionError, brief

SEEDS = 2**32
"""Seeds are integers below this number. JAX would reduce larger ones modulo it."""
MOST = 2**31 - 1
"""The largest size and number of steps: they are counted in 32 bits."""
Spec = TypeVar("Spec")
_registry: dict[str, type] = {}


@dataclass_transform(frozen_default=True)
def spec(cls: type[Spec]) -> type[Spec]:
    """Make a class a specification: a frozen dataclass that `save` can write and `load` can rebuild.

    Use it as a decorator on your own generators, directions, kernels, solvers, methods, likelihoods and priors. The
    fields must be numbers, strings, booleans, None, tuples of these, or other specifications. An unknown option is
    refused with the nearest valid name.

    Parameters
    ----------
    cls
        A class with annotated fields. Its name identifies it in saved files. If it is redefined, as when a cell of a
        notebook is run again, the new class replaces the old one.

    Returns
    -------
    type
        The class, as a frozen dataclass.

    Raises
    ------
    gpvi.errors.InputError
        If another specification has this name: one of the library, or one that is defined elsewhere.

    Examples
    --------
    >>> @gpvi.specs.spec
    ... class Tempered(gpvi.kernels.Kernel):
    ...     power: float = 2.0
    ...
    ...     def profile(self, squares, h):
    ...         value = (1 + squares / h) ** -self.power
    ...         return value, -self.power * value / (h + squares)
    >>> Tempered(power=0.5)
    Tempered(bandwidth='median', power=0.5)
    """
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
    _require_free(made, _registry)
    _registry[cls.__name__] = made
    return made


def known_classes(classes: Iterable[Any] = ()) -> dict[str, type]:
    """Return the classes that a file may name: all registered ones, and those given, which may replace a user's own.

    Parameters
    ----------
    classes
        Dataclasses to know beside those that `spec` has registered.

    Returns
    -------
    dict
        The classes by name.

    Raises
    ------
    gpvi.errors.InputError
        If one of them is no dataclass, or if two of them, or one of them and a class of the library, share a name.
    """
    known = {name: cls for name, cls in _registry.items() if _in_library(cls)}
    if not isinstance(classes, Iterable):
        raise InputError(f"classes is {brief(classes)}; pass a list of classes, [Mine].")
    for cls in classes:
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            raise InputError(
                f"classes holds {cls!r}; pass classes that are decorated with gpvi.specs.spec."
            )
        _require_free(cls, known)
        known[cls.__name__] = cls
    return _registry | known


def _require_free(cls: type, known: Mapping[str, type]) -> None:
    """Refuse a class whose name belongs to a class that is defined elsewhere."""
    other = known.get(cls.__name__, cls)
    if _place(other) != _place(cls):
        owner = "of this library" if _in_library(other) else "that is already known"
        raise InputError(
            f"{_place(cls)} has the name of {_place(other)}, a specification {owner}. Saved files tell classes apart "
            "by their names: rename yours."
        )


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _in_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "gpvi"


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python's and lists to tuples, which JSON supports and which can be hashed."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def resolve(
    value: Any, shorthands: Mapping[str, Callable[[], Any]], kind: str, of: type | UnionType
) -> Any:
    """Turn a shorthand string into the object it stands for; return an object `of` the right type as it is."""
    if isinstance(value, str):
        if value not in shorthands:
            raise UnknownOptionError(kind, value, shorthands)
        return shorthands[value]()
    if isinstance(value, type) or not isinstance(value, of):
        names = ", ".join(
            [*(["a number"] if float in get_args(of) else []), *map(repr, shorthands)]
        )
        example = type(next(iter(shorthands.values()))()).__name__
        raise InputError(
            f"{kind} is {brief(value)}; pass {names}, or a configured object such as {example}()."
            + _advice(value, of)
        )
    return value


def _advice(value: Any, of: type | UnionType) -> str:
    """Say what an object of a class of the user's own needs to be accepted."""
    if isinstance(value, type) or not isinstance(of, type) or not isabstract(of):
        return ""
    package = ".".join(of.__module__.split(".")[:2])
    return f" A class of your own must be a subclass of {package}.{of.__name__}."


def require_instance(name: str, value: Any, of: type | UnionType) -> None:
    """Refuse anything that is not an instance of these types, such as a class without parentheses or a name."""
    if isinstance(value, type) or not isinstance(value, of):
        types = ", ".join(
            f"{each}(…)"
            for each, cls in _registry.items()
            if _in_library(cls) and issubclass(cls, of)
        )
        raise InputError(
            f"{name} is {brief(value)}; it must be an object: {types}.{_advice(value, of)}"
        )


def require_choice(value: Any, valid: tuple[str, ...], kind: str) -> None:
    """Refuse a string option outside `valid`."""
    if value not in valid:
        raise UnknownOptionError(kind, value, valid)


def hyphenated(name: str) -> str:
    """Return a class name as a command line writes it: AmortizedSVGD → amortized-svgd."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer, Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, Python's or NumPy's."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def require_positive(name: str, value: Any, remedy: str) -> None:
    """Refuse anything but a finite number > 0."""
    if not is_number(value) or not 0 < value <= sys.float_info.max:
        raise InputError(f"{name} is {brief(value)}; it must be > 0 and finite. {remedy}")


def require_between(name: str, value: Any, low: int, high: int) -> None:
    """Refuse anything but a number strictly between two others."""
    if not is_number(value) or not low < value < high:
        raise InputError(f"{name} is {brief(value)}; it must be a number between {low} and {high}.")


def require_flag(name: str, value: Any) -> None:
    """Refuse anything but True or False, such as "no", which is truthy."""
    if not isinstance(value, bool | np.bool):
        raise InputError(f"{name} is {brief(value)}; it must be True or False.")


def as_key(key: Any) -> PRNGKeyArray:
    """Return a single JAX key as it is, and a whole number as the key of this seed."""
    if is_whole(key):
        if not 0 <= key < SEEDS:
            raise InputError(f"key is {brief(key)}; as a seed it must be from 0 to {SEEDS - 1:,}.")
        return jax.random.key(int(key))
    is_array = isinstance(key, jax.Array)
    typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = is_array and key.dtype == jnp.uint32 and key.ndim == 1
    if not typed and not raw:
        raise InputError(
            f"key is {brief(key)}; pass a seed, such as 0, or one JAX key, such as jax.random.key(0)."
        )
    return key


def require_count(name: str, value: Any, remedy: str, *, least: int = 1) -> None:
    """Refuse anything but an integer ≥ 1, or ≥ `least`."""
    if not is_whole(value) or value < least:
        raise InputError(f"{name} is {brief(value)}; it must be a whole number ≥ {least}. {remedy}")
    if value > MOST:
        raise InputError(f"{name} is {brief(value)}; it may be {MOST:,} at most. {remedy}")


def to_json(value: Any) -> Any:
    """Encode a specification, and the specifications in it, as JSON values tagged with class names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    name = type(value).__name__
    if name in _registry and _place(_registry[name]) == _place(type(value)):
        fields = {
            f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init
        }
        return {"type": name, **fields}
    raise InputError(
        f"{value!r} of type {name} cannot be saved: only numbers, strings, tuples and specifications can. If the class "
        "is your own, decorate it with gpvi.specs.spec."
    )


def from_json(value: Any, known: Mapping[str, type] | None = None) -> Any:
    """Rebuild what `to_json` wrote; only `known` classes, by default all registered ones, are instantiated.

    A class that has come to refuse what older documents hold defines `current_options`, which rewrites their fields.
    """
    known = _registry if known is None else known
    if isinstance(value, list):
        return tuple(from_json(item, known) for item in value)
    if isinstance(value, dict):
        fields = dict(value)
        name = fields.pop("type", None)
        if not isinstance(name, str) or name not in known:
            raise StorageError(
                f"the saved specification names the class {str(name)[:80]!r}, which gpvi does not know. If it is your "
                "own, import the module that defines it before loading, or pass it as classes=[…]. Otherwise the file "
                "may come from a newer version: upgrade gpvi."
            )
        try:
            made = {key: from_json(item, known) for key, item in fields.items()}
            current = getattr(known[name], "current_options", dict)
            return known[name](**current(made))
        except (TypeError, ValueError, AttributeError, NotAvailableError) as error:
            why = str(error)[:500]
            raise StorageError(f"the saved specification of {name} is invalid: {why}") from error
    return value


def completed(value: Any) -> Any:
    """Rewrite JSON values as `to_json` writes them today: fields newer than the document get their defaults."""
    if isinstance(value, list):
        return [completed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "type" in value:
        return to_json(from_json(value))
    return {key: completed(item) for key, item in value.items()}
