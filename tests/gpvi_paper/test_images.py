"""Readers of image sets on made and damaged files; the open-category experiment against oracles; smoke runs."""

import dataclasses
import gzip
import io
import os
import pickle
import shutil
import struct
import sys
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpvi.bnn import generator, mlp
from gpvi.errors import GPVIError, InputError, NotAvailableError, StorageError
from gpvi_paper.data import cifar10, download, mnist
from gpvi_paper.data.images import Images
from gpvi_paper.experiments import experiment
from gpvi_paper.experiments.images import open_category
from gpvi_paper.experiments.images.cifar10 import CIFAR10, SmallConvolutional
from gpvi_paper.experiments.images.digits import Digits
from gpvi_paper.experiments.images.mnist import MNIST
from gpvi_paper.report.charts.outliers import ScoreHistogram, outlier_histograms
from made_data import cifar_records, idx, write_cifar, write_mnist

COLDER = "GPVI (pathwise, g = 6, T = 0.3)"
DIRECTORY = Path(os.environ.get("GPVI_DATA_DIR", "nowhere"))
real = pytest.mark.skipif(
    not (DIRECTORY / "mnist" / "train-images-idx3-ubyte.gz").is_file(),
    reason="MNIST is missing: set GPVI_DATA_DIR",
)


def write_python_cifar(folder, protocol=2, each=4):
    folder.mkdir(parents=True)
    for i, file in enumerate(cifar10.PYTHON.files.values()):
        records, labels, _ = cifar_records(each, i * each)
        batch = {b"batch_label": b"one of six", b"labels": labels.tolist(), b"data": records[:, 1:]}
        names = [f"image_{j}.png".encode() for j in range(each)]
        content = pickle.dumps(batch | {b"filenames": names}, protocol)
        (folder / file).write_bytes(content)


