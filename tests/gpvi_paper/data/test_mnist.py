"""MNIST: IDX files made here, damaged ones, and the real ones where they are."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpvi.errors import GPVIError, InputError, StorageError
from gpvi_paper.data import mnist
from made_data import idx, write_mnist

DIRECTORY = Path(os.environ.get("GPVI_DATA_DIR", "nowhere"))
real = pytest.mark.skipif(
    not (DIRECTORY / "mnist" / "train-images-idx3-ubyte.gz").is_file(),
    reason="MNIST is missing: set GPVI_DATA_DIR",
)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_what_was_written_is_read(tmp_path, zipped, place):
    made = write_mnist(tmp_path / place, zipped=zipped)
    found = mnist.read(tmp_path)
    np.testing.assert_array_equal(found.train[..., 0], made["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(found.test_labels, made["t10k-labels-idx1-ubyte"])
    assert found.test.shape == (20, 28, 28, 1)


def test_an_absent_file_is_named_with_the_remedy(tmp_path):
    with pytest.raises(InputError, match=r"does not exist.*--data-dir"):
        mnist.read(tmp_path / "nowhere")
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\[.gz\] is missing"):
        mnist.read(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_header_that_lies_allocates_nothing(tmp_path, zipped):
    """A promise of 2⁹⁶ bytes, and one of 200 million in a file of a few."""
    for shape in ((2**32 - 1,) * 3, (2 * 10**8,)):
        content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + b"abc"
        path = tmp_path / ("file.gz" if zipped else "file")
        path.write_bytes(gzip.compress(content) if zipped else content)
        with pytest.raises(StorageError, match="its header promises"):
            mnist.read_idx(path)


def test_labels_and_images_must_agree(tmp_path):
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
def test_damage_never_crashes(tmp_path_factory, data):
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


@pytest.mark.slow
@real
def test_the_real_files_are_as_published():
    images = mnist.read(DIRECTORY)
    assert images.train.shape == (60_000, 28, 28, 1) and images.test.shape == (10_000, 28, 28, 1)
    np.testing.assert_allclose(images.train.mean() / 255, 0.1307, atol=1e-4)
    np.testing.assert_allclose(images.train.std() / 255, 0.3081, atol=1e-4)
