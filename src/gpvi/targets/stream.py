"""Data that stay on disk: a training step reads only the rows of its batch.

    gpvi.Target(log_likelihood=…, log_prior=…, data=gpvi.Stream(("inputs.npy", "labels.npy")), dim=d)

A step uses the same rows as it would if the data were in memory (`gpvi.targets.minibatch`). Memory holds the batches of
two chunks of steps, and those that are being read.
"""

import hashlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, PyTree

from gpvi._inputs import require_finite
from gpvi.errors import InputError, StorageError
from gpvi.persistence.format import as_path

MEMORY = 64 * 2**20
"""By default, the bytes that the batches of one chunk of steps may take."""
BLOCK, BLOCK_ROWS = 4 * 2**20, 4_096
"""The most bytes and rows that a pass over all data reads at a time."""
GAP, SPAN = 2**12, 2**23
"""Rows with less than GAP bytes between them are read together, at most SPAN bytes at a time."""
SAMPLED = 256
"""The number of rows whose contents identify a stream."""
MOST_ROWS = 2**31 - 1


class Stream:
    """Rows of data that stay on disk and are read when a step needs them.

    Parameters
    ----------
    source
        A pytree whose leaves have the same length N along their first axes: paths of `.npy` files, or arrays on disk
        (`numpy.memmap`, h5py, zarr, anything with `shape`, `dtype` and slices). Or one object with `len(source)` = N
        for which `source[indices]` is a pytree of NumPy arrays, where `indices` are increasing row numbers.
    transform
        A function of NumPy arrays that is applied to rows after reading, such as `lambda rows: rows / 255`. It must
        treat each row separately, since rows come in any number and order.
    memory
        The bytes that the batches of one chunk of training steps may take. About four times as much is in use.

    Raises
    ------
    gpvi.errors.InputError
        If the source cannot be streamed: lengths that differ, values that are not finite numbers, or no rows.
    gpvi.errors.StorageError
        If a file cannot be read, or is shorter than its header says.

    Notes
    -----
    A `.npy` file is read, not memory-mapped: a file that is cut short raises an error instead of ending the process,
    and its pages do not count as memory of the process. Values that are not finite are refused when they are read.

    Examples
    --------
    >>> stream = gpvi.Stream(np.arange(12.0).reshape(6, 2), transform=lambda rows: rows / 2)
    >>> stream
    <Stream of 6 rows of float64[2]>
    >>> print(stream.rows(np.array([3, 0])))
    [[3.  3.5]
     [0.  0.5]]
    """

    def __init__(
        self, source: PyTree, *, transform: Callable | None = None, memory: int = MEMORY
    ) -> None:
        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise InputError(f"memory is {memory!r}; it must be a number of bytes ≥ 1.")
        if transform is not None and not callable(transform):
            raise InputError(f"transform is {transform!r}; pass a function of rows.")
        self.memory = memory
        self._transform = transform
        self._source = _as_source(source)
        self.size = _length(self._source)
        if not 1 <= self.size <= MOST_ROWS:
            raise InputError(
                f"the data have {self.size:,} rows; a stream has between 1 and {MOST_ROWS:,}."
            )
        first = self._read(np.zeros(1, np.int64))
        self.row: PyTree[jax.ShapeDtypeStruct] = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), first
        )
        """The shape and dtype of one row."""
        if not jax.tree.leaves(self.row):
            raise InputError("a row of the stream holds no array.")
        self._check_finite(first, np.zeros(1, np.int64))

    def __repr__(self) -> str:
        forms = ", ".join(f"{a.dtype}{list(a.shape)}" for a in jax.tree.leaves(self.row))
        return f"<Stream of {self.size:,} rows of {forms}>"

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one row."""
        return max(1, sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(self.row)))

    @property
    def block(self) -> int:
        """The number of rows that a pass over all data reads at a time."""
        return max(1, min(self.size, BLOCK_ROWS, BLOCK // self.row_bytes))

    def batches(self, batch_size: int) -> int:
        """How many batches fit into `memory`.

        Parameters
        ----------
        batch_size
            The number of rows of a batch.

        Returns
        -------
        int
            The number of batches; at least one.
        """
        return max(1, self.memory // (batch_size * self.row_bytes))

    def rows(self, indices: Int[np.ndarray, "*n"]) -> PyTree[np.ndarray]:
        """Read rows, from the beginning of the file to its end.

        Parameters
        ----------
        indices
            Row numbers, in any order and with repetitions.

        Returns
        -------
        PyTree
            The rows, in the order of `indices`.

        Raises
        ------
        gpvi.errors.InputError
            If an index is out of range, or a row has another shape or dtype or is not finite.
        gpvi.errors.StorageError
            If the rows cannot be read.
        """
        wanted, places = np.unique(indices, return_inverse=True)
        if wanted[0] < 0 or wanted[-1] >= self.size:
            raise InputError(
                f"there are rows 0 to {self.size - 1} in the stream, not {wanted[0 if wanted[0] < 0 else -1]}."
            )
        rows = self._read(wanted)
        form = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)
        if form != self.row:
            raise InputError(
                f"rows {wanted[0]} to {wanted[-1]} have the form {form}, the first row has {self.row}: all rows must "
                "be of one shape and type."
            )
        self._check_finite(rows, wanted)
        return jax.tree.map(lambda a: a[places.reshape(indices.shape)], rows)

    def sample(self, n: int) -> PyTree[np.ndarray]:
        """Rows from everywhere in the data, including the first and the last; the same at every call.

        Parameters
        ----------
        n
            The most rows to read.

        Returns
        -------
        PyTree
            At most n rows; all rows if there are no more.
        """
        if n >= self.size:
            return self.rows(np.arange(self.size))
        inner = np.random.default_rng(0).integers(self.size, size=max(0, n - 2))
        return self.rows(np.unique(np.append(inner, [0, self.size - 1])))

    def digest(self) -> str:
        """A hash that identifies the data.

        Returns
        -------
        str
            SHA-256 of the number of rows, their form, and the contents of 256 of them. A change in another row does not
            change the hash.
        """
        digest = hashlib.sha256(repr((self.size, self.row)).encode())
        for leaf in jax.tree.leaves(self.sample(SAMPLED)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()

    def paired_with(self, other: "Stream | np.ndarray", transform: Callable) -> "Stream":
        """A stream of pairs of rows.

        Parameters
        ----------
        other
            A stream or an array with as many rows.
        transform
            A function of pairs (rows of this stream, rows of the other).

        Returns
        -------
        Stream
            The transformed pairs.

        Raises
        ------
        gpvi.errors.InputError
            If the numbers of rows differ.
        """
        if len(other) != self.size:
            raise InputError(f"X has {self.size} rows and y {len(other)}; they must agree.")
        return Stream(_Pair(self, other), transform=transform, memory=self.memory)

    def __len__(self) -> int:
        return self.size

    def _read(self, indices: np.ndarray) -> PyTree[np.ndarray]:
        """Rows with increasing indices, after the transform."""
        try:
            rows = jax.tree.map(lambda leaf: leaf.take(indices), self._source, is_leaf=_is_source)
        except OSError as error:
            raise StorageError(
                f"rows {indices[0]} to {indices[-1]} of the data cannot be read: {error}. Check the disk; with "
                "checkpoint= the same call goes on from the newest save."
            ) from error
        if self._transform is not None:
            rows = self._transform(rows)
        for leaf in jax.tree.leaves(rows):
            if not isinstance(leaf, np.ndarray) or leaf.shape[:1] != indices.shape:
                raise InputError(
                    f"the source or the transform returned {type(leaf).__name__} of shape {np.shape(leaf)} for "
                    f"{len(indices)} rows: it must return NumPy arrays with one row for each index."
                )
            if leaf.dtype.kind not in "biuf":
                raise InputError(f"the rows have dtype {leaf.dtype}, which holds no numbers.")
        return rows

    def _check_finite(self, rows: PyTree[np.ndarray], indices: np.ndarray) -> None:
        for path, leaf in jax.tree.leaves_with_path(rows):
            require_finite(leaf, "data" + jax.tree_util.keystr(path), indices)


class _Rows(ABC):
    """The source of one array of the data."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> Any:
        """Read the rows with these increasing indices."""

    @abstractmethod
    def __len__(self) -> int: ...


