"""A network as a function of a flat vector of weights: w ∈ R^d, x ↦ apply(w, x).

A `Network` joins a definition (how weights are drawn and applied) with the layout of the flat vector. It holds no
weights: it is a hashable value, the same for every posterior of the same architecture.
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

from gpvi.bnn.networks._first_layer import first_layer_parameters
from gpvi.bnn.networks._frameworks import equinox_definition, flax_definition
from gpvi.bnn.networks.definitions import Definition, Functions, LocalDefinition, require_takes
from gpvi.errors import InputError, NotAvailableError
from gpvi.targets.coordinate_names import entry_names, path_name

_SHAPE_ADVICE = " Check the number of features (or the sides and channels of images)."


class Leaf(NamedTuple):
    """One weight array, and where it lies in the flat vector."""

    name: str
    layer: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Literal["weight", "bias"]
    """"bias" for vectors, scalars, arrays called bias, and the scales of a normalisation layer; "weight" otherwise."""
    fan_in: int
    """The number of inputs of a unit; for a bias that of the weights of its layer, or 1 if there are none."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A network as a function of a flat vector of weights.

    Make it with `gpvi.bnn.mlp`, `gpvi.bnn.lenet5`, `Network.from_equinox`, `Network.from_flax` or
    `Network.from_functions`.

    Parameters
    ----------
    definition
        How the parameters are drawn, and how they are applied.
    leaves
        The weight arrays, in the order of the flat vector. Each has a `name`, `layer`, `shape`, `start`, `stop`, `kind`
        ("weight" or "bias") and `fan_in`.
    first_layers
        The layers that inputs enter, as far as known (see `for_inputs`); otherwise the layer of the first weights.

    Examples
    --------
    >>> network = gpvi.bnn.mlp((2, 3, 1))
    >>> [(leaf.name, leaf.shape) for leaf in network.leaves[:2]]
    [('layers.0.bias', (3,)), ('layers.0.weight', (2, 3))]
    >>> network.apply(network.init(key), jnp.ones((5, 2))).shape
    (5, 1)
    """

    definition: Definition
    leaves: tuple[Leaf, ...]
    first_layers: tuple[str, ...]

    @classmethod
    def from_definition(cls, definition: Definition) -> "Network":
        """Make a network from a definition, an object with `init`, `apply`, `fan_in` and `is_scale`.

        Parameters
        ----------
        definition
            A hashable object with these methods; see `gpvi.bnn.networks.definitions.Definition`.

        Returns
        -------
        Network
            The network, with the flat vector laid out for what `definition.init` draws.

        Raises
        ------
        gpvi.errors.InputError
            If there are no parameters, or some are not real floats.

        Examples
        --------
        >>> gpvi.bnn.Network.from_definition(gpvi.bnn.mlp((2, 1)).definition).size
        3
        """
        leaves = _layout(definition, _parameter_shapes(definition))
        first = next((leaf for leaf in leaves if leaf.kind == "weight"), leaves[0])
        return cls(definition, leaves, (first.layer,))

    @classmethod
    def from_equinox(
        cls,
        module: eqx.Module | Callable[..., eqx.Module],
        trainable: PyTree | None = None,
    ) -> "Network":
        """Make a network from an Equinox module.

        Parameters
        ----------
        module
            A function key → module, which is called for fresh weights; or a module, which maps one example. Of a
            module, `Linear` and `Conv` layers are drawn anew, uniformly in ±1/√fan_in as Equinox does; all other
            weights start at the module's own values.
        trainable
            Which arrays are weights, as in `eqx.partition`: a function of an array, or a tree of booleans. By default
            all float arrays of JAX are weights and arrays of NumPy are constants. A weight behind `stop_gradient` is
            not affected by data and follows the prior.

        Returns
        -------
        Network
            The network.

        Raises
        ------
        gpvi.errors.InputError
            If the module has no weights, holds state (BatchNorm), or has active dropout.

        Examples
        --------
        >>> import equinox as eqx
        >>> network = gpvi.bnn.Network.from_equinox(lambda key: eqx.nn.MLP(2, 1, 8, 1, key=key))
        >>> network.size
        33
        """
        return cls.from_definition(equinox_definition(module, trainable))

    @classmethod
    def from_flax(cls, module: Any, example: Array | np.ndarray | None = None) -> "Network":
        """Make a network from a Flax module, which maps a batch.

        Parameters
        ----------
        module
            A Linen module, or a function `nnx.Rngs` → NNX module.
        example
            A batch of inputs; required for Linen, which learns its shapes from it.

        Returns
        -------
        Network
            The network.

        Raises
        ------
        gpvi.errors.InputError
            If the module holds state (BatchNorm), has active dropout, or is an NNX module instead of a function.
        gpvi.errors.NotAvailableError
            If Flax is not installed.

        Examples
        --------
        >>> from flax import linen  # doctest: +SKIP
        >>> gpvi.bnn.Network.from_flax(linen.Dense(1), np.ones((2, 3))).size  # doctest: +SKIP
        4
        """
        network = cls.from_definition(flax_definition(module, example))
        return network if example is None else network.for_inputs(np.asarray(example))

    @classmethod
    def from_functions(
        cls,
        init: Callable[[PRNGKeyArray], PyTree[Array]],
        apply: Callable[[PyTree[Array], Array], Array],
    ) -> "Network":
        """Make a network from two functions.

        Parameters
        ----------
        init
            key → parameters, any pytree of float arrays. The last axis of a weight array must be its output axis, as in
            `x @ w`.
        apply
            (parameters, batch) → outputs, (b, o) or (b,).

        Returns
        -------
        Network
            The network.

        Raises
        ------
        gpvi.errors.InputError
            If a function takes other arguments, or the parameters are not float arrays.

        Examples
        --------
        >>> def init(key):
        ...     return {"w": jax.random.normal(key, (2, 1)), "b": jnp.zeros(1)}
        >>> network = gpvi.bnn.Network.from_functions(init, lambda p, x: x @ p["w"] + p["b"])
        >>> network.names
        ('b[0]', 'w[0,0]', 'w[1,0]')
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
        """The names of the layers, in the order of the flat vector."""
        return tuple(dict.fromkeys(leaf.layer for leaf in self.leaves))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each weight: its array, and its index there."""
        return tuple(name for leaf in self.leaves for name in entry_names(leaf.name, leaf.shape))

    def init(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw fresh weights, by the initialisation that the network's author chose.

        Parameters
        ----------
        key
            A JAX key.

        Returns
        -------
        Array
            The weights, (d,).

        Examples
        --------
        >>> gpvi.bnn.mlp((2, 3, 1)).init(key).shape
        (13,)
        """
        return self.ravel(self.definition.init(key))

    def ravel(self, parameters: PyTree[Array]) -> Float[Array, " d"]:
        """Return the flat vector of a pytree of parameters.

        Parameters
        ----------
        parameters
            Parameters as the definition's `init` draws them.

        Returns
        -------
        Array
            The weights, (d,).

        Examples
        --------
        >>> network = gpvi.bnn.mlp((2, 1))
        >>> network.ravel(network.unravel(jnp.arange(3.0))).tolist()
        [0.0, 1.0, 2.0]
        """
        dtype = jnp.result_type(float)
        return jnp.concatenate(
            [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(parameters)]
        )

    def unravel(self, flat: Float[Array, " d"]) -> PyTree[Array]:
        """Return the parameters as a pytree, given the flat vector.

        Parameters
        ----------
        flat
            The weights, (d,).

        Returns
        -------
        PyTree
            Parameters as the definition's `apply` takes them.

        Raises
        ------
        gpvi.errors.InputError
            If the vector has another length.

        Examples
        --------
        >>> gpvi.bnn.mlp((2, 1)).unravel(jnp.arange(3.0))["layers"][0]["weight"].tolist()
        [[1.0], [2.0]]
        """
        self.require_size(flat)
        structure = jax.tree.structure(_parameter_shapes(self.definition))
        return jax.tree.unflatten(structure, self.split(flat))

    def split(self, flat: Float[Array, " d"]) -> list[Array]:
        """Return the weight arrays, one for each of `leaves`.

        Parameters
        ----------
        flat
            The weights, (d,).

        Returns
        -------
        list of Array
            The arrays.

        Examples
        --------
        >>> [array.shape for array in gpvi.bnn.mlp((2, 1)).split(jnp.arange(3.0))]
        [(1,), (2, 1)]
        """
        return [flat[leaf.start : leaf.stop].reshape(leaf.shape) for leaf in self.leaves]

    def apply(self, flat: Float[Array, " d"], x: Real[Array, "b ..."]) -> Float[Array, "b o"]:
        """Return the outputs for a batch.

        Parameters
        ----------
        flat
            The weights, (d,).
        x
            A batch of inputs, (b, …).

        Returns
        -------
        Array
            The outputs, (b, o).

        Raises
        ------
        gpvi.errors.InputError
            If the vector has another length, or the network does not return one array.

        Examples
        --------
        >>> network = gpvi.bnn.mlp((2, 1))
        >>> network.apply(jnp.arange(3.0), jnp.ones((2, 2))).tolist()
        [[3.0], [3.0]]
        """
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
        """Return outputs for a batch in which each row has its own network, with weights N(mean, scale²).

        This is the local reparameterisation (Kingma et al. 2015), for `gpvi.MeanFieldVI(local=True)`.

        Parameters
        ----------
        mean, scale
            The means and standard deviations of the weights, (d,) each.
        x
            A batch of inputs, (b, …).
        key
            A JAX key.

        Returns
        -------
        Array
            The outputs, (b, o).

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the network is not one of `gpvi.bnn.mlp`.

        Examples
        --------
        >>> network = gpvi.bnn.mlp((2, 1))
        >>> network.apply_local(jnp.arange(3.0), jnp.zeros(3), jnp.ones((2, 2)), key=key).tolist()
        [[3.0], [3.0]]
        """
        if not isinstance(self.definition, LocalDefinition):
            raise NotAvailableError(
                "the local reparameterisation draws pre-activations, which is implemented for the dense layers of "
                "gpvi.bnn.mlp only. Use MeanFieldVI(local=False) for other networks."
            )
        return self.definition.apply_local(self.unravel(mean), self.unravel(scale), x, key=key)

    def for_inputs(self, x: Real[Array | np.ndarray, "b ..."]) -> "Network":
        """Return the same network, with `first_layers` set to the layers that inputs like x enter.

        Parameters
        ----------
        x
            Inputs, (b, …); only their shape and type matter.

        Returns
        -------
        Network
            The network.

        Examples
        --------
        >>> init = lambda key: {"output": jnp.ones((4, 1)), "z_input": jnp.ones((2, 4))}
        >>> apply = lambda p, x: jnp.tanh(x @ p["z_input"]) @ p["output"]
        >>> gpvi.bnn.Network.from_functions(init, apply).for_inputs(np.ones((5, 2))).first_layers
        ('z_input',)
        """
        numbers = _first_layer(self.definition, x.shape[1:], self.input_dtype(x))
        layers = [
            leaf.layer
            for i, leaf in enumerate(self.leaves)
            if i in numbers and leaf.kind == "weight"
        ]
        return (
            dataclasses.replace(self, first_layers=tuple(dict.fromkeys(layers))) if layers else self
        )

    def input_dtype(self, x: Real[Array | np.ndarray, "b ..."]) -> np.dtype:
        """Return the type in which x reaches the network.

        Parameters
        ----------
        x
            Inputs, (b, …).

        Returns
        -------
        numpy.dtype
            The default float type; int32 if x holds integers and the network fails on floats (token ids).

        Examples
        --------
        >>> gpvi.bnn.mlp((2, 1)).input_dtype(np.ones((5, 2), int)).kind
        'f'
        """
        if np.issubdtype(x.dtype, np.integer) and _takes_integers_only(self, x.shape[1:]):
            return np.dtype(np.int32)
        return np.dtype(jnp.result_type(float))

    def outputs(self, x: Real[Array | np.ndarray, "b ..."]) -> int:
        """Return the number of outputs for inputs like x, without computing them.

        Parameters
        ----------
        x
            Inputs, (b, …); only their shape and type matter.

        Returns
        -------
        int
            The number of outputs.

        Raises
        ------
        gpvi.errors.InputError
            If the network fails on such inputs.

        Examples
        --------
        >>> gpvi.bnn.mlp((2, 8, 3)).outputs(np.ones((5, 2)))
        3
        """
        try:
            out = _output_shape(self, x.shape[1:], self.input_dtype(x))
        except InputError:
            raise
        except Exception as error:  # a user's network may raise anything on a wrong shape
            if _takes_integers_only(self, x.shape[1:]):
                raise InputError(
                    f"the network takes whole numbers, and X has dtype {x.dtype}: pass X.astype(int)."
                ) from error
            reason = f"{error}".rstrip(". \n") or type(error).__name__
            advice = _SHAPE_ADVICE if _is_shape_error(error) else ""
            raise InputError(
                f"the network fails on inputs of shape {tuple(x.shape[1:])}: {reason}.{advice}"
            ) from error
        if out.ndim != 2 or out.shape[0] != 2:
            raise InputError(
                f"the network gives outputs of shape {out.shape} for a batch of 2; it must give (2, outputs)."
            )
        return out.shape[1]

    def require_size(self, flat: Array) -> None:
        """Refuse a vector that does not have one entry for each weight.

        Parameters
        ----------
        flat
            The weights.

        Raises
        ------
        gpvi.errors.InputError
            If the vector has another length.
        """
        if flat.shape != (self.size,):
            raise InputError(f"weights of shape {flat.shape} for a network of {self.size} weights.")


