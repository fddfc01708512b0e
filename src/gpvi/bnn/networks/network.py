"""A network as a flat vector of weights: w ∈ R^d, x ↦ apply(w, x).

A `Network` joins a definition (how weights are drawn, how they are applied) with the layout of the flat vector. It
holds no weights: it is a plain hashable value, the same for every posterior of the same architecture.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from gpvi.bnn.networks import _frameworks as foreign
from gpvi.bnn.networks._first_layer import entered
from gpvi.bnn.networks.definitions import Definition, Functions, LocalDefinition, require_takes
from gpvi.errors import InputError, NotAvailableError
from gpvi.targets.coordinate_names import entry_names, path_name

_FITTING = " Check the number of features (or the sides and channels of images)."


class Leaf(NamedTuple):
    """One array of weights, and where it lies in the flat vector."""

    name: str
    layer: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Literal["weight", "bias"]
    """A bias is a vector, a number, what is called so, or the scales of a normalisation; all else are weights."""
    fan_in: int
    """Of a bias, that of the weights beside it; 1 where there are none."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A network over flat vectors; `from_equinox`, `from_flax`, `from_functions`, `mlp` and `lenet5` make it.

    Attributes
    ----------
    size: the number of weights.
    leaves: the arrays of weights in the order of the flat vector.
    first_layers: the layers that inputs enter, where known; else that of the first weights.
    """

    definition: Definition
    leaves: tuple[Leaf, ...]
    first_layers: tuple[str, ...]

    @classmethod
    def from_definition(cls, definition: Definition) -> "Network":
        """Lay out the flat vector for what `definition.init` draws."""
        leaves = _layout(definition, _parameter_shapes(definition))
        first = next((leaf for leaf in leaves if leaf.kind == "weight"), leaves[0])
        return cls(definition, leaves, (first.layer,))

    @classmethod
    def from_equinox(
        cls,
        module: eqx.Module | Callable[..., eqx.Module],
        trainable: PyTree | None = None,
    ) -> "Network":
        """A network from an Equinox module that maps one example, or from a function key → module.

        The function is asked for fresh weights. Of a module itself, `Linear` and `Conv` layers are drawn anew,
        uniformly in ±1/√fan_in as Equinox does, and all other weights start at the module's own values.

        Weights are all arrays of floats of JAX; those of NumPy are constants. `trainable` says it otherwise, as the
        filter of `eqx.partition` does: a function of an array, or a tree of booleans that is True for weights.
        Without it an array behind `stop_gradient` is a weight that no datum moves, and follows the prior.
        """
        return cls.from_definition(foreign.from_equinox(module, trainable))

    @classmethod
    def from_flax(cls, module: Any, example: Array | np.ndarray | None = None) -> "Network":
        """A network from a Flax Linen module and an example of its input, or from a function `nnx.Rngs` → NNX module.

        Both map batches.
        """
        made = cls.from_definition(foreign.from_flax(module, example))
        return made if example is None else made.seeing(np.asarray(example))

    @classmethod
    def from_functions(
        cls,
        init: Callable[[PRNGKeyArray], PyTree[Array]],
        apply: Callable[[PyTree[Array], Array], Array],
    ) -> "Network":
        """A network from `init(key)` → parameters and `apply(parameters, batch)` → outputs.

        Arrays of weights are taken to have their outputs on the last axis, as in `x @ w`.
        """
        require_takes(init, "init", "key")
        require_takes(apply, "apply", "parameters", "batch")
        return cls.from_definition(Functions(init, apply))

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.leaves[-1].stop

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in order."""
        return tuple(dict.fromkeys(leaf.layer for leaf in self.leaves))

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each weight: its array and its place there."""
        return tuple(name for leaf in self.leaves for name in entry_names(leaf.name, leaf.shape))

    def init(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Fresh weights, as the network's author would start training from."""
        return self.ravel(self.definition.init(key))

    def ravel(self, parameters: PyTree[Array]) -> Float[Array, " d"]:
        """Parameters as the flat vector."""
        dtype = jnp.result_type(float)
        return jnp.concatenate(
            [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(parameters)]
        )

    def unravel(self, flat: Float[Array, " d"]) -> PyTree[Array]:
        """The flat vector as parameters."""
        self.require_size(flat)
        structure = jax.tree.structure(_parameter_shapes(self.definition))
        return jax.tree.unflatten(structure, self.split(flat))

    def split(self, flat: Float[Array, " d"]) -> list[Array]:
        """The arrays of weights, one for each of `leaves`."""
        return [flat[leaf.start : leaf.stop].reshape(leaf.shape) for leaf in self.leaves]

    def apply(self, flat: Float[Array, " d"], x: Real[Array, "b ..."]) -> Float[Array, "b o"]:
        """The outputs for a batch."""
        out = self.definition.apply(self.unravel(flat), x)
        if not isinstance(out, jax.Array | np.ndarray):
            raise InputError(
                f"the network gives {type(out).__name__}; it must give one array, (batch, outputs)."
            )
        return out[:, None] if out.ndim == 1 else out

    def apply_local(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        x: Real[Array, "b ..."],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "b o"]:
        """For each datum the outputs of a network of its own, with weights N(mean, scale²)."""
        if not isinstance(self.definition, LocalDefinition):
            raise NotAvailableError(
                "local reparameterisation draws what enters each activation, which is known for the dense layers of "
                "gpvi.bnn.mlp alone. Use MeanFieldVI(local=False) for other networks."
            )
        return self.definition.apply_local(self.unravel(mean), self.unravel(scale), x, key=key)

    def seeing(self, x: Real[Array | np.ndarray, "b ..."]) -> "Network":
        """The same network, with the layers that inputs like these enter as its `first_layers`."""
        found = _entered(self.definition, x.shape[1:], self.input_dtype(x))
        layers = [
            leaf.layer for i, leaf in enumerate(self.leaves) if i in found if leaf.kind == "weight"
        ]
        return (
            dataclasses.replace(self, first_layers=tuple(dict.fromkeys(layers))) if layers else self
        )

    def input_dtype(self, x: Real[Array | np.ndarray, "b ..."]) -> np.dtype:
        """What x is for the network: floats, or int32 where x is whole and floats will not do, as for token ids."""
        if np.issubdtype(x.dtype, np.integer) and _takes_integers_only(self, x.shape[1:]):
            return np.dtype(np.int32)
        return np.dtype(jnp.result_type(float))

    def outputs(self, x: Real[Array | np.ndarray, "b ..."]) -> int:
        """The number of outputs for inputs of this shape; refuses inputs that do not fit."""
        try:
            out = _outputs(self, x.shape[1:], self.input_dtype(x))
        except InputError:
            raise
        except Exception as error:  # whatever a foreign network makes of a wrong shape
            if _takes_integers_only(self, x.shape[1:]):
                raise InputError(
                    f"the network takes whole numbers, and X has dtype {x.dtype}: pass X.astype(int)."
                ) from error
            said = f"{error}".rstrip(". \n") or type(error).__name__
            advice = _FITTING if _is_of_shapes(error) else ""
            raise InputError(
                f"the network fails on inputs of shape {tuple(x.shape[1:])}: {said}.{advice}"
            ) from error
        if out.ndim != 2 or out.shape[0] != 2:
            raise InputError(
                f"the network gives outputs of shape {out.shape} for a batch of 2; it must give (2, outputs)."
            )
        return out.shape[1]

    def require_size(self, flat: Array) -> None:
        """Refuse a vector of the wrong length."""
        if flat.shape != (self.size,):
            raise InputError(f"weights of shape {flat.shape} for a network of {self.size} weights.")


