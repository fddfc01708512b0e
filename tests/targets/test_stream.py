"""Streamed data train as data in memory do, and what the disk holds never fills the memory."""

import subprocess
import sys
import textwrap
import warnings

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.bnn import mlp
from gpvi.bnn import target as network_target
from gpvi.errors import InputError, NotAvailableError, StorageError, TrainingWarning
from gpvi.targets.density import scores
from gpvi.targets.stream import Stream, _near
from gpvi.training.fit import fit_seeds

N = 1_000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
LINEAR = gpvi.GPVI(generator=gpvi.generators.Linear(), particles=8)
Y = (X @ np.array([1.0, -1.0, 0.5]) + RNG.normal(size=N)).astype(np.float32)


class LogLikelihood(eqx.Module):
    def __call__(self, w, batch):
        inputs, y = batch
        return -0.5 * jnp.square(y - inputs @ w)


class LogPrior(eqx.Module):
    def __call__(self, w):
        return -0.5 * jnp.square(w).sum()


def target(data, **options):
    return gpvi.Target(
        log_likelihood=LogLikelihood(), log_prior=LogPrior(), data=data, dim=3, **options
    )


def fit(target, method=None, **options):
    options = {"steps": 100, "batch_size": 32, "init": None, "progress": False} | options
    method = gpvi.SVGD(particles=8) if method is None else method
    return gpvi.fit(target, method, key=jax.random.key(0), **options)


def bits(posterior) -> list[bytes]:
    leaves = jax.tree.leaves(eqx.filter(posterior.model, eqx.is_array))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


class Slices:
    """An array that is elsewhere and gives slices only, as those of h5py and zarr do."""

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, index):
        assert isinstance(index, slice)
        return self._array[index]


class Rows:
    """A data set that makes its rows."""

    def __init__(self, x=X, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, indices):
        return self.x[indices], self.y[indices]


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    for path, array in zip(paths, (X, Y), strict=True):
        np.save(path, array)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "memory"),
    [
        (gpvi.SVGD(particles=8), 2**10),
        (LINEAR, 2**26),
        (gpvi.MeanFieldVI(particles=8), 2**12),
        (gpvi.DeepEnsemble(members=3), 2**12),
    ],
)
def test_streamed_training_is_training_in_memory_bit_for_bit(method, memory, files):
    """In several chunks, the last of which is masked, and at any budget of memory."""
    whole = fit(target((X, Y)), method, steps=101)
    found = fit(target(Stream(files, memory=memory)), method, steps=101)
    assert bits(found) == bits(whole)
    for term, values in whole.training.history.items():
        np.testing.assert_array_equal(found.training.history[term], values)


def test_a_streamed_target_knows_all_its_data(files, monkeypatch):
    """log p and its gradient are sums over blocks, at one point and at many."""
    monkeypatch.setattr("gpvi.targets.stream.BLOCK_ROWS", 300)
    here, there = target((X, Y)), target(Stream(files))
    points = jax.random.normal(jax.random.key(1), (5, 3))
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(here.log_density)))(points)
    np.testing.assert_allclose(there.log_densities(points), values, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: scores(there, x))(points), slopes, rtol=1e-4)
    one = jax.jit(jax.value_and_grad(there.log_density))(points[0])
    np.testing.assert_allclose(one[0], values[0], rtol=1e-5)
    np.testing.assert_allclose(one[1], slopes[0], rtol=1e-4)


@pytest.mark.slow
def test_a_streamed_posterior_is_diagnosed_like_one_in_memory(files):
    key = jax.random.key(0)
    here, there = (fit(target(data), LINEAR).diagnose(key=key) for data in ((X, Y), Stream(files)))
    assert there.elbo == pytest.approx(here.elbo, rel=1e-4)
    assert there.stein_spread == pytest.approx(here.stein_spread, rel=1e-3)
    assert there.missing == here.missing


