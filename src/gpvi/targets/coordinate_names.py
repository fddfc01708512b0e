"""Names of coordinates: of a leaf by its path in a tree, and of each entry of an array."""

from typing import Any

import jax
import numpy as np


def path_name(path: tuple[Any, ...], alone: str = "x") -> str:
    """A leaf's name from its path in a tree: `layers.0.weight`; `alone` for a tree that is one leaf."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or alone


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """One name for each entry of an array, in row-major order: `theta[0,1]`."""
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