def _is_shape_error(error: Exception) -> bool:
    """Return whether the message suggests that the network failed because of the shape of its inputs."""
    traced = isinstance(error, jax.errors.JAXTypeError)
    return not traced and re.search(r"shape|dimension|size|ax[ei]s|rank", f"{error}") is not None


def _output_shape(
    network: Network, shape: tuple[int, ...], dtype: np.dtype
) -> jax.ShapeDtypeStruct:
    """Return the shape of the outputs for a batch of two."""
    flat = jax.ShapeDtypeStruct((network.size,), jnp.result_type(float))
    return jax.eval_shape(network.apply, flat, jax.ShapeDtypeStruct((2, *shape), dtype))


@functools.lru_cache(maxsize=64)
def _first_layer(definition: Definition, shape: tuple[int, ...], dtype: np.dtype) -> frozenset[int]:
    """Return the positions of the weight arrays that inputs meet first; none if the network fails on them."""
    leaves, structure = jax.tree.flatten(_parameter_shapes(definition))

    def apply(arrays: list[Array], x: Array) -> Array:
        return definition.apply(jax.tree.unflatten(structure, arrays), x)

    try:
        return first_layer_parameters(apply, leaves, jax.ShapeDtypeStruct((2, *shape), dtype))
    except Exception:  # a user's network may raise anything on a wrong shape; `outputs` reports it
        return frozenset()