@pytest.mark.parametrize("kind", ["file", "memmap", "h5py", "slices", "dataset", "array", "nested"])
def test_every_source_gives_the_same_rows(kind, files, tmp_path):
    sources = {
        "file": lambda: files,
        "memmap": lambda: tuple(np.load(path, mmap_mode="r") for path in files),
        "slices": lambda: (Slices(X), Slices(Y)),
        "dataset": Rows,
        "array": lambda: (X, Y),
        "nested": lambda: Stream(Rows(), transform=lambda rows: rows).paired_with(
            X, lambda p: p[0]
        ),
    }
    if kind == "h5py":
        with h5py.File(tmp_path / "data.h5", "w") as file:
            file.create_dataset("x", data=X, chunks=(100, 3), compression="gzip")
            file["y"] = Y
        file = h5py.File(tmp_path / "data.h5", "r")
        sources["h5py"] = lambda: (file["x"], file["y"])
    made = sources[kind]()
    stream = made if isinstance(made, Stream) else Stream(made)
    for indices in (np.array([[5, 3], [999, 5]]), RNG.integers(N, size=200)):
        x, y = stream.rows(indices)
        np.testing.assert_array_equal(x, X[indices])
        np.testing.assert_array_equal(y, Y[indices])


def test_rows_near_to_one_another_are_read_together():
    indices = np.array([0, 1, 5, 100, 103, 104, 200])
    assert list(_near(indices, 4, 1_000)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(_near(indices, 4, 4)) == [slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 6), slice(6, 7)]  # fmt: skip


