"""Batches of streamed data, read from disk while the previous chunk of steps runs."""

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from gpvi._inputs import device_dtype, on_device, precision
from gpvi.targets.density import Density
from gpvi.targets.minibatch import chunk_indices
from gpvi.training.program import Plan


class Feed:
    """Returns the batches of a chunk, (steps, batch, …), and reads those of the next chunk in a thread.

    For data in memory it returns None: the program gathers its own batches.
    """

    def __init__(self, plan: Plan, target: Density):
        self._plan, self._stream, self._dtype = plan, target.stream, target.dtype
        self._device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        self._reader: ThreadPoolExecutor | None = None
        self._ahead: tuple[Any, Future] | None = None
        if self._stream is not None:
            self._reader = ThreadPoolExecutor(1, "gpvi-feed")

    def __call__(self, key: PRNGKeyArray, first: int) -> PyTree:
        """Return the batches of the chunk that begins with step `first`; None for data in memory."""
        if self._reader is None:
            return None
        name = np.asarray(jax.random.key_data(key)).tobytes()
        if self._ahead is None or self._ahead[0] != (name, first):
            self._ahead = None
            pending = self._begin(key, first)
        else:
            pending = self._ahead[1]
        batches = pending.result()
        after = first + self._plan.chunk[0]
        self._ahead = None
        if after < self._plan.steps:
            self._ahead = (name, after), self._begin(key, after)
        return batches

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.shutdown(wait=True, cancel_futures=True)

    def _begin(self, key: PRNGKeyArray, first: int) -> Future:
        """Compute the row indices here, while the device is free; the thread reads the rows and sends them to it."""
        assert self._stream is not None and self._reader is not None
        form = self._plan.chunk[0], self._stream.size, self._plan.batch_size
        indices = _indices(key, jnp.asarray(first), *form)
        return self._reader.submit(self._put, np.asarray(indices))

    def _put(self, indices: np.ndarray) -> PyTree:
        assert self._stream is not None
        with precision(self._dtype), jax.default_device(self._device):
            return jax.block_until_ready(on_device(self._stream.rows(indices)))


def example(plan: Plan, target: Density) -> PyTree:
    """Return batches of zeros to compile with; None for data in memory."""
    if target.stream is None:
        return None
    shape = plan.chunk[0], plan.batch_size
    return jax.tree.map(
        lambda a: jnp.zeros((*shape, *a.shape), device_dtype(a.dtype)), target.stream.row
    )


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _indices(
    key: PRNGKeyArray, first: Int[Array, ""], length: int, size: int, batch_size: int
) -> Int[Array, "steps b"]:
    """Return the row indices of a chunk, from its key as `gpvi.training.program` splits it."""
    return chunk_indices(first, length, size, batch_size, key=jax.random.split(key)[0])
