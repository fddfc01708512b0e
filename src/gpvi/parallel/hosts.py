"""Several processes that train one posterior: which data each of them reads, and how they decide alike.

After `jax.distributed.initialize` every process runs the same program on the devices of all. Between chunks of steps
Python decides in each process whether to stop, to save and where to resume, and all must decide the same. With one
process nothing here communicates.

Users call `share`, `distribute` and `first`, as `gpvi.hosts`. The other functions are for the library.
"""

import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, PyTree

from gpvi._inputs import cast_in_range, device_dtype
from gpvi.errors import InputError
from gpvi.parallel.mesh import DATA, draws_axis, nearest_multiples


def first() -> bool:
    """Return whether this process is the one that writes files and shows progress.

    Returns
    -------
    bool
        True in one process, False in the others.

    Examples
    --------
    >>> gpvi.hosts.first()
    True
    """
    return jax.process_index() == 0


def largest(value: int) -> int:
    """Return the largest value of any process; every process must call it."""
    return value if jax.process_count() == 1 else int(max(_of_all(value)))


def require_agreement(value: int, otherwise: str) -> None:
    """Raise `InputError`, which begins with `otherwise`, if the processes have different values."""
    if jax.process_count() == 1:
        return
    values = _of_all(value).tolist()
    if len(set(values)) > 1:
        raise InputError(f"{otherwise}: {values}, by process.")


def joint_digest(digest: str) -> str:
    """Return one digest of the digests of all processes; every process must call it."""
    digests = _of_all(np.frombuffer(bytes.fromhex(digest), np.uint8))
    return hashlib.sha256(digests.tobytes()).hexdigest()


def gathered(array: Array | np.ndarray) -> np.ndarray:
    """Return a complete array in the memory of this process, wherever its parts are; every process must call it."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def local_parts(leaf: Any) -> list[np.ndarray]:
    """Return the parts of an array that are on the devices of this process."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return [np.asarray(shard.data) for shard in leaf.addressable_shards]
    return [np.asarray(leaf)]


def share(size: int, mesh: Mesh) -> slice:
    """Return the rows of the data that this process must read for `distribute`.

    Parameters
    ----------
    size
        N, the number of data of all processes together.
    mesh
        The mesh that `gpvi.fit` will get. The data lie along its axis "data" or, if it has none, "particles".

    Returns
    -------
    slice
        The rows, one contiguous range.

    Raises
    ------
    gpvi.errors.InputError
        If the number of devices along the axis does not divide N, or the devices of this process are not neighbours.

    Examples
    --------
    >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    >>> gpvi.hosts.share(6, mesh)
    slice(0, 6, None)
    """
    indices = _sharding(size, mesh).addressable_devices_indices_map((size,)).values()
    spans = [index[0].indices(size) for index in indices if index is not None]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    if stop - start != sum({span[0]: span[1] - span[0] for span in spans}.values()):
        raise InputError(
            f"the rows for the devices of process {jax.process_index()} are not one contiguous range. Put the devices "
            "of each process side by side along the axis of the mesh, in the order of jax.devices()."
        )
    return slice(start, stop)


def distribute(data: PyTree, mesh: Mesh, *, size: int) -> PyTree:
    """Combine the data that each process has read into arrays over all processes, for `gpvi.Target(data=…)`.

    Parameters
    ----------
    data
        Arrays with the rows that `share(size, mesh)` names.
    mesh
        The mesh that `gpvi.fit` will get. The data lie along its axis "data" or, if it has none, "particles".
    size
        N, the number of data of all processes together.

    Returns
    -------
    PyTree
        The same structure, of JAX arrays with N rows.

    Raises
    ------
    gpvi.errors.InputError
        If an array does not have the rows that `share` names, or `share` refuses the mesh.

    Examples
    --------
    >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    >>> rows = gpvi.hosts.share(6, mesh)
    >>> X = gpvi.hosts.distribute(np.zeros((6, 2))[rows], mesh, size=6)
    >>> X.shape
    (6, 2)
    """
    mine, sharding = share(size, mesh), _sharding(size, mesh)

    def put(leaf: Any) -> Array:
        array = np.asarray(leaf)
        if array.ndim == 0 or len(array) != mine.stop - mine.start:
            raise InputError(
                f"process {jax.process_index()} has data of shape {array.shape}; it is to read the "
                f"{mine.stop - mine.start} rows gpvi.parallel.hosts.share({size}, mesh) = {mine.start}:{mine.stop}."
            )
        array = cast_in_range(array, device_dtype(array.dtype))
        return jax.make_array_from_process_local_data(sharding, array, (size, *array.shape[1:]))

    return jax.tree.map(put, data)


def _sharding(size: int, mesh: Mesh) -> NamedSharding:
    """Return how N data are distributed along the axis of the mesh that they share."""
    axis = DATA if DATA in mesh.axis_names else draws_axis(mesh.axis_names)
    devices = mesh.shape[axis]
    if size % devices:
        raise InputError(
            f"{size} data cannot be distributed evenly over the {devices} devices of the axis {axis!r}. Leave some out "
            f"or repeat some, so that there are {nearest_multiples(size, devices)}."
        )
    return NamedSharding(mesh, Spec(axis))


def _of_all(value: int | np.ndarray) -> np.ndarray:
    """Return the values of all processes, along a new first axis."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(value)))
