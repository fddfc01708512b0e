"""A network as a flat vector of weights: w ∈ R^d, x ↦ apply(w, x).

A `Network` joins a definition (how weights are drawn, how they are applied) with the layout of the flat vector. It
holds no weights: it is a plain hashable value, the same for every posterior of the same architecture.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.bnn.convolution import Padding, convolve, max_pool
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators.base import ACTIVATIONS
from gpvi.names import entries, path_name
from gpvi.specs import require_choice


@runtime_checkable
class Definition(Protocol):
    """What makes a network: its parameters as a pytree, and what it does with them."""

    def init(self, key: PRNGKeyArray, /) -> PyTree[Array]:
        """Fresh parameters."""
        ...

    def apply(self, parameters: PyTree[Array], x: Float[Array, "b ..."], /) -> Float[Array, "b o"]:
        """The outputs for a batch."""
        ...

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """How many inputs a unit of this array of weights sums; not asked for biases."""
        ...


class Leaf(NamedTuple):
    """One array of weights, and where it lies in the flat vector."""

    name: str
    layer: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Literal["weight", "bias"]
    """A bias is a vector, a number or what is called so; anything else is a weight."""
    fan_in: int
    """Of a bias, that of the weights beside it; 1 where there are none."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A network over flat vectors; `from_equinox`, `from_flax`, `from_functions`, `mlp` and `lenet5` make it.

    Attributes
    ----------
    size: the number of weights.
    leaves: the arrays of weights in the order of the flat vector.
    """

    definition: Definition
    leaves: tuple[Leaf, ...]

    @classmethod
    def from_definition(cls, definition: Definition) -> "Network":
        """Lay out the flat vector for what `definition.init` draws."""
        parameters = jax.eval_shape(definition.init, jax.random.key(0))
        return cls(definition, _layout(definition, parameters))

    @classmethod
    def from_equinox(cls, module: eqx.Module | Callable[..., eqx.Module]) -> "Network":
        """A network from an Equinox module that maps one example, or from a function key → module.

        The function is asked for fresh weights. Of a module itself, `Linear` and `Conv` layers are drawn anew,
        uniformly in ±1/√fan_in as Equinox does, and all other arrays start at the module's own values.
        """
        return cls.from_definition(_from_equinox(module))

    @classmethod
    def from_flax(cls, module: Any, example: Array | np.ndarray | None = None) -> "Network":
        """A network from a Flax Linen module and an example of its input, or from a function `nnx.Rngs` → NNX module.

        Both map batches.
        """
        return cls.from_definition(_from_flax(module, example))

    @classmethod
    def from_functions(
        cls,
        init: Callable[[PRNGKeyArray], PyTree[Array]],
        apply: Callable[[PyTree[Array], Array], Array],
    ) -> "Network":
        """A network from `init(key)` → parameters and `apply(parameters, batch)` → outputs.

        Arrays of weights are taken to have their outputs on the last axis, as in `x @ w`.
        """
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
    def first_layer(self) -> str:
        """That of the first weights."""
        return next((leaf for leaf in self.leaves if leaf.kind == "weight"), self.leaves[0]).layer

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each weight: its array and its place there."""
        return tuple(name for leaf in self.leaves for name in entries(leaf.name, leaf.shape))

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

    def apply(self, flat: Float[Array, " d"], x: Float[Array, "b ..."]) -> Float[Array, "b o"]:
        """The outputs for a batch."""
        out = self.definition.apply(self.unravel(flat), x)
        return out[:, None] if out.ndim == 1 else out

    def apply_local(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        x: Float[Array, "b ..."],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "b o"]:
        """For each datum the outputs of a network of its own, with weights N(mean, scale²)."""
        if not isinstance(self.definition, MLPDefinition):
            raise NotAvailableError(
                "local reparameterisation draws what enters each activation, which is known for the dense layers of "
                "gpvi.bnn.mlp alone. Use MeanFieldVI(local=False) for other networks."
            )
        return self.definition.apply_local(self.unravel(mean), self.unravel(scale), x, key=key)

    def outputs(self, x: Float[Array | np.ndarray, "b ..."]) -> int:
        """The number of outputs for inputs of this shape; refuses inputs that do not fit."""
        flat = jax.ShapeDtypeStruct((self.size,), jnp.result_type(float))
        inputs = jax.ShapeDtypeStruct((2, *x.shape[1:]), jnp.result_type(float))
        try:
            out = jax.eval_shape(self.apply, flat, inputs)
        except InputError:
            raise
        except Exception as error:  # whatever a foreign network makes of a wrong shape
            raise InputError(
                f"the network fails on inputs of shape {tuple(x.shape[1:])}: {error}. Check the number of features "
                "(or the sides and channels of images)."
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


def mlp(sizes: Sequence[int], activation: str = "relu") -> Network:
    """A network of dense layers, `sizes` = (inputs, *hidden, outputs), with no activation after the last."""
    sizes = tuple(sizes)
    if len(sizes) < 2 or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in sizes
    ):
        raise InputError(
            f"sizes is {sizes!r}; pass at least two widths ≥ 1: inputs, hidden ones, outputs."
        )
    require_choice(activation, tuple(ACTIVATIONS), "activation")
    return Network.from_definition(MLPDefinition(tuple(map(int, sizes)), activation))