@functools.lru_cache(maxsize=64)
def _takes_integers_only(network: Network, shape: tuple[int, ...]) -> bool:
    def accepts(dtype: Any) -> bool:
        try:
            _output_shape(network, shape, np.dtype(dtype))
        except Exception:  # a user's network may raise anything on a wrong type
            return False
        return True

    return not accepts(jnp.result_type(float)) and accepts(np.int32)


@functools.lru_cache(maxsize=64)
def _parameter_shapes(definition: Definition) -> PyTree:
    return jax.eval_shape(definition.init, jax.random.key(0))


def _layout(definition: Definition, parameters: PyTree) -> tuple[Leaf, ...]:
    """Lay out the weight arrays in the flat vector.

    The layer of an array is its parent in the pytree, or the array itself if the parent holds several weights.
    """
    flat = jax.tree.leaves_with_path(parameters)
    if not flat:
        raise InputError("the network has no weights: its init gives an empty pytree.")
    fan_ins: dict[tuple[Any, ...], int] = {}
    weights: Counter[tuple[Any, ...]] = Counter()
    for path, leaf in flat:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                f"the weights {_dotted(path)} have dtype {leaf.dtype}; all parameters must be real floats."
            )
        if _kind(definition, path, leaf.shape) == "weight":
            fan_ins[path[:-1]] = definition.fan_in(path, leaf.shape)
            weights[path[:-1]] += 1
    several = {path for path, number in weights.items() if number > 1}
    leaves, start = [], 0
    for path, leaf in flat:
        kind, shape = _kind(definition, path, leaf.shape), tuple(leaf.shape)
        layer = path if path[:-1] in several else path[:-1]
        fan_in = definition.fan_in(path, shape) if kind == "weight" else fan_ins.get(layer, 1)
        stop = start + math.prod(shape)
        leaves.append(Leaf(_dotted(path), _dotted(layer), shape, start, stop, kind, fan_in))
        start = stop
    return tuple(leaves)


def _kind(
    definition: Definition, path: tuple[Any, ...], shape: tuple[int, ...]
) -> Literal["weight", "bias"]:
    name = _dotted(path[-1:]) if path else ""
    is_bias = len(shape) < 2 or name == "bias" or definition.is_scale(path)
    return "bias" if is_bias else "weight"


def _dotted(path: tuple[Any, ...]) -> str:
    return path_name(path, "weights")
