"""Every reader of files and words gives a result or a clear error for any input, in bounded memory.

A seeded mutator damages valid files, which are then read: as they are, behind their compression, and with their
checksums made right, as an attacker would.
"""

import gzip
import io
import json
import os
import resource
import signal
import sys
import tarfile
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import typer

import gpvi
from damage import resealed, sealed, split
from gpvi import bnn
from gpvi.cli import application, load_app, userfile
from gpvi.cli import fit as fitting
from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.errors import GPVIError
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine
from gpvi.training import checkpoint
from gpvi.training.recovery import Run
from gpvi_paper import records
from gpvi_paper.cli import run as running
from gpvi_paper.data import cifar10, mnist, posteriordb, uci
from hostile import BOMB, Mutator, restore
from made_records import made

SECONDS = 60
"""Of the processor, after which an input counts as endless; the slowest take a few, however busy the machine is."""
ROOM = 2**30
"""Bytes by which the memory may grow over all inputs."""
LONGEST = 3_000
"""Letters of a message."""
counts = pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])


class Reader(ABC):
    """A folder of right files, and what reads it."""

    @abstractmethod
    def make(self, folder: Path) -> None: ...

    @abstractmethod
    def read(self, folder: Path) -> object: ...

    def seal(self, folder: Path) -> None:  # noqa: B027 - most have nothing that vouches
        """Renew what vouches for the content."""

    def pack(self, path: Path, content: bytes) -> bytes:
        """The content of a file as it lies on disk."""
        return gzip.compress(content, 1) if path.suffix == ".gz" else content

    def unpack(self, path: Path, content: bytes) -> bytes:
        return gzip.decompress(content) if path.suffix == ".gz" else content