def lenet5(classes: int = 10, channels: int = 1, side: int = 28) -> Network:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling for NHWC images: 61,706 weights at 28×28×1."""
    if side < 12:
        raise InputError(f"side is {side}; two convolutions and poolings need at least 12.")
    return Network.from_definition(LeNet5Definition(classes, channels, side))


class OutputsLast:
    """Arrays of weights in the convention `x @ w`: outputs on the last axis."""

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """The product of all axes but the last."""
        return math.prod(shape[:-1])


@dataclasses.dataclass(frozen=True)
class Functions(OutputsLast):
    """A plain pair of functions."""

    init: Callable[[PRNGKeyArray], PyTree[Array]]
    apply: Callable[[PyTree[Array], Array], Array]


@dataclasses.dataclass(frozen=True)
class MLPDefinition(OutputsLast):
    """Dense layers."""

    sizes: tuple[int, ...]
    activation: str

    def init(self, key: PRNGKeyArray) -> dict[str, list[dict[str, Array]]]:
        """Uniform in ±1/√fan_in."""
        keys = jax.random.split(key, len(self.sizes) - 1)
        shapes = zip(self.sizes, self.sizes[1:], strict=False)
        return {"layers": [dense(shape, key=k) for shape, k in zip(shapes, keys, strict=True)]}

    def apply(self, parameters: dict[str, list[dict[str, Array]]], x: Array) -> Array:
        """x ↦ … activation(x @ w + b) …"""
        *hidden, last = parameters["layers"]
        for layer in hidden:
            x = ACTIVATIONS[self.activation](x @ layer["weight"] + layer["bias"])
        return x @ last["weight"] + last["bias"]

    def apply_local(
        self,
        mean: dict[str, list[dict[str, Array]]],
        scale: dict[str, list[dict[str, Array]]],
        x: Array,
        *,
        key: PRNGKeyArray,
    ) -> Array:
        """For each datum the outputs of a network of its own, weights ~ N(mean, scale²) (Kingma et al. 2015).

        What enters an activation is then N(x @ μ + μ_b, x² @ σ² + σ_b²), and is drawn in place of the weights.
        """
        layers = list(zip(mean["layers"], scale["layers"], strict=True))
        for index, (m, s) in enumerate(layers):
            centre = x @ m["weight"] + m["bias"]
            variance = x**2 @ s["weight"] ** 2 + s["bias"] ** 2
            noise = jax.random.normal(jax.random.fold_in(key, index), centre.shape, centre.dtype)
            x = centre + jnp.sqrt(variance) * noise
            if index < len(layers) - 1:
                x = ACTIVATIONS[self.activation](x)
        return x


@dataclasses.dataclass(frozen=True)
class LeNet5Definition(OutputsLast):
    """Two convolutions of 5×5, each pooled by 2, and three dense layers."""

    classes: int
    channels: int
    side: int

    def init(self, key: PRNGKeyArray) -> dict[str, dict[str, Array]]:
        """Uniform in ±1/√fan_in."""
        flat = 16 * ((self.side // 2 - 4) // 2) ** 2
        shapes = {
            "conv0": (5, 5, self.channels, 6),
            "conv1": (5, 5, 6, 16),
            "dense0": (flat, 120),
            "dense1": (120, 84),
            "dense2": (84, self.classes),
        }
        keys = jax.random.split(key, len(shapes))
        return {name: dense(s, key=k) for (name, s), k in zip(shapes.items(), keys, strict=True)}

    def apply(self, parameters: dict[str, dict[str, Array]], x: Array) -> Array:
        """Images to logits."""
        paddings: tuple[Padding, ...] = ("SAME", "VALID")
        for name, padding in zip(("conv0", "conv1"), paddings, strict=True):
            layer = parameters[name]
            x = convolve(x, layer["weight"], padding=padding) + layer["bias"]
            x = jax.nn.relu(max_pool(x))
        x = x.reshape(len(x), -1)
        for name in ("dense0", "dense1"):
            x = jax.nn.relu(x @ parameters[name]["weight"] + parameters[name]["bias"])
        return x @ parameters["dense2"]["weight"] + parameters["dense2"]["bias"]


def dense(shape: tuple[int, ...], *, key: PRNGKeyArray) -> dict[str, Array]:
    """Weights of this shape, outputs last, and biases, all uniform in ±1/√fan_in."""
    weight_key, bias_key = jax.random.split(key)
    bound = math.prod(shape[:-1]) ** -0.5
    return {
        "weight": jax.random.uniform(weight_key, shape, minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias_key, shape[-1:], minval=-bound, maxval=bound),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Equinox:
    """A module's inexact arrays are the parameters; the rest of it stays."""

    draw: Callable[[PRNGKeyArray], eqx.Module]
    static: PyTree

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        return eqx.filter(self.draw(key), eqx.is_inexact_array)

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        return jax.vmap(eqx.combine(parameters, self.static))(x)

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """Equinox puts outputs on the first axis."""
        return math.prod(shape[1:])