def _is_of_shapes(error: Exception) -> bool:
    """Whether a network failed for the shape of its inputs, by what it says."""
    traced = isinstance(error, jax.errors.JAXTypeError)
    return not traced and re.search(r"shape|dimension|size|ax[ei]s|rank", f"{error}") is not None


def _outputs(network: Network, shape: tuple[int, ...], dtype: np.dtype) -> jax.ShapeDtypeStruct:
    """The outputs for two inputs."""
    flat = jax.ShapeDtypeStruct((network.size,), jnp.result_type(float))
    return jax.eval_shape(network.apply, flat, jax.ShapeDtypeStruct((2, *shape), dtype))


@functools.lru_cache(maxsize=64)
def _entered(definition: Definition, shape: tuple[int, ...], dtype: np.dtype) -> frozenset[int]:
    """The numbers of the arrays that inputs enter first; none where the network fails on them."""
    leaves, structure = jax.tree.flatten(_parameter_shapes(definition))

    def apply(arrays: list[Array], x: Array) -> Array:
        return definition.apply(jax.tree.unflatten(structure, arrays), x)

    try:
        return entered(apply, leaves, jax.ShapeDtypeStruct((2, *shape), dtype))
    except Exception:  # whatever a foreign network makes of a wrong shape; `outputs` tells it
        return frozenset()


@functools.lru_cache(maxsize=64)
def _takes_integers_only(network: Network, shape: tuple[int, ...]) -> bool:
    def serves(dtype: Any) -> bool:
        try:
            _outputs(network, shape, np.dtype(dtype))
        except Exception:  # whatever a foreign network makes of a wrong type
            return False
        return True

    return not serves(jnp.result_type(float)) and serves(np.int32)


@functools.lru_cache(maxsize=64)
def _parameter_shapes(definition: Definition) -> PyTree:
    return jax.eval_shape(definition.init, jax.random.key(0))


def _layout(definition: Definition, parameters: PyTree) -> tuple[Leaf, ...]:
    """Where each array lies, and its layer: its parent, or itself where the parent holds several weights."""
    flat = jax.tree.leaves_with_path(parameters)
    if not flat:
        raise InputError("the network has no weights: its init gives an empty pytree.")
    widths: dict[tuple[Any, ...], int] = {}
    weights: Counter[tuple[Any, ...]] = Counter()
    for path, leaf in flat:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                f"the weights {_dotted(path)} have dtype {leaf.dtype}; all parameters must be real floats."
            )
        if _kind(definition, path, leaf.shape) == "weight":
            widths[path[:-1]] = definition.fan_in(path, leaf.shape)
            weights[path[:-1]] += 1
    several = {path for path, number in weights.items() if number > 1}
    leaves, start = [], 0
    for path, leaf in flat:
        kind, shape = _kind(definition, path, leaf.shape), tuple(leaf.shape)
        layer = path if path[:-1] in several else path[:-1]
        fan_in = definition.fan_in(path, shape) if kind == "weight" else widths.get(layer, 1)
        stop = start + math.prod(shape)
        leaves.append(Leaf(_dotted(path), _dotted(layer), shape, start, stop, kind, fan_in))
        start = stop
    return tuple(leaves)


def _kind(
    definition: Definition, path: tuple[Any, ...], shape: tuple[int, ...]
) -> Literal["weight", "bias"]:
    called = _dotted(path[-1:]) if path else ""
    is_bias = len(shape) < 2 or called == "bias" or definition.is_scale(path)
    return "bias" if is_bias else "weight"


def _dotted(path: tuple[Any, ...]) -> str:
    return path_name(path, "weights")
