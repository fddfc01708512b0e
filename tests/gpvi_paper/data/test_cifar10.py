"""CIFAR-10: files and archives made here, and damaged ones."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpvi.errors import GPVIError, InputError, StorageError
from gpvi_paper.data import cifar10
from made_data import cifar_records, write_cifar


def test_what_was_written_is_read(tmp_path):
    write_cifar(tmp_path / cifar10.FOLDER)
    found = cifar10.read(tmp_path)
    _, labels, pixels = cifar_records(4, 4)
    np.testing.assert_array_equal(found.train[4:8], pixels.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found.train_labels[4:8], labels)
    assert found.train.shape == (20, 32, 32, 3) and found.test.shape == (4, 32, 32, 3)


def test_the_archive_is_read_as_it_is(tmp_path):
    write_cifar(tmp_path / "plain")
    with tarfile.open(tmp_path / cifar10.ARCHIVE, "w:gz") as archive:
        for name in cifar10.FILES:
            archive.add(tmp_path / "plain" / name, f"{cifar10.FOLDER}/{name}")
    for a, b in zip(cifar10.read(tmp_path), cifar10.read(tmp_path / "plain"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_exact_test_images_count(tmp_path):
    write_cifar(tmp_path / cifar10.FOLDER)
    whole = cifar10.read(tmp_path)
    exact = np.array([True, False, True, True])
    np.save(tmp_path / cifar10.EXACT, exact)
    for place in (tmp_path, tmp_path / cifar10.FOLDER):
        np.testing.assert_array_equal(cifar10.read(place).test, whole.test[exact])
    for bad in (np.ones(3, bool), np.ones(4), np.zeros(4, bool)):
        np.save(tmp_path / cifar10.EXACT, bad)
        with pytest.raises(StorageError, match=cifar10.EXACT):
            cifar10.read(tmp_path)
    (tmp_path / cifar10.EXACT).write_bytes(b"\x80\x04K\x00.")
    with pytest.raises(StorageError, match=f"{cifar10.EXACT} is damaged"):
        cifar10.read(tmp_path)


@pytest.mark.parametrize("place", [".", "cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_the_python_version_is_named_and_never_run(tmp_path, place):
    class Program:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "it ran",))

    content = pickle.dumps({b"labels": Program()})
    if place.endswith(".gz"):
        (tmp_path / place).write_bytes(content)
    else:
        (tmp_path / place).mkdir(exist_ok=True)
        for number in range(1, 6):
            (tmp_path / place / f"data_batch_{number}").write_bytes(content)
    with pytest.raises(InputError, match=r"python version, whose files are pickles.*download"):
        cifar10.read(tmp_path)
    assert not (tmp_path / "it ran").exists()


def test_absent_files_are_told(tmp_path):
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


def test_truncated_and_mislabelled_files(tmp_path):
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
def test_a_damaged_archive_never_crashes(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("archive")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in cifar10.FILES:
            member = tarfile.TarInfo(name)
            member.size = cifar10.RECORD
            archive.addfile(member, io.BytesIO(bytes(cifar10.RECORD)))
    content = bytearray(made.getvalue())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    (root / cifar10.ARCHIVE).write_bytes(bytes(content))
    try:
        found = cifar10.read(root)
    except GPVIError:
        return
    assert len(found.train) == 5


def test_a_member_that_points_back_does_not_hold_up_the_reader(tmp_path):
    """A negative size would lead a reader that seeks round in circles."""
    member = tarfile.TarInfo(cifar10.FILES[0])
    member.size = 0
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + (-1024).to_bytes(2, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    (tmp_path / cifar10.ARCHIVE).write_bytes(gzip.compress(bytes(header) + bytes(2_048)))
    with pytest.raises(StorageError, match="is damaged"):
        cifar10.read(tmp_path)
