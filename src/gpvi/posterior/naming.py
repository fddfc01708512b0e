"""How draws are named: as one vector, coordinate by coordinate, by supports, or by the model of the target.

All but the last are data, which a saved posterior keeps; a model is code, and needs the target.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi import specs
from gpvi.errors import InputError
from gpvi.supports import Support, Supports
from gpvi.targets.target import Target

VECTOR, COORDINATES, MODEL = "vector", "coordinates", "model"
Naming = str | Supports
"""One of these three, or the supports of the unknowns."""
AT_ONCE = 256
"""Draws that are constrained, or predicted from, at the same time."""
STATES = 1
"""Sets the key of discrete states apart from that of the draws they belong to."""


def naming_of(target: Target) -> Naming:
    """Return how draws of a target are named."""
    if isinstance(target.model, Supports):
        return target.model
    if target.model is not None:
        return MODEL
    return VECTOR if target.naming is None or _default(target.names) else COORDINATES


def naming_of_names(names: Sequence[str]) -> Naming:
    """Return how draws are named if only the names of the coordinates are known."""
    return VECTOR if _default(names) else MODEL


def named(target: Target, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> PyTree:
    """Return draws as the target's model names and constrains them, each array with a first axis of n.

    Without a model these are `{"x": x}`, or one variable per coordinate if the target has names of its own. `key` draws
    what x does not determine, such as discrete states that were summed out.
    """
    if target.model is not None and not isinstance(target.model, Supports):
        keys = jax.random.split(jax.random.fold_in(key, STATES), len(x))
        return over_draws(target.model.constrain, x, key=keys)
    return named_by(naming_of(target), lambda: target.names, x)


def named_by(
    naming: Naming, names: Callable[[], Sequence[str]], x: Float[Array, "n d"]
) -> dict[str, Array]:
    """Return draws by name, without a target; `naming` must not be `MODEL`."""
    if isinstance(naming, Supports):
        drawn = over_draws(naming.constrain, x)
        return {name: drawn[name] for name in naming.unknowns}
    return {"x": x} if naming == VECTOR else {name: x[:, i] for i, name in enumerate(names())}


@eqx.filter_jit
def over_draws(function: Callable[..., PyTree], *rows: Any, **named: Any) -> PyTree:
    """Evaluate `function` at every row, a block of rows at a time; compiled once for each function."""
    return jax.lax.map(lambda row: function(*row[0], **row[1]), (rows, named), batch_size=AT_ONCE)


def to_json(naming: Naming) -> Any:
    """Return JSON values; supports of a class that files cannot hold are left to the target."""
    try:
        return specs.to_json(naming)
    except InputError:
        return MODEL


def is_naming(value: Any, dim: int) -> bool:
    """Return whether a value that a file held names draws of this dimension."""
    if not isinstance(value, Supports):
        return value in (VECTOR, COORDINATES, MODEL)
    strings = all(isinstance(name, str) for name in value.unknowns)
    supports = all(isinstance(each, Support) for each in value.supports)
    distinct = len(set(value.unknowns)) == len(value.unknowns) == len(value.supports)
    return strings and supports and distinct and value.dim == dim


def _default(names: Sequence[str]) -> bool:
    return all(name == f"x[{i}]" for i, name in enumerate(names))
