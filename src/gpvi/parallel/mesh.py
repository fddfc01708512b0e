r"""Several devices: how the arrays of a step are placed on a mesh.

A training program is the same on one device and on many. In some places it constrains the layout of an array, and the
compiler moves what must be moved. There are three layouts for n draws of d coordinates:

- `rows`: each device has some of the draws. Noise and evaluations of the target use it: nothing is moved.
- `columns`: each device has some of the coordinates of all draws. Interactions of all pairs of draws are products of an
  n×n matrix with an n×d one, of which each device can compute its columns alone.
- `replicated`: every device has a copy, as of parameters and n×n matrices.

From rows to columns each of P devices sends n·d/P numbers; replicating all rows would cost n·d. A mesh has an axis
"particles" over which draws are distributed, an axis "data" over which the data are, or both. Without a mesh nothing
here has an effect, and the program is that of one device.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, PyTree

from gpvi._compute.precision import product
from gpvi.errors import InputError, UnknownOptionError, brief
from gpvi.specs import is_whole

PARTICLES, DATA = "particles", "data"
LARGE = 2**20
"""Number of entries from which an array of parameters, and its moments, are split over the devices between steps."""


def as_mesh(value: Mesh | int | None) -> Mesh | None:
    """Return a mesh with valid axes, made from the first `value` devices if that is a number."""
    if value is None:
        return None
    if isinstance(value, Mesh):
        for name in value.axis_names:
            if name not in (PARTICLES, DATA):
                raise UnknownOptionError("axis of the mesh", name, (PARTICLES, DATA))
        return Mesh(value.devices, value.axis_names, (AxisType.Auto,) * len(value.axis_names))
    devices = jax.devices()
    if not is_whole(value):
        raise InputError(
            f"mesh is {brief(value)}; pass a number of devices, or a jax.sharding.Mesh with axes named "
            f"{PARTICLES!r} and {DATA!r}."
        )
    if not 1 <= value <= len(devices):
        raise InputError(
            f"mesh is {brief(value)}, but there are {len(devices)} devices. Pass a number up to {len(devices)}; "
            "to try more on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX is imported."
        )
    return Mesh(np.asarray(devices[:value]), (PARTICLES,))


def for_seeds(mesh: Mesh | None, seeds: int) -> Mesh | None:
    """Return a mesh of the most devices, from the first, over which the seeds can be distributed evenly."""
    if mesh is None:
        return None
    devices = mesh.devices.ravel()
    even = max(count for count in range(1, devices.size + 1) if seeds % count == 0)
    if even < devices.size and jax.process_count() > 1:
        raise InputError(
            f"{seeds} targets cannot be distributed evenly over {devices.size} devices of several processes: pass "
            f"{nearest_multiples(seeds, devices.size)}."
        )
    return Mesh(devices[:even], (PARTICLES,))


def nearest_multiples(number: int, divisor: int) -> str:
    """Return the positive multiples of `divisor` below and above `number`, in words."""
    below = number - number % divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"


def active(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """Return a context in which the layouts below refer to this mesh."""
    return (
        contextlib.nullcontext()
        if mesh is None
        else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    )


def rows(tree: PyTree) -> PyTree:
    """Distribute leading axes over the devices of the draws."""
    return _laid(tree, lambda names: Spec(_present(names, PARTICLES)))


def columns(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Distribute the last axis over the devices of the draws, or else of the data."""
    return _laid(x, lambda names: Spec(None, draws_axis(names)))


def data_rows(tree: PyTree) -> PyTree:
    """Distribute leading axes over the devices of the data."""
    return _laid(tree, lambda names: Spec(_present(names, DATA)))


def replicated(tree: PyTree) -> PyTree:
    """Replicate every array on every device."""
    return _laid(tree, lambda names: Spec())


def paired(
    x: Float[Array, "n d"], y: Float[Array, "m d"]
) -> tuple[Float[Array, "n d"], Float[Array, "m d"]]:
    """Place draws that interact in pairs: by columns or, with fewer coordinates than draws, all x with some y."""
    return (columns(x), columns(y)) if _wide(x) else (replicated(x), rows(y))


def pairs(matrix: Float[Array, "n m"], x: Float[Array, "n d"]) -> Float[Array, "n m"]:
    """Place the matrix of such pairs: replicated, as a sum over all columns of x, or by the columns of its own y."""
    return replicated(matrix) if _wide(x) else _laid(matrix, _by_second)