def _from_equinox(given: eqx.Module | Callable[..., eqx.Module]) -> _Equinox:
    if isinstance(given, eqx.Module):
        module, draw = given, functools.partial(_redrawn, given)
    elif callable(given):
        module, draw = given(jax.random.key(0)), given
        if not isinstance(module, eqx.Module):
            raise InputError(
                f"the function gives {type(module).__name__}, not an Equinox module. Stateful models (from "
                "eqx.nn.make_with_state) are not supported."
            )
    else:
        raise InputError(f"{given!r} is neither an Equinox module nor a function key → module.")
    _refuse_stateful(module)
    if not any(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(module)):
        raise InputError(f"the module {type(module).__name__} has no weights.")
    return _Equinox(draw, eqx.filter(module, eqx.is_inexact_array, inverse=True))


def _refuse_stateful(module: eqx.Module) -> None:
    stateful = (eqx.nn.BatchNorm, eqx.nn.SpectralNorm, eqx.nn.StateIndex)
    kinds = (*stateful, eqx.nn.Dropout)
    for part in jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(part, eqx.nn.Dropout) and part.p > 0 and not part.inference:
            raise InputError(
                "the module has an active Dropout layer, so its outputs are not a function of its weights. "
                "Pass eqx.nn.inference_mode(module), or leave dropout out: the posterior takes its place."
            )
        if isinstance(part, stateful):
            raise InputError(
                f"the module holds state ({type(part).__name__}), such as running averages over batches, so its "
                "outputs are not a function of its weights. Use LayerNorm or GroupNorm instead of BatchNorm."
            )