@pytest.mark.slow
def test_a_streamed_run_goes_on_and_knows_its_data(files, tmp_path):
    """Stopped and continued, in chunks of two steps, it ends as the run in memory does."""

    def stop(event):
        if event.step >= 40:
            raise StopIteration

    whole = fit(target((X, Y)))
    here = target(Stream(files, memory=2**10))
    options = {"checkpoint": tmp_path / "saves"}
    with pytest.warns(TrainingWarning, match="stopped by a callback"):
        fit(here, callbacks=[stop], **options)
    with pytest.raises(InputError, match=r"another run: .*data"):
        fit(target(Stream((X + 1, Y))), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        assert bits(fit(here, **options)) == bits(whole)


def test_networks_stream(files):
    network = mlp((3, 4, 1))
    here = network_target(network, "gaussian", "normal", X, Y)
    for data in ((Stream(files[0]), Y), (Stream(files[0]), Stream(files[1]))):
        there = network_target(network, "gaussian", "normal", *data)
        assert there.stream is not None
        for one, other in zip(there.batch(np.arange(7)), here.batch(np.arange(7)), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="X has 1000 rows and y 999"):
        network_target(network, "gaussian", "normal", Stream(files[0]), Y[:-1])


@pytest.mark.slow
def test_a_streamed_run_is_estimated(files):
    streamed = target(Stream(files), batch_size=16)
    found = gpvi.estimate(streamed, gpvi.SVGD(particles=8), key=jax.random.key(0), steps=100)
    assert found.steps == 100
    assert np.isfinite(found.step_seconds)


def test_a_streamed_target_is_looked_at_before_training(files):
    assert target(Stream(files)).debug().ok


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_come_in_the_precision_of_the_target(dtype):
    exact = X.astype(np.float64) / 3, Y.astype(np.float64)
    here, there = (target(data, dtype=dtype) for data in (exact, Stream(exact)))
    with here.precision():
        batches = [each.batch(np.array([7, 3])) for each in (here, there)]
    for one, other in zip(*batches, strict=True):
        assert one.dtype == other.dtype == dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_on_rows_in_the_precision_of_the_target(dtype):
    exact = X.astype(np.float64) / 3, Y.astype(np.float64)
    whole, streamed = fit(target(exact, dtype=dtype)), fit(target(Stream(exact), dtype=dtype))
    assert streamed.particles.dtype == dtype
    assert bits(streamed) == bits(whole)


def test_what_cannot_be_streamed_is_said(files, tmp_path):
    np.save(tmp_path / "columns.npy", np.asfortranarray(X))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    (tmp_path / "short.npy").write_bytes(files[0].read_bytes()[:-1])
    (tmp_path / "none.npy").write_text("nothing")
    for source, error, said in (
        ("absent.npy", InputError, "no file"),
        (tmp_path / "columns.npy", InputError, "by columns"),
        (tmp_path / "text.npy", InputError, "numbers"),
        (tmp_path / "short.npy", StorageError, "cut short"),
        (tmp_path / "none.npy", StorageError, "not a .npy file"),
        ((files[0], Y[:-1]), InputError, "different lengths"),
        (3.0, InputError, "cannot be streamed"),
        (np.float32(3.0), InputError, "cannot be streamed"),
        (X[:0], InputError, "0 rows"),
        (np.array([np.nan, 1.0]), InputError, "holds nan"),
    ):
        with pytest.raises(error, match=said):
            Stream(source)
    with pytest.raises(InputError, match="memory is 0"):
        Stream(files, memory=0)
    streamed = target(Stream(files))
    with pytest.raises(InputError, match="pass batch_size="):
        fit(streamed, batch_size=None)
    with pytest.raises(NotAvailableError, match="NUTS needs all data"):
        fit(streamed, gpvi.NUTS(), batch_size=None)
    with pytest.raises(NotAvailableError, match="data in memory"):
        fit_seeds([streamed, streamed], gpvi.SVGD(), key=jax.random.key(0), batch_size=8)
    assert streamed.log_likelihood_terms is None


def test_a_bad_row_stops_the_run_and_the_save_stays(tmp_path):
    bad = X.copy()
    bad[500, 1] = np.nan
    streamed = target(Stream((bad, Y), memory=2**10))
    with pytest.raises(InputError, match=r"data\[0\] holds nan at index \(500, 1\)"):
        fit(streamed, checkpoint=tmp_path, every=1)
    saved = sorted(tmp_path.glob("attempt-*"))
    assert saved


def test_a_file_that_is_cut_short_is_an_error(files):
    stream = Stream(files)
    with open(files[0], "r+b") as file:
        file.truncate(4_000)
    with pytest.raises(StorageError, match=r"cannot be read.*ends within row"):
        stream.rows(np.array([990]))


def test_rows_of_another_form_are_refused():
    class Changing(Rows):
        def __getitem__(self, indices):
            return self.x[indices][:, : 2 if len(indices) > 1 else 3]

    class Few(Rows):
        def __getitem__(self, indices):
            return self.x[:1]

    with pytest.raises(InputError, match="one shape and type"):
        Stream(Changing()).rows(np.array([1, 2]))
    with pytest.raises(InputError, match=r"shape \(1, 3\) for 2 rows"):
        Stream(Few()).rows(np.array([1, 2]))


LARGER = textwrap.dedent("""
    import resource, sys
    import jax, jax.numpy as jnp, numpy as np
    import gpvi

    def peak():  # ru_maxrss would count what the parent held before exec
        lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
        return int(lines["VmHWM"].split()[0]) * 1024

    features = int(sys.argv[2])
    target = lambda data: gpvi.Target(
        log_likelihood=lambda w, rows: -0.5 * jnp.square(rows @ w),
        log_prior=lambda w: -0.5 * jnp.square(w).sum(), data=data, dim=features)

    def fit(data, **options):
        return gpvi.fit(target(data), gpvi.SVGD(particles=4), key=jax.random.key(0), steps=200,
                        init=None, progress=False, **options)

    fit(np.zeros((64, features), np.float32), batch_size=32)
    if sys.argv[3] != "unlimited":
        used = int(dict(l.split(":", 1) for l in open("/proc/self/status"))["VmData"].split()[0])
        room = used * 1024 + int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    before = peak()
    found = fit(gpvi.Stream(sys.argv[1], memory=2**22), batch_size=32)
    assert found.training.steps == 200
    print(peak() - before)
    try:
        np.load(sys.argv[1])
        print("loaded")
    except MemoryError:
        print("too large to load")
""")


def larger(path, rows: int, features: int, limit: str) -> list[str]:
    """Train on such a file with so many bytes of room: by how many bytes the peak grew, and whether the file loads."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, features))
    for first in range(0, rows, 1_000):
        array[first : first + 1_000] = 0.01 * (first % 7 - 3)
    del array
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LARGER, str(path), str(features), limit],
        capture_output=True,
        text=True,
        timeout=3_000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.slow
def test_data_larger_than_the_memory_of_the_process_train(tmp_path):
    """2 GiB of rows in a process that may allocate 256 MiB more than it has."""
    grown, loads, *_ = larger(tmp_path / "large.npy", 2**19, 2**10, str(2**28))
    assert loads == "too large to load"
    assert int(grown) < 2**28


@pytest.mark.slow
def test_data_larger_than_the_memory_given_train(tmp_path):
    """The same in short: 96 MiB of rows in a process that may allocate 64 MiB more than it has."""
    grown, loads, *_ = larger(tmp_path / "large.npy", 24_576, 2**10, str(2**26))
    assert loads == "too large to load"
    assert int(grown) < 2**26
