"""Several processes that train one posterior: what each of them reads, and what they must decide alike.

After `jax.distributed.initialize` every process runs the same program on the devices of all. Between chunks of steps
Python decides in each of them, and must decide the same: whether to stop, to save, where to go on. With one process
nothing here communicates.
"""

import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, PyTree

from gpvi._inputs import device_dtype, held_as
from gpvi.errors import InputError
from gpvi.parallel.mesh import DATA, dividing


def first() -> bool:
    """Whether this process writes files and progress."""
    return jax.process_index() == 0


def agreed(value: int) -> int:
    """The largest that any process has."""
    return value if jax.process_count() == 1 else int(max(_of_all(value)))


def require_agreement(value: int, otherwise: str) -> None:
    """Refuse to go on where the processes have different values."""
    if jax.process_count() > 1 and len(set(found := _of_all(value).tolist())) > 1:
        raise InputError(f"{otherwise}: {found}, by process.")


def joined(digest: str) -> str:
    """One digest of those of all processes."""
    all_of_them = _of_all(np.frombuffer(bytes.fromhex(digest), np.uint8))
    return hashlib.sha256(all_of_them.tobytes()).hexdigest()


def at_hand(array: Array | np.ndarray) -> np.ndarray:
    """All of an array, wherever its parts are; every process must ask."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def parts(leaf: Any) -> list[np.ndarray]:
    """What this process has of an array."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return [np.asarray(shard.data) for shard in leaf.addressable_shards]
    return [np.asarray(leaf)]


def share(size: int, mesh: Mesh) -> slice:
    """Which of `size` data this process is to read for `distribute`."""
    found = _sharding(size, mesh).addressable_devices_indices_map((size,)).values()
    spans = [index[0].indices(size) for index in found if index is not None]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    if stop - start != sum({span[0]: span[1] - span[0] for span in spans}.values()):
        raise InputError(
            f"the devices of process {jax.process_index()} share out data that do not lie together. Put the devices of "
            "each process side by side along the axis of the mesh, in the order of jax.devices()."
        )
    return slice(start, stop)


def distribute(data: PyTree, mesh: Mesh, *, size: int) -> PyTree:
    """Data of which each process has some, as arrays over all of them: pass them to `Target(data=…)`.

    Parameters
    ----------
    data: arrays with the rows that `share(size, mesh)` names.
    mesh: as `fit` gets it: the data lie along its axis "data" or, where there is none, "particles".
    size: N, the number of data of all processes together.
    """
    mine, sharding = share(size, mesh), _sharding(size, mesh)

    def put(leaf: Any) -> Array:
        array = np.asarray(leaf)
        if array.ndim == 0 or len(array) != mine.stop - mine.start:
            raise InputError(
                f"process {jax.process_index()} has data of shape {array.shape}; it is to read the "
                f"{mine.stop - mine.start} rows gpvi.parallel.hosts.share({size}, mesh) = {mine.start}:{mine.stop}."
            )
        array = held_as(array, device_dtype(array.dtype))
        return jax.make_array_from_process_local_data(sharding, array, (size, *array.shape[1:]))

    return jax.tree.map(put, data)


def _sharding(size: int, mesh: Mesh) -> NamedSharding:
    axis = DATA if DATA in mesh.axis_names else dividing(mesh.axis_names)
    devices = mesh.shape[axis]
    if size % devices:
        lower = size - size % devices
        raise InputError(
            f"{size} data cannot be shared out evenly over the {devices} devices of the axis {axis!r}. Leave some out "
            f"or repeat some: {lower} and {lower + devices} can."
        )
    return NamedSharding(mesh, Spec(axis))


def _of_all(value: int | np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(value)))
