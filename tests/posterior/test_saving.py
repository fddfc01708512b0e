"""A saved posterior gives the same draws bit for bit, anywhere, or a `StorageError` and nothing else."""

import copy
import functools
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpvi
from damage import array, drop, put
from gpvi.errors import StorageError
from gpvi.generators import MLP, Copula, Linear, Residual, SplineFlow, Triangular, triangular
from gpvi.methods.carriers import Sampler
from gpvi.persistence import format as storage
from gpvi.posterior import saving
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target
from selection import slow

pytestmark = pytest.mark.usefixtures("unexplored")

METHODS = {
    "linear": lambda: gpvi.GPVI(generator=Linear()),
    "mlp": lambda: gpvi.GPVI(generator=MLP((3,), "tanh"), gradient="functional", solver="dense"),
    "residual": lambda: gpvi.GPVI(generator=Residual(2, (4,), scale=0.3, learn_scale=True)),
    "copula": lambda: gpvi.GPVI(generator=Copula()),
    "affine": lambda: gpvi.AmortizedKSD(generator=Triangular(2, "affine", (4,))),
    "conditional": lambda: gpvi.AmortizedGFSF(
        generator=Triangular(1, "affine", (), scale_form="conditional")
    ),
    "spline": lambda: gpvi.GPVI(generator=Triangular(2, SplineFlow(2, 4, 5.0, 6), (4,))),
    "svgd": lambda: gpvi.SVGD(particles=6),
    "gfsd": lambda: gpvi.GFSD(particles=1),
    "ksd": lambda: gpvi.KSD(particles=6),
}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Syncing takes most of the time; what is synced, and when, is tested with the storage."""
    with mock.patch.object(os, "fsync"):
        yield


@functools.cache
def built(name, dtype):
    """What `fit` would start from, without training."""
    import optax

    target = Target(lambda x: -0.5 * x @ x, dim=3, dtype=dtype)
    with target.precision():
        density = Whitened(target, Affine.identity(3, target.dtype))
        model = METHODS[name]().init(density, optax.sgd(0.1), key=jax.random.key(5)).learner.model
    return model.generator if isinstance(model, Sampler) else model


def example(name, dtype="float32", affine="diagonal", seed=0, notes=()):
    """A posterior away from its start, of any method, dtype and coordinates."""
    rng = np.random.default_rng(seed)

    def move(leaf):
        noise = 0.1 * rng.standard_normal(leaf.shape)
        return jnp.asarray(np.asarray(leaf) + noise, leaf.dtype)

    with jax.enable_x64(dtype == "float64"):
        model = jax.tree.map(
            lambda a: move(a) if eqx.is_inexact_array(a) else a, built(name, dtype)
        )
        scale = np.exp(rng.standard_normal(3))
        if affine == "dense":
            scale = np.diag(scale) + np.tril(rng.standard_normal((3, 3)), -1)
        coordinates = Affine(jnp.asarray(rng.standard_normal(3), dtype), jnp.asarray(scale, dtype))
    history = {"elbo": rng.standard_normal(4), "rejected": np.zeros(4, np.float32)}
    record = Training(4, 9, 0.25, history, tuple(notes), "somewhere")
    return Posterior(METHODS[name](), model, Start(coordinates), ("a", "b", "c"), record)


def assert_same(first, second):
    key = jax.random.key(11)
    n = 1 if first.method == gpvi.GFSD(particles=1) else 6
    assert second.dtype == first.dtype
    assert second.sample(n, key=key).dtype == first.dtype
    assert (
        np.asarray(first.sample(n, key=key)).tobytes()
        == np.asarray(second.sample(n, key=key)).tobytes()
    )
    assert (second.method, second.names, second.dim) == (first.method, first.names, first.dim)
    old, new = first.training, second.training
    assert (new.steps, new.planned, new.seconds) == (old.steps, old.planned, old.seconds)
    assert (new.notes, second.start.report) == (old.notes, first.start.report)
    assert list(new.history) == list(old.history)
    for name, values in old.history.items():
        np.testing.assert_array_equal(values, new.history[name])


def identical(first, second):
    """Equal bits in every array, without drawing."""
    leaves = zip(
        jax.tree.leaves((first.model, first.affine)),
        jax.tree.leaves((second.model, second.affine)),
        strict=True,
    )
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves if eqx.is_array(a)
    )


@settings(max_examples=6)
@given(
    st.sampled_from(list(METHODS)),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["diagonal", "dense"]),
    st.integers(0, 2**32 - 1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
)
def test_identical_draws_after_a_trip_through_files(name, dtype, affine, seed, notes):
    posterior = example(name, dtype, affine, seed, notes)
    with tempfile.TemporaryDirectory() as directory:
        posterior.save(Path(directory) / "saved")
        assert_same(posterior, gpvi.load(Path(directory) / "saved"))


def test_densities_too(tmp_path, getkey):
    posterior = example("spline", "float64", "dense")
    posterior.save(str(tmp_path / "saved"))
    loaded, key = gpvi.load(str(tmp_path / "saved")), getkey()
    x, log_q = posterior.sample_and_log_prob(5, key=key)
    again, log_q_again = loaded.sample_and_log_prob(5, key=key)
    np.testing.assert_array_equal(x, again)
    np.testing.assert_array_equal(log_q, log_q_again)
    np.testing.assert_array_equal(posterior.log_prob(x), loaded.log_prob(x))


def test_a_new_process_needs_no_target(tmp_path):
    posterior = example("affine", "float64", "dense")
    posterior.save(tmp_path / "saved")
    script = (
        "import sys, jax, gpvi, numpy as np\n"
        "x = gpvi.load(sys.argv[1]).sample(6, key=jax.random.key(11))\n"
        "sys.stdout.write(np.asarray(x).tobytes().hex())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    here = np.asarray(posterior.sample(6, key=jax.random.key(11)))
    assert done.stdout == here.tobytes().hex()


# ------------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "saved"
    posterior = example("linear")
    posterior.save(path)
    return posterior, path.read_bytes()


def damage(content, rng):
    """Flip, cut, insert, repeat or overwrite bytes at a random place."""
    position = int(rng.integers(len(content)))
    kind = rng.integers(5)
    if kind == 0:
        return (
            content[:position]
            + bytes([content[position] ^ (1 << rng.integers(8))])
            + content[position + 1 :]
        )
    if kind == 1:
        return content[:position]
    if kind == 2:
        return content[:position] + rng.bytes(int(rng.integers(1, 9))) + content[position:]
    if kind == 3:
        return content[:position] + content[: position + 1]
    return content[:position] + rng.bytes(4) + content[position + 4 :]


def assert_survives(tiny, path, cases, seed):
    posterior, content = tiny
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(cases):
        path.write_bytes(damage(content, rng))
        try:
            loaded = gpvi.load(path)
        except StorageError as error:
            refused += str(path) in str(error)
        else:
            assert identical(posterior, loaded)
    assert refused > 0.9 * cases


def test_damaged_bytes(tiny, tmp_path):
    assert_survives(tiny, tmp_path / "saved", cases=400, seed=0)


@pytest.mark.slow
def test_many_damaged_bytes(tiny, tmp_path):
    assert_survives(tiny, tmp_path / "saved", cases=5_000, seed=1)


def test_undamaged_files_are_read(tiny, tmp_path):
    posterior, content = tiny
    (tmp_path / "copy").write_bytes(content)
    assert identical(posterior, gpvi.load(tmp_path / "copy"))


# ------------------------------------------------------- whole containers with a wrong meaning

HUGE = 10**12

DAMAGES = {
    **{f"no {key}": drop(key) for key in ("method", "dim", "dtype", "names", "affine", "training")},
    **{
        f"no training {key}": drop("training", key)
        for key in ("steps", "planned", "seconds", "notes", "start", "history")
    },
    "dim huge": put("dim", value=HUGE),
    "dim beyond int64": put("dim", value=2**80),
    "dim zero": put("dim", value=0),
    "dim negative": put("dim", value=-3),
    "dim other": put("dim", value=4),
    "dim float": put("dim", value=3.0),
    "dim true": put("dim", value=True),
    "dim text": put("dim", value="3"),
    "dtype other": put("dtype", value="float64"),
    "dtype integer": put("dtype", value="int32"),
    "dtype object": put("dtype", value="object"),
    "dtype null": put("dtype", value=None),
    "dtype list": put("dtype", value=["float32"]),
    "names few": put("names", value=["a"]),
    "names numbers": put("names", value=[1, 2, 3]),
    "names number": put("names", value=3),
    "names beside the document are lists": lambda document, arrays: (
        document.update(names=None),
        arrays.update(names=np.frombuffer(b"[[],[],[]]", np.uint8)),
    ),
    "affine other": put("affine", value="dense"),
    "affine unknown": put("affine", value="cubic"),
    "affine list": put("affine", value=["diagonal"]),
    "method null": put("method", value=None),
    "method text": put("method", value="GPVI"),
    "method number": put("method", value=3),
    "method unknown": put("method", "type", value="GVPI"),
    "method untyped": drop("method", "type"),
    "method is a generator": put("method", value={"type": "Linear"}),
    "method is a solver": put("method", value={"type": "Block"}),
    "method is a kernel": put("method", value={"type": "RBF"}),
    "method other": put("method", value={"type": "SVGD"}),
    "method with particles huge": put("method", value={"type": "SVGD", "particles": HUGE}),
    "method with particles many": put("method", value={"type": "SVGD", "particles": 5 * 10**7}),
    "method with particles beyond": put("method", value={"type": "SVGD", "particles": 2**80}),
    "method unknown option": put("method", "colour", value="red"),
    "generator other": put("method", "generator", value={"type": "MLP", "hidden": [2]}),
    "generator huge": put("method", "generator", value={"type": "MLP", "hidden": [HUGE, HUGE]}),
    "generator number": put("method", "generator", value=7),
    "generator is a method": put("method", "generator", value={"type": "SVGD"}),
    "generator k > d": put("method", "generator", value={"type": "Residual", "latent": 9}),
    "generator negative": put("method", "generator", value={"type": "MLP", "hidden": [-2]}),
    "gradient unknown": put("method", "gradient", value="conjugate"),
    "solver without l2": lambda document, arrays: document["method"].update(
        gradient="l2", solver={"type": "Helper"}
    ),
    "kernel number": put("method", "kernel", value=3),
    "training null": put("training", value=None),
    "training list": put("training", value=[]),
    "steps text": put("training", "steps", value="four"),
    "notes number": put("training", "notes", value=5),
    "notes numbers": put("training", "notes", value=[5]),
    "seconds text": put("training", "seconds", value="soon"),
    "history unknown": put("training", "history", value=["loss"]),
    "history number": put("training", "history", value=5),
    "history of lists": put("training", "history", value=[["elbo"]]),
    "history of other length": array("history/elbo", np.zeros(3)),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parts") / "saved"
    example("linear").save(directory)
    return storage.read(directory)


def written(directory, parts, change):
    document, arrays = copy.deepcopy(parts[0]), dict(parts[1])
    change(document, arrays)
    storage.write(directory, document, arrays)


def named(arrays, ending):
    """The one array whose name ends so."""
    (name,) = [name for name in arrays if name.endswith(ending)]
    return name


@pytest.mark.parametrize("name", list(DAMAGES))
def test_documents_that_mean_nothing(name, parts, tmp_path):
    written(tmp_path / "saved", parts, DAMAGES[name])
    with pytest.raises(StorageError):
        gpvi.load(tmp_path / "saved")


@pytest.mark.parametrize("ending", ["location", "scale", "weight", "bias"])
@pytest.mark.parametrize("how", ["missing", "longer", "other dtype", "scalar", "empty"])
def test_arrays_that_do_not_fit(ending, how, parts, tmp_path):
    name = named(parts[1], ending)
    right = parts[1][name]
    wrong = {
        "missing": None,
        "longer": np.concatenate([right, right]),
        "other dtype": right.astype(np.float64),
        "scalar": np.array(1.0, np.float32),
        "empty": right[:0],
    }[how]
    written(tmp_path / "saved", parts, array(name, wrong))
    with pytest.raises(StorageError, match=f"{ending} does not fit"):
        gpvi.load(tmp_path / "saved")


def test_an_unchanged_document_is_read(parts, tmp_path):
    written(tmp_path / "saved", parts, lambda document, arrays: None)
    assert identical(example("linear"), gpvi.load(tmp_path / "saved"))


def test_nothing_is_built_before_it_is_seen_to_fit(parts, tmp_path, monkeypatch):
    """5·10⁷ particles would take 600 MB; their shape alone is computed."""
    carrier, abstract = gpvi.SVGD.carrier, []

    def watched(self, target, *, key):
        made = carrier(self, target, key=key)
        abstract.append(isinstance(made.positions, jax.core.Tracer))
        return made

    monkeypatch.setattr(gpvi.SVGD, "carrier", watched)
    written(tmp_path / "saved", parts, DAMAGES["method with particles many"])
    with pytest.raises(StorageError, match=r"expected float32\[50000000, 3\], found none"):
        gpvi.load(tmp_path / "saved")
    assert abstract == [True]


def test_custom_parts_cannot_be_saved(tmp_path):
    posterior = example("linear")
    posterior.method = gpvi.GPVI(generator=Linear())
    object.__setattr__(posterior.method, "learning_rate", np.zeros(2))
    with pytest.raises(gpvi.errors.InputError, match="cannot be saved"):
        posterior.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_many_names_are_kept_beside_the_document(tmp_path, monkeypatch):
    posterior = example("linear")
    names = posterior._names = tuple(f'weights["{i}"]\n[{i}]' for i in range(posterior.dim))
    monkeypatch.setattr(saving, "LISTED", posterior.dim - 1)
    posterior.save(tmp_path / "saved")
    assert storage.read(tmp_path / "saved")[0]["names"] is None
    assert gpvi.load(tmp_path / "saved").names == names


@pytest.mark.slow
def test_a_head_that_once_chose_64_coordinates_is_read(tmp_path, monkeypatch):
    """Files do not say how many it chose, and it chooses more now."""
    target = Target(lambda x: -0.5 * x @ x, dim=70)
    with monkeypatch.context() as before:
        before.setattr(triangular, "ALL_HEAD", 64)
        posterior = gpvi.fit(target, key=jax.random.key(0), steps=2, init=None, progress=False)
        posterior.save(tmp_path / "saved")
    found = gpvi.load(tmp_path / "saved")
    key = jax.random.key(1)
    np.testing.assert_array_equal(found.sample(5, key=key), posterior.sample(5, key=key))
    assert "latent=64" in str(found.method)


@pytest.mark.parametrize(
    "method",
    [
        gpvi.SVGD(particles=8, annealing=gpvi.Annealing(steps=60)),
        slow(gpvi.KSD(particles=8)),
        pytest.param(
            gpvi.GPVI(generator=Linear(), gradient="functional", solver="helper", particles=8),
            marks=pytest.mark.filterwarnings("ignore:the solver leaves"),
        ),
        slow(gpvi.HMC(chains=2, draws=10, warmup=20, leapfrogs=3)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_training_goes_on_from_a_file_as_from_memory(method, tmp_path):
    """What a solver, critic, sampler or annealing knows is in the file."""
    target = Target(lambda x: -0.5 * (x**2).sum(), dim=2)
    options = {"key": jax.random.key(1), "init": None, "progress": False}
    steps = None if isinstance(method, gpvi.HMC) else 40
    first = gpvi.fit(target, method, steps=steps, **options)
    first.save(tmp_path / "saved")
    options["init"] = first
    here = gpvi.fit(target, method, steps=steps, **options)
    options["init"] = gpvi.load(tmp_path / "saved")
    there = gpvi.fit(target, method, steps=steps, **options)
    for a, b in zip(*(jax.tree.leaves(each.model) for each in (here, there)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", [gpvi.SVGD(particles=8), gpvi.KSD(particles=8)])
def test_a_pickle_holds_the_draws(method):
    """A copy for another process: of a target made of local functions, too, and without a critic's network."""
    target = Target(lambda x: -0.5 * (x**2).sum(), dim=2, names=["a", "b"])
    posterior = gpvi.fit(target, method, key=jax.random.key(0), steps=5, init=None, progress=False)
    copied = pickle.loads(pickle.dumps(posterior))  # noqa: S301
    np.testing.assert_array_equal(copied.particles, posterior.particles)
    assert copied.names == ("a", "b")
    assert copied.target is None and posterior.target is target