def contracted(matrix: Float[Array, "n m"], values: Float[Array, "n e"]) -> Float[Array, "m e"]:
    """Return matrixᵀ · values, distributed by the columns of the values or, if these are few, of the matrix."""
    if _wide(values):
        return columns(product(replicated(matrix).T, columns(values)))
    return rows(product(_laid(matrix, _by_second).T, replicated(values)))


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the state of a run is placed on a mesh between its steps.

    An array is split along the longest of its axes that can be divided evenly, and replicated if there is none.

    Parameters
    ----------
    mesh
        The devices.
    axes
        The axes of the mesh over which arrays are split.
    least
        The number of entries from which an array is split.
    first
        Whether to split arrays along their first axis only.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    least: int = LARGE
    first: bool = False

    def sharding(self, leaf: Any) -> NamedSharding:
        """Return where the parts of an array are kept."""
        parts = math.prod(self.mesh.shape[name] for name in self.axes)
        shape = leaf.shape[:1] if self.first else leaf.shape
        even = [axis for axis, length in enumerate(shape) if length % parts == 0]
        if leaf.size < self.least or not even or not self.axes:
            return NamedSharding(self.mesh, Spec())
        longest = max(even, key=lambda axis: leaf.shape[axis])
        return NamedSharding(self.mesh, Spec(*[None] * longest, self.axes))

    def place(self, tree: PyTree) -> PyTree:
        """Place the arrays of a state on the mesh."""
        return jax.tree.map(lambda leaf: jax.device_put(leaf, self.sharding(leaf)), tree)

    def constrain(self, tree: PyTree) -> PyTree:
        """Place arrays that are being traced."""
        return jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, self.sharding(leaf).spec), tree
        )


def distribute_data(data: PyTree, mesh: Mesh) -> PyTree:
    """Distribute data over the axis "data" if it exists and divides their number; otherwise leave them in place."""
    devices = mesh.shape.get(DATA)

    def put(leaf: Any) -> Any:
        if devices is None or not eqx.is_array(leaf) or _lies_on(leaf, mesh):
            return leaf
        return (
            leaf if len(leaf) % devices else jax.device_put(leaf, NamedSharding(mesh, Spec(DATA)))
        )

    return jax.tree.map(put, data)


def replicate_rest(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copy every array that is not on the mesh yet to all its devices."""
    everywhere = NamedSharding(mesh, Spec())

    def put(leaf: Any) -> Any:
        if not eqx.is_array(leaf) or _lies_on(leaf, mesh):
            return leaf
        return jax.device_put(leaf, everywhere)

    return jax.tree.map(put, tree)


def bytes_per_device(leaf: Array) -> int:
    """Return how many bytes of an array each device keeps."""
    part = math.prod(leaf.sharding.shard_shape(leaf.shape))
    return leaf.nbytes * part // max(1, leaf.size)


def _lies_on(leaf: Array, mesh: Mesh) -> bool:
    """Whether an array is placed on the devices of the mesh."""
    sharding = leaf.sharding
    return isinstance(sharding, NamedSharding) and sharding.device_set == set(mesh.devices.flat)


def _laid(tree: PyTree, spec: Callable[[tuple[str, ...]], Spec]) -> PyTree:
    """Constrain the layout of every array to `spec` of the axes of the active mesh; do nothing without one."""
    names = tuple(
        name for name in jax.sharding.get_abstract_mesh().axis_names if name in (PARTICLES, DATA)
    )
    if not names:
        return tree
    wanted = spec(names)
    return jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(leaf, wanted) if eqx.is_array(leaf) else leaf,
        tree,
    )


def draws_axis(names: tuple[str, ...]) -> str:
    """Return the axis of the mesh over which arrays of draws are split by columns."""
    return PARTICLES if PARTICLES in names else DATA


def _by_second(names: tuple[str, ...]) -> Spec:
    """Split a matrix by its columns over the devices of the draws."""
    return Spec(None, _present(names, PARTICLES))


def _present(names: tuple[str, ...], name: str) -> str | None:
    return name if name in names else None


def _wide(x: Float[Array, "n d"]) -> bool:
    """Whether there are more coordinates than draws."""
    return x.shape[1] > x.shape[0]
