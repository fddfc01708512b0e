"""A target from a user's Python file: FILE.py:NAME, a log-density, a NumPyro or PyMC model, or a `gpvi.Target`.

The file is run, as by `python FILE.py`. Errors in it are reported with their line.
"""

import dis
import functools
import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpvi.errors import GPVIError, InputError, UnknownOptionError

if TYPE_CHECKING:
    from gpvi.targets.target import Target

DEFAULT_NAME = "log_density"
_MODULE = "gpvi_user_file"


def target(place: str, dim: int | None) -> "Target":
    """Return the target that `place`, FILE.py or FILE.py:NAME, defines, after checking it at its starting point."""
    path, name = split(place)
    value = _find(_run(path), path, name)
    with blaming(path):
        found = _as_target(value, path, name, dim)
        try:
            with found.precision():
                found = found.checked()
        except InputError as error:
            if "initial=" not in str(error) or value is found:
                raise
            raise InputError(
                f"{error} Here: write `target = gpvi.Target({name}, dim={found.dim}, initial=…)` into {path}, and pass "
                f"{path}:target."
            ) from error.__cause__
    return found


def split(place: str) -> tuple[Path, str]:
    """Split FILE.py:NAME into the file and the name, which is `log_density` by default."""
    given = re.fullmatch(r"(.+?)(?::(\w+))?", place, re.DOTALL)
    if given is None:
        raise InputError(f"the file is missing: give FILE.py or FILE.py:NAME, not {place!r}.")
    return Path(given[1]), given[2] or DEFAULT_NAME


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn an error that arose in the user's file into one that names the line. Other errors pass unchanged."""
    try:
        yield
    except SystemExit as error:
        line = _line(error, path)
        if line is None:
            raise
        raise InputError(
            f"{path}, line {line}: the program is ended here (sys.exit, exit or a parser of arguments), before there "
            "is a posterior. Take it out, or put it under `if __name__ == '__main__':`."
        ) from error
    except Exception as error:
        cause = error.__cause__ if isinstance(error, GPVIError) else error
        line = _line(cause, path)
        if line is None:
            raise
        what = str(error) if isinstance(error, GPVIError) else f"{type(error).__name__}: {error}."
        raise InputError(f"{path}, line {line}: {_untraced(cause) or what}") from error


def _untraced(error: BaseException | None) -> str:
    """Return what to do if a function needs a concrete value while it is traced; nothing for other errors."""
    import jax

    if not isinstance(
        error,
        jax.errors.TracerArrayConversionError
        | jax.errors.TracerBoolConversionError
        | jax.errors.TracerIntegerConversionError
        | jax.errors.ConcretizationTypeError,
    ):
        return ""
    return (
        f"the function needs the value of an array while it is compiled ({type(error).__name__}). Write it with "
        "jax.numpy instead of numpy or math, jnp.where instead of an if on values, and without float(), int() or "
        ".item(), and with arrays instead of pandas columns (.values)."
    )


def _run(path: Path) -> ModuleType:
    if (wrong := _no_file(path)) is not None:
        raise InputError(
            f"{str(path)[:200]!r} {wrong}. Give a Python file and the name of a function in it: FILE.py:{DEFAULT_NAME}."
        )
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with blaming(path):
            spec.loader.exec_module(module)
    except GPVIError:
        raise
    except (RecursionError, MemoryError, ValueError) as error:  # too deep, or with zero bytes
        raise InputError(f"{path} is not Python: {type(error).__name__}: {error}.") from error
    except SyntaxError as error:
        text = f" in “{error.text.strip()}”" if error.text else ""
        raise InputError(
            f"{error.filename or path}, line {error.lineno}: {error.msg}{text}. Correct it and run again."
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _no_file(path: Path) -> str | None:
    """Return why the path is not a file that can be run; None if it is one."""
    try:
        if path.is_file():
            return None
        if path.is_dir():
            return "is a directory"
        return "is not a regular file" if path.exists() else "does not exist"
    except (OSError, ValueError) as error:  # a name too long, or with a zero byte
        return f"cannot be a file ({getattr(error, 'strerror', None) or error})"


def _find(module: ModuleType, path: Path, name: str) -> Any:
    """Return the object of this name. The error for an unknown name suggests similar ones."""
    if hasattr(module, name):
        return getattr(module, name)
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and _usable(value) and not isinstance(value, type)
    ]
    raise UnknownOptionError(f"name in {path}:", name, own)


def _usable(value: Any) -> bool:
    from gpvi.targets.models import pymc
    from gpvi.targets.target import Target

    own = getattr(value, "__module__", None) == _MODULE
    return isinstance(value, Target) or pymc.is_model(value) or (callable(value) and own)


def _as_target(value: Any, path: Path, name: str, dim: int | None) -> "Target":
    from gpvi.targets.models import pymc
    from gpvi.targets.target import Target

    if pymc.is_model(value):
        value = Target.from_pymc(value)
    if not isinstance(value, Target):
        if not callable(value) or isinstance(value, type):
            raise InputError(
                f"{name} in {path} is {type(value).__name__} {str(value)[:40]!r}; it must be a function of one point, "
                "a NumPyro model without arguments, a PyMC model, or a gpvi.Target."
            )
        needed = _needed(value)
        if needed and _samples(value):
            listed = ", ".join(needed)
            bound = ", ".join(f"{argument}=…" for argument in needed)
            raise InputError(
                f"{name} in {path} looks like a NumPyro model that needs {listed}. Bind what it needs in the file, and "
                f"give the new name: a function of no arguments that calls {name}({bound}), "
                f"functools.partial({name}, {bound}), or gpvi.Target.from_numpyro({name}, {bound})."
            )
        if len(needed) > 1:
            raise InputError(
                f"{name} in {path} needs {len(needed)} arguments; a log-density takes one, the point x. Bind the "
                "others in the file: functools.partial, or a gpvi.Target."
            )
        if needed and dim is None:
            raise InputError(
                f"--dim is missing: the length of the vector that {name} in {path} takes."
            )
        if needed:
            return Target(value, dim=dim)
        value = Target.from_numpyro(value)
    if dim is not None and dim != value.dim:
        raise InputError(
            f"--dim is {dim}, but {name} in {path} has {value.dim} dimensions. Omit --dim."
        )
    return value


def _needed(function: Callable) -> list[str]:
    """Return the names of the required arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["x"]
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in open_ended and p.default is p.empty]


def _samples(function: Callable) -> bool:
    """Return whether the code of a function itself calls numpyro.sample."""
    numpyro = sys.modules.get("numpyro")
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if numpyro is None or not inspect.isfunction(function):
        return False
    known = {"numpyro": numpyro} | function.__globals__
    words = [step.argval for step in dis.get_instructions(function)]
    names = [word for word in words if isinstance(word, str)]
    return any(known.get(name) is numpyro.sample for name in names) or any(
        known.get(one) is numpyro and two == "sample" for one, two in itertools.pairwise(names)
    )


def _line(error: BaseException | None, path: Path) -> int | None:
    """Return the innermost line of the file in the traceback of an error, if there is one."""
    if error is None or isinstance(error, SyntaxError):
        return None
    here = path.resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    return lines[-1] if lines else None