class Saved(Reader):
    """What `storage` wrote: a document packed in a file, with a checksum."""

    def pack(self, path: Path, content: bytes) -> bytes:
        header, data = split(path.read_bytes())
        header["__metadata__"]["document"] = content.decode("utf-8", "replace")
        return sealed(header, data)

    def unpack(self, path: Path, content: bytes) -> bytes:
        return split(content)[0]["__metadata__"]["document"].encode()

    def seal(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.write_bytes(resealed(path.read_bytes()))


class SavedPosterior(Saved):
    def __init__(self, method):
        self._method = method

    def make(self, folder):
        target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        model = self._method.init(target, optax.sgd(0.0), key=jax.random.key(0)).learner.model
        training = Training(3, 3, 0.1, {"elbo": np.zeros(3)}, ("a note",), "somewhere")
        affine = Affine.identity(2, np.dtype("float32"))
        Posterior(self._method, model, Start(affine), ("a", "b"), training).save(folder / "saved")

    def read(self, folder):
        return gpvi.load(folder / "saved")


class SavedPredictive(Saved):
    _network = bnn.mlp((2, 1))

    def make(self, folder):
        target = gpvi.Target(lambda x: -0.5 * x @ x, dim=3)
        method = gpvi.SVGD(particles=3)
        model = method.init(target, optax.sgd(0.0), key=jax.random.key(0)).learner.model
        affine = Affine.identity(3, np.dtype("float32"))
        training = Training(3, 3, 0.1, {"elbo": np.zeros(3)}, ("a note",), "somewhere")
        one = Posterior(method, model, Start(affine), ("a", "b", "c"), training)
        made = bnn.Predictive([one, one], self._network, bnn.Gaussian(noise=0.1))
        made.save(folder / "saved", X=np.zeros((1, 2)))

    def read(self, folder):
        return bnn.load(folder / "saved", self._network)


class Checkpoint(Saved):
    def _run(self):
        run = Run({"a": jnp.zeros((2, 3)), "b": jnp.zeros((), jnp.int32)})
        run.accept(run.arrays, {"elbo": np.zeros(4, np.float32)}, 4)
        run.notes.append("a note")
        return run

    def _open(self, folder):
        found = checkpoint.Checkpoints(folder / "run")
        affine = Affine.identity(2, np.dtype("float32"))
        found.identify(
            {"method": "m", "key": "k"},
            [0.5, 1.0],
            [Start(affine, "somewhere", InitialEvidence(-1.0, 0.1, -2.0))],
        )
        return found

    def make(self, folder):
        saves = self._open(folder)
        for _ in range(2):
            saves.save(0, self._run())

    def read(self, folder):
        saves = self._open(folder)
        with saves.locked():
            saves.starts(gpvi.Target(lambda x: -0.5 * x @ x, dim=2))
            found = saves.resumed(0, self._run())
        if any("damaged" in note for note in found.notes):
            raise GPVIError(found.notes[-1])
        return found


class Mnist(Reader):
    def __init__(self, suffix):
        self._suffix = suffix

    def make(self, folder):
        rng = np.random.default_rng(0)
        for name, shape in zip(mnist.FILES, ((6, 4, 4), (6,), (4, 4, 4), (4,)), strict=True):
            header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            path = folder / f"{name}{self._suffix}"
            values = rng.integers(10, size=shape).astype(np.uint8).tobytes()
            path.write_bytes(self.pack(path, header + values))

    def read(self, folder):
        return mnist.read(folder)


class Cifar10(Reader):
    def __init__(self, packed):
        self._packed = packed

    def make(self, folder):
        if self._packed:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for name in cifar10.FILES:
                    member = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
                    member.size = cifar10.RECORD
                    archive.addfile(member, io.BytesIO(bytes([3]) * cifar10.RECORD))
            (folder / cifar10.ARCHIVE).write_bytes(packed.getvalue())
        else:
            for name in cifar10.FILES:
                (folder / name).write_bytes(bytes([3]) * cifar10.RECORD)
        np.save(folder / cifar10.EXACT, np.array([True]))

    def read(self, folder):
        return cifar10.read(folder)


class Uci(Reader):
    def make(self, folder):
        data = folder / "yacht" / "data"
        data.mkdir(parents=True)
        table = np.random.default_rng(0).normal(size=(6, 3))
        with gzip.open(data / "data.txt.gz", "wt") as file:
            np.savetxt(file, table)
        (data / "index_features.txt").write_text("0\n1\n")
        (data / "index_target.txt").write_text("2\n")
        (data / "n_splits.txt").write_text("1\n")
        (data / "index_train_0.txt").write_text("0\n1\n2\n3\n")
        (data / "index_test_0.txt").write_text("4\n5\n")

    def read(self, folder):
        return uci.read(folder, "yacht")


class Posteriordb(Reader):
    def make(self, folder):
        for place in ("posteriors", "data", "reference_draws"):
            (folder / place).mkdir()
        entry = {"data_name": "d", "reference_posterior_name": "r"}
        (folder / "posteriors" / "p.json").write_text(json.dumps(entry))
        chains = [{"a": [0.5, 1.0], "b": [1, 2]}] * 2
        for place, value in (("data/d", {"N": 3, "y": [1.0, 2.0]}), ("reference_draws/r", chains)):
            path = folder / f"{place}.json.zip"
            path.write_bytes(self.pack(path, json.dumps(value).encode()))

    def pack(self, path, content):
        if path.suffix != ".zip":
            return content
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("document.json", content)
        return packed.getvalue()

    def unpack(self, path, content):
        if path.suffix != ".zip":
            return content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read("document.json")

    def read(self, folder):
        return posteriordb.read(folder, "p")


class Records(Reader):
    def make(self, folder):
        records.write(made("blr", "GPVI (pathwise)", "best"), folder)
        records.write(made("energy", "GPVI (default)", "best"), folder)

    def read(self, folder):
        return records.find([folder])


class Streamed(Reader):
    def make(self, folder):
        np.save(folder / "x.npy", np.zeros((5, 2), np.float32))

    def read(self, folder):
        stream = gpvi.Stream(folder / "x.npy")
        return stream.rows(np.array([stream.size - 1]))


READERS = {
    "posterior of particles": SavedPosterior(gpvi.SVGD(particles=3)),
    "posterior of a generator": SavedPosterior(gpvi.GPVI()),
    "predictive": SavedPredictive(),
    "checkpoint": Checkpoint(),
    "MNIST": Mnist(""),
    "MNIST gzipped": Mnist(".gz"),
    "CIFAR-10": Cifar10(packed=False),
    "CIFAR-10 archive": Cifar10(packed=True),
    "UCI": Uci(),
    "posteriordb": Posteriordb(),
    "records": Records(),
    "stream": Streamed(),
}


class _EndlessError(Exception):
    pass


def outcome(call) -> str:
    """How one input ended; any error but one of this library is passed on."""

    def interrupt(*_):
        raise _EndlessError

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        call()
        return "read"
    except GPVIError as error:
        return type(error).__name__ if len(str(error)) < LONGEST else "too long a message"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def damage(reader: Reader, folder: Path, originals: dict[Path, bytes], mutator: Mutator) -> None:
    """Damage one file: itself, its bytes, or what is packed in it; sometimes with checksums renewed."""
    path = mutator.pick(sorted(originals))
    content, kind = originals[path], mutator.below(20)
    if kind == 0:
        mutator.file(path)
    elif kind == 1 and path.suffix == ".gz":
        path.write_bytes(BOMB)
    elif kind < 10:
        path.write_bytes(mutator.content(content))
    else:
        path.write_bytes(reader.pack(path, mutator.content(reader.unpack(path, content))))
    if mutator.below(2):
        reader.seal(folder)


def fuzz(name: str, folder: Path, count: int, seed: int) -> Counter:
    """Read `count` damaged inputs; how they ended."""
    reader, mutator = READERS[name], Mutator(seed)
    reader.make(folder)
    originals = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert outcome(lambda: reader.read(folder)) == "read"
    found: Counter = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        damage(reader, folder, originals, mutator)
        try:
            found[outcome(lambda: reader.read(folder))] += 1
        except BaseException as error:
            kept = {str(p.relative_to(folder)): _shown(p) for p in originals}
            raise AssertionError(f"input {number} of {name}: {error!r}; {kept}") from error
        for path, content in originals.items():
            restore(path, content)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < ROOM, f"{grown:,} bytes more"
    return found


def _shown(path: Path) -> str:
    return repr(path.read_bytes()[:300]) if path.is_file() else "no file"


def check(found: Counter, count: int) -> None:
    """Each input ended as it may; the counts are printed for the table in docs/surviving.md."""
    print(dict(found))
    assert sum(found.values()) == count
    assert found["read"] < count, "nothing was refused"
    assert not found["too long a message"]


@counts
@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_what_is_damaged(name, count, tmp_path):
    check(fuzz(name, tmp_path, count, seed=1), count)


LINES = (
    ["list", "methods"],
    ["list", "data"],
    ["run", "blr", "--method", "gpvi", "--seeds", "3", "--preset", "smoke", "--out", "runs"],
    ["run", "mnist", "--data-dir", "data", "--json"],
    ["report", "runs", "--out", "report"],
    ["fit", "model.py:log_density", "--dim", "2", "--steps", "10", "--draws", "5", "--method", "svgd"],
    ["demo", "--out", "demo"],
    ["--version"],
)  # fmt: skip


def command(words: list[str]) -> None:
    """The command, with its work left out; an error that was not foreseen is passed on."""
    said = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(running, "_run", lambda *a, **k: [])
        patch.setattr(running, "_prepared", lambda e, *_: e)
        patch.setattr("gpvi_paper.report.write", lambda *_, **__: "page")
        patch.setattr("gpvi_paper.demonstration.CASES", ())
        patch.setattr("gpvi_paper.report.demo_page.write", lambda *_: "page")
        patch.setattr(
            userfile, "target", lambda place, dim: userfile._run(userfile.split(place)[0])
        )
        patch.setattr(fitting, "_check_density", lambda *_: None)
        patch.setattr(sys.modules["gpvi.training.fit"], "fit", _stop)
        patch.setattr(application, "complain", said.append)
        patch.setattr(fitting, "complain", said.append)
        with pytest.raises(SystemExit) as ended:
            typer.main.get_command(load_app()).main(words, prog_name="gpvi")
    assert ended.value.code in (0, 1, 2, 130), ended.value.code
    assert not any(line.startswith("unexpected") for line in said), said
    if ended.value.code:
        raise GPVIError((said or ["no word"])[-1][:1_000])


def _stop(*_, **__):
    raise GPVIError("trained")


def fuzz_commands(folder: Path, count: int, seed: int) -> Counter:
    mutator, found = Mutator(seed), Counter()
    folder = folder / "inner"  # so that no `..` finds what other tests have written
    folder.mkdir()
    (folder / "model.py").write_text("def log_density(x):\n    return -0.5 * x @ x\n")
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number in range(count):
            words = mutator.words(mutator.pick(LINES))
            try:
                found[outcome(lambda words=words: command(words))] += 1
            except BaseException as error:
                raise AssertionError(f"command {number}: {str(words)[:600]}: {error!r}") from error
    return found


@counts
def test_commands_refuse_what_they_do_not_know(count, tmp_path, capsys):
    check(fuzz_commands(tmp_path, count, seed=1), count)


def fuzz_places(folder: Path, count: int, seed: int) -> Counter:
    """FILE.py:NAME: the argument is damaged, the file is the user's and is run."""
    mutator, found = Mutator(seed), Counter()
    path = folder / "model.py"
    path.write_text("def log_density(x):\n    return -0.5 * x @ x\nother = 3\n")
    (folder / "broken.py").write_text("def log_density(x:\n")
    (folder / "zero.py").write_bytes(b"x = 1\0")
    os.mkfifo(folder / "pipe.py")
    files = ("model.py", "broken.py", "zero.py", "pipe.py", "", ".")
    names = ("log_density", "other", "")
    places = [f"{folder / file}:{name}" for file in files for name in names]

    def read(place: str) -> None:
        file, name = userfile.split(place)
        value = userfile._find(userfile._run(file), file, name)
        userfile._as_target(value, file, name, 2)

    for number in range(count):
        (place,) = (mutator.words([mutator.pick(places)]) or [""])[:1]
        try:
            found[outcome(lambda place=place: read(place))] += 1
        except BaseException as error:
            raise AssertionError(f"place {number}: {place[:600]!r}: {error!r}") from error
    return found


@counts
def test_places_of_functions_are_refused_in_words(count, tmp_path):
    check(fuzz_places(tmp_path, count, seed=1), count)


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path):
    reader = READERS["posteriordb"]
    reader.make(tmp_path)
    path = tmp_path / "data" / "d.json.zip"
    path.write_bytes(reader.pack(path, b" " * (posteriordb.LARGEST + 1)))
    with pytest.raises(GPVIError, match="unpacks to"):
        reader.read(tmp_path)