def _redrawn(module: eqx.Module, key: PRNGKeyArray) -> eqx.Module:
    """The module with fresh weights in its Linear and Conv layers."""
    kinds = (eqx.nn.Linear, eqx.nn.Conv)
    is_layer = lambda node: isinstance(node, kinds)  # noqa: E731
    parts, structure = jax.tree.flatten(module, is_leaf=is_layer)
    keys = jax.random.split(key, len(parts))
    fresh = [
        _redrawn_layer(part, k) if is_layer(part) else part
        for part, k in zip(parts, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, fresh)


def _redrawn_layer(layer: Any, key: PRNGKeyArray) -> Any:
    bound = math.prod(layer.weight.shape[1:]) ** -0.5
    arrays, rest = eqx.partition(layer, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    fresh = [
        jax.random.uniform(k, leaf.shape, leaf.dtype, -bound, bound)
        for leaf, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, fresh), rest)


@dataclasses.dataclass(frozen=True, eq=False)
class _Linen(OutputsLast):
    """A Linen module and the shape of its input."""

    module: Any
    example: Any

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        return self.module.init(key, jnp.zeros(self.example.shape, self.example.dtype))["params"]

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        return self.module.apply({"params": parameters}, x)


@dataclasses.dataclass(frozen=True, eq=False)
class _NNX(OutputsLast):
    """A function that makes an NNX module, and all of that module but its parameters."""

    make: Callable[..., Any]
    graph: Any

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        from flax import nnx  # pyright: ignore[reportMissingImports]

        _, parameters, *_ = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, ...)
        return nnx.to_pure_dict(parameters)

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        from flax import nnx  # pyright: ignore[reportMissingImports]

        state = nnx.eval_shape(lambda: self.make(nnx.Rngs(0)))
        _, abstract, *rest = nnx.split(state, nnx.Param, ...)
        nnx.replace_by_pure_dict(abstract, parameters)
        return nnx.merge(self.graph, abstract, *rest)(x)


def _from_flax(module: Any, example: Any) -> _Linen | _NNX:
    try:
        from flax import linen, nnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotAvailableError(
            "Network.from_flax needs Flax: install gpvi[flax], or pass plain functions to Network.from_functions."
        ) from error
    if isinstance(module, linen.Module):
        if example is None:
            raise InputError(
                "a Linen module learns its shapes from data: pass example=, a batch of inputs."
            )
        shape = jax.ShapeDtypeStruct(np.shape(example), jnp.result_type(float))
        collections = jax.eval_shape(module.init, jax.random.key(0), shape)
        if stateful := sorted(set(collections) - {"params"}):
            raise InputError(
                f"the module holds state ({', '.join(stateful)}), such as running averages over batches, so its "
                "outputs are not a function of its weights. Use LayerNorm or GroupNorm instead of BatchNorm."
            )
        return _Linen(module, shape)
    if isinstance(module, nnx.Module) or not callable(module):
        raise InputError(
            f"{type(module).__name__} is already built; pass the function that builds it, such as "
            "`lambda rngs: MyModule(…, rngs=rngs)`, so that fresh weights can be drawn."
        )
    made = module(nnx.Rngs(0))
    graph, *_ = nnx.split(made, nnx.Param, ...)
    if any(isinstance(node, nnx.BatchStat) for _, node in nnx.iter_graph(made)):
        raise InputError(
            "the module holds state (BatchStat), running averages over batches, so its outputs are not a function "
            "of its weights. Use LayerNorm or GroupNorm instead of BatchNorm."
        )
    return _NNX(module, graph)


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
        if _kind(path, leaf.shape) == "weight":
            widths[path[:-1]] = definition.fan_in(path, leaf.shape)
            weights[path[:-1]] += 1
    several = {path for path, number in weights.items() if number > 1}
    leaves, start = [], 0
    for path, leaf in flat:
        kind, shape = _kind(path, leaf.shape), tuple(leaf.shape)
        layer = path if path[:-1] in several else path[:-1]
        fan_in = definition.fan_in(path, shape) if kind == "weight" else widths.get(layer, 1)
        stop = start + math.prod(shape)
        leaves.append(Leaf(_dotted(path), _dotted(layer), shape, start, stop, kind, fan_in))
        start = stop
    return tuple(leaves)


def _kind(path: tuple[Any, ...], shape: tuple[int, ...]) -> Literal["weight", "bias"]:
    called = _dotted(path[-1:]) if path else ""
    return "bias" if len(shape) < 2 or called == "bias" else "weight"


def _dotted(path: tuple[Any, ...]) -> str:
    return path_name(path, "weights")
