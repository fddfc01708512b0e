"""Directories of format version 1 are read, with the same care."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from gpvi.errors import StorageError
from gpvi.persistence import format as storage

SAVED = Path(__file__).with_name("version1")
"""A posterior saved by gpvi 0.1."""


def refusal(path):
    with pytest.raises(StorageError) as caught:
        storage.read(path)
    return str(caught.value)


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(SAVED, tmp_path / "posterior"))


def seal(directory):
    """Make the checksums agree with whatever the files now hold, as an attacker would."""
    arrays = hashlib.sha256((directory / "arrays.safetensors").read_bytes()).hexdigest().encode()
    manifest = directory / "posterior.json"
    text = re.sub(
        rb'("arrays_sha256": ")[0-9a-f]{64}', rb"\g<1>" + arrays, manifest.read_bytes(), count=1
    )
    manifest.write_bytes(text)
    own = hashlib.sha256(text).hexdigest().encode()
    sums = own + b"  posterior.json\n" + arrays + b"  arrays.safetensors\n"
    (directory / "SHA256SUMS").write_bytes(sums)


def test_a_directory_of_version_1_is_read(old):
    document, arrays = storage.read(old)
    expected = safetensors.numpy.load_file(old / "arrays.safetensors")
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert document == json.loads((old / "posterior.json").read_text())["document"]
    seal(old)
    assert storage.read(old)[0] == document


@pytest.mark.parametrize("name", os.listdir(SAVED))
def test_each_file_of_version_1_is_needed_and_checked(old, name):
    path = old / name
    content = path.read_bytes()
    damaged = {
        "flipped": content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
        "cut": content[:-9],
        "empty": b"",
        "large": content + b" " * 2**24,
    }
    for how, wrong in damaged.items():
        path.write_bytes(wrong)
        assert str(old) in refusal(old), how
    path.unlink()
    assert "No such file" in refusal(old)
    (old.parent / "elsewhere").write_bytes(content)
    path.symlink_to(old.parent / "elsewhere")
    assert "it is a link" in refusal(old)


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        (rb'"gpvi-posterior"', b'"other"', "is not 'gpvi-posterior'"),
        (rb'"format_version": 1', b'"format_version": 3', "format_version"),
        (rb'"format_version": 1', b'"format_version": true', "another type"),
        (rb'"library_version"', b'"hook"', "lacks a field"),
        (rb'"document": {', b'"document": {"a": NaN,', "NaN is not JSON"),
        (rb'"document": {', b'"document": {"a":' + b"[" * 70 + b"]" * 70 + b",", "too deeply"),
        (rb'"document": {', b'"document": {"a": [' + b"[]," * 10**6 + b"1],", "elements"),
    ],
    ids=["format", "version", "version-type", "field", "nan", "deep", "many"],
)
def test_a_manifest_of_version_1_with_right_checksums_is_checked_too(old, pattern, text, message):
    manifest = old / "posterior.json"
    changed, count = re.subn(pattern, text, manifest.read_bytes())
    assert count == 1
    manifest.write_bytes(changed)
    seal(old)
    assert message in refusal(old)
