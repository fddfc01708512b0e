"""A pytree of arrays as one flat vector."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.errors import InputError, NotAvailableError
from gpvi.targets.coordinate_names import entry_names, path_name
from gpvi.targets.models.model import split


class PytreeModel:
    """A pytree of floating-point arrays as one vector. Nothing is constrained, and no data are predicted."""

    def __init__(self, example: PyTree):
        leaves = jax.tree.leaves_with_path(example)
        for path, leaf in leaves:
            kind = np.asarray(leaf).dtype
            if not jnp.issubdtype(kind, jnp.floating):
                raise InputError(
                    f"example{jax.tree_util.keystr(path)} has dtype {kind}; only floats can be inferred. "
                    "Make it a float, or leave it out of the tree and close over it."
                )
        self._structure = jax.tree.structure(example)
        self._shapes = tuple(np.shape(leaf) for _, leaf in leaves)
        parts = [np.ravel(np.asarray(leaf, np.float64)) for _, leaf in leaves]
        self.initial = np.concatenate([np.zeros(0), *parts])
        if self.initial.size == 0:
            raise InputError(
                f"example is {example!r:.80}, which holds no numbers; give a tree of arrays."
            )
        self.names = tuple(
            name for path, leaf in leaves for name in entry_names(path_name(path), np.shape(leaf))
        )
        self.dims: dict[str, tuple[str, ...]] = {}
        self.coords: dict[str, Sequence[Any]] = {}
        self.observed: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.finite_in_double = None

    def constrain(self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None) -> PyTree:
        """The tree whose leaves are the entries of x."""
        return jax.tree.unflatten(self._structure, split(x, self._shapes))

    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
        """Nothing, since a log-density has no observed sites."""
        return {}

    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """Nothing, since a log-density has no observed sites."""
        return {}

    def predictor(self, args: tuple, kwargs: Mapping[str, Any]) -> Callable[..., dict[str, Array]]:
        """Refused: a log-density draws no data."""
        raise NotAvailableError(
            "predict draws new data from the model of a target, and this one was made of a log-density. Compute from "
            "posterior.draws(n, key=…), or write the model in NumPyro."
        )

    def of_vector(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the tree (and further arguments) as a function of x (and the same arguments)."""
        return lambda x, *rest: function(self.constrain(x), *rest)
