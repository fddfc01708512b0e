"""Names of coordinates: a leaf is named by its path in a tree, an entry of an array by its index."""

from typing import Any

import jax
import numpy as np


def path_name(path: tuple[Any, ...], alone: str = "x") -> str:
    """The name of a leaf from its path in a tree, such as `layers.0.weight`; `alone` if the tree is a single leaf."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or alone


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """One name for each entry of an array, such as `theta[0,1]`, in row-major order."""
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
