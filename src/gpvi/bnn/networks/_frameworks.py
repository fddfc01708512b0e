"""Definitions of networks from Equinox modules and from Flax (Linen and NNX) modules."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from gpvi.bnn.networks.definitions import OutputsLast, require_takes
from gpvi.errors import InputError, NotAvailableError

NORMS = (eqx.nn.LayerNorm, eqx.nn.GroupNorm, eqx.nn.RMSNorm)


@dataclasses.dataclass(frozen=True, eq=False)
class Equinox:
    """An Equinox module, some of whose arrays are the parameters."""

    draw: Callable[[PRNGKeyArray], eqx.Module]
    """Makes a module with fresh weights."""
    trainable: PyTree[bool]
    """True for the arrays that are parameters."""
    static: PyTree
    """The module without these arrays."""
    norms: frozenset[tuple[Any, ...]]
    """The paths of the normalisation layers."""

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        return jax.tree.map(jnp.asarray, eqx.filter(self.draw(key), self.trainable))

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        return jax.vmap(eqx.combine(parameters, self.static))(x)

    def fan_in(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> int:
        """Return the product of all axes but the first, which is the output axis in Equinox."""
        return math.prod(shape[1:])

    def is_scale(self, path: tuple[Any, ...]) -> bool:
        """Return whether the array belongs to a LayerNorm, GroupNorm or RMSNorm."""
        return path[:-1] in self.norms


def equinox_definition(
    source: eqx.Module | Callable[..., eqx.Module], trainable: PyTree | None = None
) -> Equinox:
    """Return the definition of a module that maps one example, or of a function key → such a module."""
    if isinstance(source, eqx.Module):
        module, draw = source, functools.partial(_redrawn, source)
    elif callable(source):
        require_takes(source, "the function", "key")
        module, draw = source(jax.random.key(0)), source
        if not isinstance(module, eqx.Module):
            raise InputError(
                f"the function gives {type(module).__name__}, not an Equinox module. Stateful models (from "
                "eqx.nn.make_with_state) are not supported."
            )
    else:
        raise InputError(f"{source!r} is neither an Equinox module nor a function key → module.")
    _refuse_stateful(module)
    weights = _weights(module, _is_jax_float if trainable is None else trainable)
    if not any(jax.tree.leaves(weights)):
        raise InputError(
            f"the module {type(module).__name__} has no weights. Arrays of JAX are weights and those of NumPy "
            "constants: pass trainable=eqx.is_inexact_array for both."
        )
    return Equinox(draw, weights, eqx.filter(module, weights, inverse=True), _norms(module))


def _norms(module: eqx.Module) -> frozenset[tuple[Any, ...]]:
    """Return the paths of the normalisation layers."""
    is_norm = lambda node: isinstance(node, NORMS)  # noqa: E731
    parts = jax.tree.leaves_with_path(module, is_leaf=is_norm)
    return frozenset(path for path, part in parts if is_norm(part))


def _is_jax_float(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf)


def _weights(module: eqx.Module, trainable: PyTree) -> PyTree[bool]:
    """Return, for each leaf of the module, whether it is a float array that the filter `trainable` selects."""

    def selected(choice: Any, part: PyTree) -> PyTree[bool]:
        selects = choice if callable(choice) else lambda _: bool(choice)
        return jax.tree.map(lambda leaf: eqx.is_inexact_array(leaf) and bool(selects(leaf)), part)

    try:
        return jax.tree.map(selected, trainable, module)
    except ValueError as error:
        raise InputError(
            f"trainable has another structure than the module {type(module).__name__}: {error}. Give a function of an "
            "array, or make the tree from the module, jax.tree.map(lambda _: True, module)."
        ) from error


def _refuse_stateful(module: eqx.Module) -> None:
    """Refuse modules with state or active dropout: their outputs are not a function of the weights."""
    stateful = (eqx.nn.BatchNorm, eqx.nn.SpectralNorm, eqx.nn.StateIndex)
    kinds = (*stateful, eqx.nn.Dropout)
    for part in jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(part, eqx.nn.Dropout) and part.p > 0 and not part.inference:
            raise _random("pass eqx.nn.inference_mode(module)")
        if isinstance(part, stateful):
            raise _stateful(type(part).__name__)


def _redrawn(module: eqx.Module, key: PRNGKeyArray) -> eqx.Module:
    """Return the module with fresh weights in its Linear and Conv layers."""
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
    """Return the layer with arrays uniform in ±1/√fan_in, as Equinox draws them."""
    bound = math.prod(layer.weight.shape[1:]) ** -0.5
    arrays, rest = eqx.partition(layer, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    fresh = [
        jax.random.uniform(k, leaf.shape, leaf.dtype, -bound, bound)
        for leaf, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, fresh), rest)


@dataclasses.dataclass(frozen=True, eq=False)
class Linen(OutputsLast):
    """A Linen module, and the shape of its input."""

    module: Any
    example: Any

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        return self.module.init(key, jnp.zeros(self.example.shape, self.example.dtype))["params"]

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        return self.module.apply({"params": parameters}, x)


@dataclasses.dataclass(frozen=True, eq=False)
class NNX(OutputsLast):
    """A function that makes an NNX module, and the parts of one: its graph, its parameters, all else it holds."""

    make: Callable[..., Any]
    graph: Any
    parameters: Any
    rest: Any

    def init(self, key: PRNGKeyArray) -> PyTree[Array]:
        from flax import nnx  # pyright: ignore[reportMissingImports]

        return nnx.to_pure_dict(nnx.state(self.make(nnx.Rngs(key)), nnx.Param))

    def apply(self, parameters: PyTree[Array], x: Array) -> Array:
        from flax import nnx  # pyright: ignore[reportMissingImports]

        own = jax.tree.map(lambda leaf: leaf, self.parameters)
        nnx.replace_by_pure_dict(own, parameters)
        return nnx.merge(self.graph, own, self.rest)(x)


def flax_definition(module: Any, example: Any) -> Linen | NNX:
    """Return the definition of a Linen module with an example of its input, or of a function nnx.Rngs → NNX module."""
    try:
        from flax import linen, nnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotAvailableError(
            "Network.from_flax needs Flax: install gpvi[flax], or pass plain functions to Network.from_functions."
        ) from error
    if isinstance(module, linen.Module):
        return _linen_definition(module, example)
    if isinstance(module, nnx.Module) or not callable(module):
        raise InputError(
            f"{type(module).__name__} is already built; pass the function that builds it, such as "
            "`lambda rngs: MyModule(…, rngs=rngs)`, so that fresh weights can be drawn."
        )
    require_takes(module, "the function", "rngs")
    made = module(nnx.Rngs(0))
    for _, node in nnx.iter_graph(made):
        if isinstance(node, nnx.BatchStat):
            raise _stateful("BatchStat")
        if isinstance(node, nnx.Dropout) and node.rate > 0 and not node.deterministic:
            raise _random("build it with nnx.Dropout(…, deterministic=True)")
    return NNX(module, *nnx.split(made, nnx.Param, ...))


def _linen_definition(module: Any, example: Any) -> Linen:
    from flax.errors import InvalidRngError  # pyright: ignore[reportMissingImports]

    if example is None:
        raise InputError(
            "a Linen module learns its shapes from data: pass example=, a batch of inputs."
        )
    shape, collections = _linen_shapes(module, np.asarray(example))
    if stateful := sorted(set(collections) - {"params"}):
        raise _stateful(", ".join(stateful))
    try:
        jax.eval_shape(module.apply, collections, shape)
    except InvalidRngError as error:
        raise _random("build it with Dropout(…, deterministic=True)") from error
    return Linen(module, shape)


def _linen_shapes(module: Any, example: np.ndarray) -> tuple[jax.ShapeDtypeStruct, Any]:
    """Return the shapes of the input and of all that the module holds; inputs are int32 only if floats fail."""
    shape = jax.ShapeDtypeStruct(example.shape, jnp.result_type(float))
    try:
        return shape, jax.eval_shape(module.init, jax.random.key(0), shape)
    except Exception:
        if not np.issubdtype(example.dtype, np.integer):
            raise
    shape = jax.ShapeDtypeStruct(example.shape, jnp.int32)
    return shape, jax.eval_shape(module.init, jax.random.key(0), shape)


def _random(remedy: str) -> InputError:
    return InputError(
        "the module has an active Dropout layer, or draws noise of its own, so its outputs are not a function of its "
        f"weights. For dropout {remedy}, or leave it out: the posterior takes its place."
    )


def _stateful(what: str) -> InputError:
    return InputError(
        f"the module holds state ({what}), such as running averages over batches, so its outputs are not a function "
        "of its weights. Use LayerNorm or GroupNorm instead of BatchNorm."
    )