class TestMNIST:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
    def test_what_was_written_is_read(self, tmp_path, zipped, place):
        made = write_mnist(tmp_path / place, zipped=zipped)
        found = mnist.read(tmp_path)
        np.testing.assert_array_equal(found.train[..., 0], made["train-images-idx3-ubyte"])
        np.testing.assert_array_equal(found.test_labels, made["t10k-labels-idx1-ubyte"])
        assert found.test.shape == (20, 28, 28, 1)

    def test_an_absent_file_is_named_with_the_remedy(self, tmp_path):
        with pytest.raises(InputError, match=r"does not exist.*--data-dir"):
            mnist.read(tmp_path / "nowhere")
        write_mnist(tmp_path)
        (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\[.gz\] is missing"):
            mnist.read(tmp_path)

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_header_that_lies_allocates_nothing(self, tmp_path, zipped):
        """A promise of 2⁹⁶ bytes, and one of 200 million in a file of a few."""
        for shape in ((2**32 - 1,) * 3, (2 * 10**8,)):
            content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + b"abc"
            path = tmp_path / ("file.gz" if zipped else "file")
            path.write_bytes(gzip.compress(content) if zipped else content)
            with pytest.raises(StorageError, match="its header promises"):
                mnist.read_idx(path)

    def test_labels_and_images_must_agree(self, tmp_path):
        write_mnist(tmp_path)
        path = tmp_path / "t10k-labels-idx1-ubyte.gz"
        path.write_bytes(gzip.compress(idx(np.zeros(19))))
        with pytest.raises(StorageError, match="for 20 images"):
            mnist.read(tmp_path)
        path.write_bytes(gzip.compress(idx(np.full(20, 10))))
        with pytest.raises(StorageError, match="the label 10"):
            mnist.read(tmp_path)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_damage_never_crashes(self, tmp_path_factory, data):
        """A file cut short or with any bytes changed is refused, or holds as many values as it says."""
        zipped = data.draw(st.booleans())
        good = idx(np.arange(60).reshape(5, 4, 3))
        content = bytearray(gzip.compress(good) if zipped else good)
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
        path = tmp_path_factory.mktemp("idx") / ("file.gz" if zipped else "file")
        path.write_bytes(bytes(content))
        try:
            found = mnist.read_idx(path)
        except GPVIError:
            return
        assert found.dtype == np.uint8 and found.size <= mnist.LARGEST


class TestCIFAR10:
    def test_what_was_written_is_read(self, tmp_path):
        write_cifar(tmp_path / cifar10.BINARY.folder)
        found = cifar10.read(tmp_path)
        _, labels, pixels = cifar_records(4, 4)
        np.testing.assert_array_equal(found.train[4:8], pixels.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(found.train_labels[4:8], labels)
        assert found.train.shape == (20, 32, 32, 3) and found.test.shape == (4, 32, 32, 3)

    def test_the_archive_is_read_as_it_is(self, tmp_path):
        write_cifar(tmp_path / "plain")
        with tarfile.open(tmp_path / cifar10.BINARY.archive, "w:gz") as archive:
            for name in cifar10.BINARY.files.values():
                archive.add(tmp_path / "plain" / name, f"{cifar10.BINARY.folder}/{name}")
        for a, b in zip(cifar10.read(tmp_path), cifar10.read(tmp_path / "plain"), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_only_exact_test_images_count(self, tmp_path):
        write_cifar(tmp_path / cifar10.BINARY.folder)
        whole = cifar10.read(tmp_path)
        exact = np.array([True, False, True, True])
        np.save(tmp_path / cifar10.EXACT, exact)
        for place in (tmp_path, tmp_path / cifar10.BINARY.folder):
            np.testing.assert_array_equal(cifar10.read(place).test, whole.test[exact])
        for bad in (np.ones(3, bool), np.ones(4), np.zeros(4, bool)):
            np.save(tmp_path / cifar10.EXACT, bad)
            with pytest.raises(StorageError, match=cifar10.EXACT):
                cifar10.read(tmp_path)
        (tmp_path / cifar10.EXACT).write_bytes(b"\x80\x04K\x00.")
        with pytest.raises(StorageError, match="not a NumPy array"):
            cifar10.read(tmp_path)

    @pytest.mark.parametrize("protocol", [2, 4])
    @pytest.mark.parametrize("packed", [True, False])
    def test_the_python_version_holds_the_same(self, tmp_path, protocol, packed):
        write_cifar(tmp_path / "binary")
        folder = tmp_path / cifar10.PYTHON.folder
        write_python_cifar(folder, protocol)
        if packed:
            with tarfile.open(tmp_path / cifar10.PYTHON.archive, "w:gz") as archive:
                archive.add(folder, cifar10.PYTHON.folder)
            shutil.rmtree(folder)
        for a, b in zip(cifar10.read(tmp_path), cifar10.read(tmp_path / "binary"), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_a_pickle_is_never_run(self, tmp_path):
        class Program:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "it ran",))

        write_python_cifar(tmp_path / "data")
        (tmp_path / "data" / "data_batch_2").write_bytes(pickle.dumps({b"labels": Program()}))
        with pytest.raises(StorageError, match=r"data_batch_2 is damaged: it holds no labels"):
            cifar10.read(tmp_path / "data")
        (tmp_path / "data" / "data_batch_2").write_bytes(b"no program")
        with pytest.raises(StorageError, match="not a batch of the python version"):
            cifar10.read(tmp_path / "data")
        assert not (tmp_path / "it ran").exists()

    def test_absent_files_are_told(self, tmp_path):
        with pytest.raises(InputError, match=r"data_batch_1.bin is missing.*binary.tar.gz"):
            cifar10.read(tmp_path)
        with pytest.raises(InputError, match="does not exist"):
            cifar10.read(tmp_path / "nowhere")
        write_cifar(tmp_path)
        (tmp_path / "data_batch_3.bin").unlink()
        with pytest.raises(InputError, match=r"data_batch_3.bin is missing"):
            cifar10.read(tmp_path)
        with pytest.raises(InputError, match="it is a file"):
            cifar10.read(tmp_path / "data_batch_1.bin")

    def test_truncated_and_mislabelled_files(self, tmp_path):
        write_cifar(tmp_path)
        path = tmp_path / "data_batch_3.bin"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StorageError, match=r"data_batch_3.bin is damaged.*record size 3,073"):
            cifar10.read(tmp_path)
        path.write_bytes(bytes([10]) + bytes(3_072))
        with pytest.raises(StorageError, match="the label 10"):
            cifar10.read(tmp_path)

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_a_damaged_archive_never_crashes(self, tmp_path_factory, data):
        root = tmp_path_factory.mktemp("archive")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name in cifar10.BINARY.files.values():
                member = tarfile.TarInfo(name)
                member.size = cifar10.RECORD
                archive.addfile(member, io.BytesIO(bytes(cifar10.RECORD)))
        content = bytearray(made.getvalue())
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
        (root / cifar10.BINARY.archive).write_bytes(bytes(content))
        try:
            found = cifar10.read(root)
        except GPVIError:
            return
        assert len(found.train) == 5


class TestDownload:
    def test_without_pooch_the_remedy_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(NotAvailableError, match=r"gpvi\[data\].*--data-dir"):
            download.fetch("mnist")

    def test_every_file_of_the_reader_has_a_digest(self):
        assert set(download.SOURCES["mnist"].files) == {f"{name}.gz" for name in mnist.FILES}
        assert set(download.SOURCES["cifar10"].files) == {cifar10.BINARY.archive}

    @pytest.mark.parametrize("fails", [OSError("no route"), ValueError("hash differs")])
    def test_a_failed_download_says_what_to_do(self, monkeypatch, tmp_path, fails):
        class Pooch:
            @staticmethod
            def retrieve(*args, **options):
                raise fails

        monkeypatch.setitem(sys.modules, "pooch", Pooch)
        expected = InputError if isinstance(fails, OSError) else StorageError
        with pytest.raises(expected, match="--data-dir"):
            download.fetch("mnist", tmp_path)


def made_images(n=60):
    labels = np.arange(n, dtype=np.int32) % 10
    images = np.random.default_rng(1).integers(0, 256, (n, 4, 4, 1)).astype(np.uint8)
    return Images(images, labels, images[::-1].copy(), labels[::-1].copy())


class TestTask:
    def test_unknown_classes_are_in_the_outliers_alone(self):
        images = made_images()
        found = open_category.task(images, (6, 7, 8, 9))
        assert set(found.labels) == set(found.inlier_labels) == set(range(6))
        assert len(found.inputs) == 36 and len(found.outliers) == 24
        np.testing.assert_allclose(found.inputs.mean(), 0, atol=1e-5)
        np.testing.assert_allclose(found.inputs.std(), 1, atol=1e-5)

    def test_validation_never_sees_the_test_set(self):
        images = made_images()
        found = open_category.task(images, (6, 7, 8, 9), held_out=0.5)
        broken = images._replace(test=images.test[:1], test_labels=images.test_labels[:1])
        for a, b in zip(found, open_category.task(broken, (6, 7, 8, 9), held_out=0.5), strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(found.inputs) + len(found.inliers) == 36

    def test_images_kept_back_are_the_last_and_are_not_trained_on(self):
        images = made_images()
        shorter, kept = open_category.held_back(images, 0.1)
        assert len(shorter.train) == len(images.train) - len(kept.test) == 54
        np.testing.assert_array_equal(kept.test, images.train[54:])
        np.testing.assert_array_equal(kept.train, shorter.train)
        np.testing.assert_array_equal(shorter.test, images.test)

    def test_mirror_images_are_training_images_and_nothing_else(self):
        found = open_category.task(made_images(), (6, 7, 8, 9))
        doubled = open_category.with_mirror_images(found)
        n = len(found.labels)
        np.testing.assert_array_equal(doubled.inputs[:n], found.inputs)
        np.testing.assert_array_equal(doubled.inputs[n:, :, ::-1], found.inputs)
        np.testing.assert_array_equal(doubled.labels, np.tile(found.labels, 2))
        for a, b in zip(doubled[2:], found[2:], strict=True):
            assert a is b

    def test_the_authors_temperature(self):
        paper = experiment("mnist").recipes("paper")
        assert paper[open_category.HELPER].temperature(36_000) == pytest.approx(3.6)
        assert paper["SVGD"].temperature(36_000) == pytest.approx(3.6e5)
        assert experiment("cifar10").recipes("paper")[open_category.HELPER].temperature(
            30_000
        ) == pytest.approx(30.0)

    def test_a_temperature_of_ones_own_does_not_grow_with_the_data(self):
        best = experiment("mnist").recipes("best")
        found = {label: recipe.temperature(36_000) for label, recipe in best.items()}
        assert found.pop(COLDER) == best[COLDER].temperature(1) == 0.3
        assert [found.pop(f"GPVI (pathwise, T = {t})") for t in (0.3, 0.1)] == [0.3, 0.1]
        assert set(found.values()) == {1.0}


def test_every_budget_has_as_many_networks_a_step():
    """GPVI's generators together draw as many networks a step as the ensemble has members."""
    for name in ("mnist", "cifar10", "digits"):
        best = experiment(name).recipes("best")
        members = best[open_category.ENSEMBLE].method.members
        for label in (open_category.GPVI_BEST, open_category.ONE_GENERATOR):
            recipe = best[label]
            assert recipe.generators * recipe.method.particles == members
            assert recipe.epochs == best[open_category.ENSEMBLE].epochs


def test_the_network_on_photographs_has_the_papers_size():
    network = CIFAR10().network(made_images())
    assert network.size == 90_506
    assert network.definition == SmallConvolutional()
    assert network.outputs(np.zeros((2, 32, 32, 3))) == 10


@pytest.mark.slow
def test_digits_run_from_end_to_end():
    """A few steps of GPVI's mixture; what is recorded is what the tables and pictures need."""
    found = Digits().run(open_category.GPVI_BEST, "smoke", (0,), False)
    assert {f"split/{m.key}" for m in Digits.metrics} == {*found.rows, "split/sharpness"}
    assert all(np.isfinite(values).all() for values in found.rows.values())
    assert found.arrays["split/reliability"].shape == (3, 15)
    for part in ("inlier", "outlier"):
        np.testing.assert_allclose(found.arrays[f"split/{part}_scores"].sum(), 1, atol=1e-3)


@pytest.mark.slow
def test_one_network_has_no_variance_to_go_by():
    found = Digits().run(open_category.SOFTMAX, "smoke", (0,), False)
    assert "split/auroc_entropy" in found.rows and "split/auroc_variance" not in found.rows


@pytest.mark.slow
def test_training_learns_the_digits():
    """A short ensemble is far above chance, and images of unknown classes are more doubtful."""
    exp = Digits()
    images = exp.images()
    setting = open_category.BestSetting(
        dim=8_970, epochs=20, batch_size=100, learning_rate=5e-3, members=4, generators=2
    )
    recipe = open_category.best_recipes(setting)[open_category.ENSEMBLE]
    recipe = dataclasses.replace(recipe, draws=None)
    problem = open_category.task(images, open_category.UNKNOWN["split"])
    (parts,) = open_category.trained(problem, exp.network(images), recipe, 1, key=jax.random.key(0))
    found = open_category.measured(
        parts, exp.network(images), problem, None, key=jax.random.key(1)
    ).values
    assert found["accuracy"] > 0.9
    assert found["auroc_variance"] > 0.8
    assert found["nll"] < 0.4


SMALL = open_category.PaperSetting(
    epochs=1,
    batch_size=50,
    latent=8,
    hidden=(8, 8),
    learning_rate=1e-4,
    entropy_weight=1e-5,
    scale=0.01,
)


@pytest.mark.slow
@pytest.mark.parametrize("label", list(open_category.paper_recipes(SMALL)))
def test_the_published_recipes_run_in_small(label):
    exp = Digits()
    images = exp.images()
    recipe = dataclasses.replace(open_category.paper_recipes(SMALL)[label], steps=4, draws=3)
    problem, network = open_category.task(images, (6, 7, 8, 9)), exp.network(images)
    (parts,) = open_category.trained(problem, network, recipe, 1, key=jax.random.key(0))
    found = open_category.measured(parts, network, problem, 3, key=jax.random.key(1)).values
    assert np.isfinite(list(found.values())).all()


@pytest.mark.slow
@pytest.mark.parametrize("label", list(MNIST().recipes("smoke")))
def test_mnist_runs_on_made_files(tmp_path, label):
    write_mnist(tmp_path, train=100)
    found = MNIST().reading(tmp_path).run(label, "smoke", (0,), False)
    assert np.isfinite(found.rows["split/nll"]).all()


SHARPENED = f"{open_category.ENSEMBLE}, mirror images, sharpened"


@pytest.mark.slow
@pytest.mark.parametrize("label", [open_category.GPVI_BEST, open_category.ENSEMBLE, SHARPENED])
def test_cifar10_runs_on_made_files(tmp_path, label):
    write_cifar(tmp_path, each=10)
    found = CIFAR10().reading(tmp_path).run(label, "smoke", (0,), False)
    assert np.isfinite(found.rows["split/nll"]).all()
    assert ("split/sharpness" in found.rows) == (label == SHARPENED)


def test_options_that_came_later_leave_older_records_as_they_are():
    recipes = CIFAR10().recipes("best")
    later = {"mirrored", "sharpened", "posterior_temperature"}
    assert not later & recipes[open_category.ENSEMBLE].to_json().keys()
    assert (
        recipes[SHARPENED].to_json()["mirrored"]
        is recipes[SHARPENED].to_json()["sharpened"]
        is True
    )
    assert MNIST().recipes("best")[COLDER].to_json()["posterior_temperature"] == 0.3


@pytest.mark.slow
@real
def test_the_real_files_are_as_published():
    images = mnist.read(DIRECTORY)
    assert images.train.shape == (60_000, 28, 28, 1) and images.test.shape == (10_000, 28, 28, 1)
    np.testing.assert_allclose(images.train.mean() / 255, 0.1307, atol=1e-4)
    np.testing.assert_allclose(images.train.std() / 255, 0.3081, atol=1e-4)


def test_histograms_are_drawn():
    edges = open_category.HISTOGRAM
    shares = np.full(len(edges) - 1, 1 / (len(edges) - 1))
    histogram = ScoreHistogram(edges, shares, shares[::-1], "AUROC 0.99")
    svg = outlier_histograms({"GPVI": histogram, "Deep ensemble": histogram}, "variance")
    assert svg.startswith("<svg") and "AUROC 0.99" in svg and "unknown" in svg


def test_large_networks_start_near_their_own_initialisation(getkey):
    """Offsets of g beyond those of the network's initialisation would undo it."""
    network = mlp((400, 60, 10))
    first = network.leaves[1]
    start = np.asarray(network.init(getkey()))[first.start : first.stop].std()
    made = generator(network.size).build(network.size, key=getkey(), dtype=jnp.float32)
    assert made.network is not None
    assert np.asarray(made.network.output.bias).std() < start / 2