class _Pair(_Rows):
    """Rows of a stream together with rows of another one, or of an array."""

    def __init__(self, stream: Stream, other: Stream | np.ndarray):
        self._stream, self._other = stream, other

    def take(self, indices: np.ndarray) -> tuple:
        other = self._other
        return self._stream.rows(indices), (
            other.rows(indices) if isinstance(other, Stream) else other[indices]
        )

    def __len__(self) -> int:
        return len(self._stream)


class _Indexed(_Rows):
    """A NumPy array, or an object of the user, that is indexed by arrays of row numbers."""

    def __init__(self, source: Any):
        self._source = source

    def take(self, indices: np.ndarray) -> Any:
        return jax.tree.map(_native, self._source[indices])

    def __len__(self) -> int:
        return len(self._source)


class _Sliced(_Rows):
    """An array on disk that is read by slices; rows near to each other are read together."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, source: Any):
        self._source = source
        self.shape, self.dtype = tuple(source.shape), np.dtype(source.dtype)
        self._chunk = (getattr(source, "chunks", None) or (1,))[0]

    def fill(self, rows: np.ndarray, start: int) -> None:
        """Fill the array `rows` with the rows from `start` on."""
        rows[:] = self._source[start : start + len(rows)]

    def take(self, indices: np.ndarray) -> np.ndarray:
        row = max(1, int(np.prod(self.shape[1:])) * self.dtype.itemsize)
        rows = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for group in _near(indices, max(GAP // row, self._chunk), max(1, SPAN // row)):
            first, last = int(indices[group.start]), int(indices[group.stop - 1])
            if last - first == group.stop - group.start - 1:
                self.fill(rows[group], first)
            else:
                read = np.empty((last - first + 1, *self.shape[1:]), self.dtype)
                self.fill(read, first)
                rows[group] = read[indices[group] - first]
        return _native(rows)

    def __len__(self) -> int:
        return self.shape[0]


class _File(_Sliced):
    """A `.npy` file, read by position."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = as_path(path)
        self._reading = threading.Lock()
        self._chunk = 1
        try:
            if not self._path.is_file():
                raise InputError(
                    f"there is no file {self._path}; give the path of a .npy file that numpy.save wrote."
                )
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            self.shape, self.dtype = self._header()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error.strerror}.") from error
        self._row = int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize
        self._begin = self._file.tell()
        there, promised = self._path.stat().st_size - self._begin, self.shape[0] * self._row
        if there < promised:
            raise StorageError(
                f"{self._path} is cut short: its header promises {promised:,} bytes, and there are {there:,}."
            )

    def _header(self) -> tuple[tuple[int, ...], np.dtype]:
        layout = np.lib.format
        try:
            version = layout.read_magic(self._file)
            read = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
            shape, columns_first, dtype = read[version](self._file)
        except OSError:
            raise
        except Exception as error:  # whatever a foreign header makes of NumPy's reader
            raise StorageError(
                f"{self._path} is not a .npy file of numbers ({str(error)[:200]}). Write it with numpy.save."
            ) from error
        if columns_first or not shape or dtype.kind not in "biuf" or min(shape) < 1:
            order = " by columns" if columns_first else ""
            raise InputError(
                f"{self._path} holds {dtype} of shape {shape}{order}; a stream needs numbers in rows, along a first "
                "axis: numpy.save(path, numpy.ascontiguousarray(array))."
            )
        return shape, dtype

    def fill(self, rows: np.ndarray, start: int) -> None:
        view, place = rows.reshape(-1).view(np.uint8).data, self._begin + start * self._row
        while view:
            got = self._read_at(view, place)
            if not got:
                raise OSError(f"{self._path} ends within row {(place - self._begin) // self._row}")
            view, place = view[got:], place + got

    def _read_at(self, view: memoryview, place: int) -> int:
        """Read into the view from this position; return the number of bytes read."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), (view,), place)
        with self._reading:
            self._file.seek(place)
            return self._file.readinto(view)


def _native(rows: Any) -> np.ndarray:
    """The rows as an array in the byte order of this machine."""
    array = np.asarray(rows)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _near(indices: np.ndarray, gap: int, span: int) -> Iterator[slice]:
    """Cut increasing indices into runs with steps of at most `gap` that cover fewer than `span` rows each."""
    breaks = np.flatnonzero(np.diff(indices) > gap) + 1
    begin = 0
    for end in [*breaks.tolist(), len(indices)]:
        while begin < end:
            stop = int(np.searchsorted(indices[begin:end], indices[begin] + span)) + begin
            yield slice(begin, stop)
            begin = stop


def _is_source(value: Any) -> bool:
    return isinstance(value, _Rows)


def _as_source(source: PyTree) -> PyTree[_Rows]:
    return jax.tree.map(_as_rows, source)


def _as_rows(leaf: Any) -> _Rows:
    if isinstance(leaf, _Rows):
        return leaf
    if isinstance(leaf, str | os.PathLike):
        return _File(leaf)
    shaped = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    if isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim:
        return _Indexed(np.asanyarray(leaf))
    if shaped and len(leaf.shape) and hasattr(leaf, "__getitem__"):
        return _Sliced(leaf)
    listed = hasattr(leaf, "__len__") and hasattr(leaf, "__getitem__")
    if not shaped and listed and not isinstance(leaf, bytes):
        return _Indexed(leaf)
    raise InputError(
        f"{type(leaf).__name__} cannot be streamed: give the path of a .npy file, an array with a first axis, or an "
        "object with len(…) and […] by row numbers."
    )


def _length(source: PyTree[_Rows]) -> int:
    lengths = {len(leaf) for leaf in jax.tree.leaves(source, is_leaf=_is_source)}
    if len(lengths) != 1:
        raise InputError(
            f"the arrays of data have different lengths {sorted(lengths)} along their first axis."
        )
    return lengths.pop()
