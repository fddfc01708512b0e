"""Saves come back bit for bit, or not at all and with a reason."""

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from pathlib import Path
from unittest import mock

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpvi
from damage import joined, resealed, sealed, split
from gpvi.errors import StorageError
from gpvi.persistence import _json, _safetensors
from gpvi.persistence import format as storage
from hostile import Mutator

DTYPES = [
    np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
        *("uint64", "uint32", "uint16", "uint8", "bool"),
        ml_dtypes.bfloat16,
    )
]
VERSION_1 = Path(__file__).with_name("version1")
"""A posterior saved by gpvi 0.1 as a directory."""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Syncing takes most of the time; what is synced, and when, is a test of its own."""
    with mock.patch.object(os, "fsync"):
        yield


def same_arrays(first, second):
    return first.keys() == second.keys() and all(
        first[name].dtype.newbyteorder("<") == second[name].dtype.newbyteorder("<")
        and first[name].shape == second[name].shape
        and little_endian_bytes(first[name]) == little_endian_bytes(second[name])
        for name in first
    )


def little_endian_bytes(array):
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def same(first, second):
    """Equality that tells -0.0 from 0.0, 1 from 1.0 and True, and knows that nan is nan."""
    return repr(first[0]) == repr(second[0]) and same_arrays(first[1], second[1])


def example(seed=0):
    rng = np.random.default_rng(seed)
    document = {"method": "GPVI", "seed": seed, "elbo": -70.7, "k_hat": math.inf, "widths": [8, 8]}
    arrays = {
        "theta/weight": rng.normal(size=(5, 3)).astype(np.float32),
        "theta/bias": rng.normal(size=3),
        "half": rng.normal(size=4).astype(ml_dtypes.bfloat16),
        "key": rng.integers(0, 2**32, size=2, dtype=np.uint32),
        "mask": rng.integers(0, 2, size=7).astype(bool),
        "step": np.array(seed),
        "empty": np.zeros((0, 3)),
    }
    return document, arrays


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "posterior"
    storage.write(path, *example())
    return path


def nested(depth):
    return [nested(depth - 1)] if depth else []


def refusal(path):
    with pytest.raises(StorageError) as caught:
        storage.read(path)
    return str(caught.value)


def test_the_oracle_of_equality_can_fail():
    document, arrays = example()
    assert same((document, arrays), example())
    assert not same(({**document, "elbo": 0.0}, arrays), ({**document, "elbo": -0.0}, arrays))
    assert not same((document, arrays), (document, {**arrays, "step": np.array([0])}))
    assert not same((document, arrays), (document, {**arrays, "step": np.array(0, np.int32)}))
    assert not same_arrays({"x": np.array(0.0)}, {"x": np.array(-0.0)})


# ---------------------------------------------------------------------------------- round trip

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = unicode_text.filter(lambda key: key != "$float")
leaves = st.none() | st.booleans() | st.integers() | st.floats() | unicode_text
documents = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)


@st.composite
def any_array(draw):
    """Any bits at all, NaN payloads included, in any memory layout."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = math.prod(shape)
    if dtype == np.bool_:
        flat = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype)
    else:
        size = count * dtype.itemsize
        flat = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype)
    array = flat.reshape(shape)
    match draw(st.sampled_from(["C", "Fortran", "strided", "big-endian"])):
        case "Fortran":
            return np.asarray(array, order="F")
        case "strided":
            return np.stack([array, array], axis=-1)[..., 0]
        case "big-endian":
            return array.astype(dtype.newbyteorder(">"))
    return array


names = unicode_text.filter(lambda name: name != "__metadata__")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents, st.dictionaries(names, any_array(), max_size=4))
@hypothesis.example({}, {"$float": np.array(0.0)})
def test_whatever_is_written_is_read_back_bit_for_bit(document, arrays):
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent, "posterior")
        storage.write(path, document, arrays)
        assert same(storage.read(path), (document, arrays))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape(tmp_path, dtype):
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3, 0, 2), (7,), (2, 3, 4)]
    arrays = {str(shape): rng.integers(0, 2, size=shape).astype(dtype) for shape in shapes}
    storage.write(tmp_path / "p", {}, arrays)
    back = storage.read(tmp_path / "p")[1]
    assert same_arrays(back, arrays)
    assert all(each.flags.writeable and each.dtype == dtype for each in back.values())


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (np.float64, [0x7FF0000000000001, 0xFFF8DEADBEEF0001, 1 << 63, 1]),
        (np.float32, [0x7F800001, 0xFFC0BEEF, 1 << 31, 1]),
        (np.float16, [0x7C01, 0xFE42, 1 << 15, 1]),
        (ml_dtypes.bfloat16, [0x7F81, 0xFFC2, 1 << 15, 1]),
    ],
    ids=["float64", "float32", "float16", "bfloat16"],
)
def test_signalling_nans_signed_zeros_and_subnormals_keep_their_bits(tmp_path, dtype, bits):
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    array = np.array(bits, dtype=unsigned).view(dtype)
    storage.write(tmp_path / "p", {}, {"x": array})
    assert storage.read(tmp_path / "p")[1]["x"].view(unsigned).tolist() == bits


def test_the_deepest_document_that_is_written_is_read(tmp_path):
    document = {"a": nested(_json.MAX_NESTING - 2)}
    storage.write(tmp_path / "p", document, {})
    assert storage.read(tmp_path / "p")[0] == document
    with pytest.raises(StorageError, match="nested"):
        storage.write(tmp_path / "p", {"a": [document["a"]]}, {})


def test_the_file_is_what_other_tools_expect(tmp_path):
    """safetensors' own reader finds the arrays, aligned, and strict JSON in the metadata."""

    def refuse(token):
        raise AssertionError(token)

    path = tmp_path / "p"
    document = {"values": [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 2**70], "pair": (1, 2)}
    storage.write(path, document, example()[1])
    with safetensors.safe_open(path, "np") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    assert same_arrays(stored, example()[1])
    assert (metadata["format"], metadata["format_version"]) == ("gpvi", "2")
    text = json.loads(metadata["document"], parse_constant=refuse)
    assert text["values"][0] == {"$float": "nan"}
    assert repr(storage.read(path)[0]) == repr({**document, "pair": [1, 2]})
    header, data = split(path.read_bytes())
    assert (os.path.getsize(path) - len(data)) % 8 == 0
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % stored[name].itemsize == 0


def test_the_checksum_covers_the_header_and_the_data(saved):
    header, data = split(saved.read_bytes())
    digest = header["__metadata__"].pop("sha256")
    covered = json.dumps(header, sort_keys=True).encode() + data
    assert digest == hashlib.sha256(covered).hexdigest()


# ------------------------------------------------------------------------------------- writing


def put_version_1(path):
    shutil.copytree(VERSION_1, path)


REPLACEABLE = {
    "nothing": lambda path: None,
    "save": lambda path: storage.write(path, *example(1)),
    "damaged-save": lambda path: (storage.write(path, *example(1)), os.truncate(path, 1200)),
    "empty-file": Path.touch,
    "empty-directory": Path.mkdir,
    "version-1": put_version_1,
}


@pytest.mark.parametrize("before", REPLACEABLE.values(), ids=REPLACEABLE.keys())
def test_replaces_what_is_its_own_and_leaves_nothing_else_behind(tmp_path, before):
    path = tmp_path / "a" / "posterior"
    path.parent.mkdir()
    before(path)
    storage.write(path, *example())
    assert same(storage.read(path), example())
    assert os.listdir(path.parent) == ["posterior"]


def test_creates_parents_and_keeps_a_link_to_the_save(tmp_path):
    path, link = tmp_path / "a" / "b" / "posterior", tmp_path / "latest"
    storage.write(path, *example())
    link.symlink_to(path)
    storage.write(link, *example(1))
    assert link.is_symlink()
    assert same(storage.read(link), example(1)) and same(storage.read(path), example(1))


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_umask_decides_who_may_read(tmp_path, umask):
    before = os.umask(umask)
    try:
        storage.write(tmp_path / "p", *example())
    finally:
        os.umask(before)
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o666 & ~umask


def folder(**contents):
    def make(path):
        path.mkdir()
        for name, content in contents.items():
            (path / name.replace("_", ".")).write_bytes(content)

    return make


def version_1_and_more(path):
    put_version_1(path)
    (path / "notes.txt").write_bytes(b"mine")


def foreign_safetensors(path):
    safetensors.numpy.save_file({"x": np.zeros(2)}, path, {"format": "np"})


STRANGERS = {
    "file": (lambda path: path.write_bytes(b"years of work"), "are possible"),
    "short-file": (lambda path: path.write_bytes(b"mine"), "ends after 4 bytes"),
    "safetensors": (foreign_safetensors, "do not name the format 'gpvi'"),
    "directory": (folder(thesis_tex=b"years of work"), "'thesis.tex'"),
    "version-1-and-more": (version_1_and_more, "'notes.txt'"),
    "other-format": (folder(posterior_json=b'{"format": "other"}'), "'gpvi-posterior'"),
    "no-json": (folder(posterior_json=b"not JSON"), "valid JSON"),
    "no-manifest": (folder(arrays_safetensors=b"weights"), "No such file"),
    "pipe": (os.mkfifo, "not a regular file"),
}


@pytest.mark.parametrize(("make", "message"), STRANGERS.values(), ids=STRANGERS.keys())
def test_never_replaces_what_is_not_clearly_its_own(tmp_path, make, message):
    path = tmp_path / "p"
    make(path)
    before = sorted((str(p), p.is_file() and p.read_bytes()) for p in tmp_path.rglob("*"))
    with pytest.raises(StorageError, match=f"is not replaced.*{re.escape(message)}"):
        storage.write(path, *example())
    assert before == sorted((str(p), p.is_file() and p.read_bytes()) for p in tmp_path.rglob("*"))


def test_paths_that_cannot_be_written_are_refused_in_words(saved):
    for path, message in (
        (saved / "below", "one of its parents is a file"),
        ("a\0b", "cannot be a path"),
        (saved.parent / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(StorageError, match=message):
            storage.write(path, *example())


cyclic: dict = {}
cyclic["self"] = cyclic

REFUSED_DOCUMENTS = {
    "object": ({"a": [{}, {"b": object()}]}, r"document\['a'\]\[1\]\['b'\] is a object"),
    "array": ({"a": np.zeros(2)}, "pass it among the arrays"),
    "numpy-bool": ({"a": np.bool_(True)}, "which JSON cannot hold"),
    "integer-key": ({"a": {1: 2}}, "JSON keys are strings"),
    "reserved-key": ({"a": {"$float": "nan"}}, "reserved"),
    "deep": ({"a": nested(80)}, "nested more than 64"),
    "cyclic": (cyclic, "nested more than 64"),
    "surrogate": ({"a": "\ud800"}, "cannot be written as JSON"),
    "digits": ({"a": 10**5000}, "cannot be written as JSON"),
    "large": ({"a": "x" * 2**24}, "Move long lists into the arrays"),
    "many": ({"a": "," * 10**6}, "Move long lists into the arrays"),
}
REFUSED_ARRAYS = {
    "complex": ({"x": np.zeros(2, complex)}, "dtype complex128"),
    "object": ({"x": np.array([None])}, "dtype object"),
    "text": ({"x": np.array(["a"])}, "dtype <U1"),
    "structured": ({"x": np.zeros(2, "i4,f4")}, "cannot be saved"),
    "masked": ({"x": np.ma.masked_array([1.0], [True])}, "not a numpy array"),
    "metadata": ({"__metadata__": np.zeros(2)}, "cannot name an array"),
    "surrogate": ({"\ud800": np.zeros(2)}, "cannot name an array"),
    "bool-bytes": ({"x": np.array([2], np.uint8).view(bool)}, "other than 0 and 1"),
    "names": ({"x" * 2**24: np.zeros(2)}, "stack arrays of equal shape"),
}


@pytest.mark.parametrize(
    ("document", "arrays", "message"),
    [(document, {}, message) for document, message in REFUSED_DOCUMENTS.values()]
    + [({}, arrays, message) for arrays, message in REFUSED_ARRAYS.values()],
    ids=[*(f"document-{k}" for k in REFUSED_DOCUMENTS), *(f"array-{k}" for k in REFUSED_ARRAYS)],
)
def test_refuses_to_write_what_it_could_not_read(saved, document, arrays, message):
    with pytest.raises(StorageError, match=message):
        storage.write(saved, document, arrays)
    assert same(storage.read(saved), example())
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("before", ["save", "version-1"])
def test_a_full_disk_costs_nothing_that_was_there(tmp_path, monkeypatch, call, before):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "posterior"
    REPLACEABLE[before](path)
    there = storage.read(path)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(StorageError, match=r"No space left on device.*free space"):
        storage.write(path, *example())
    assert same(storage.read(path), there)
    assert os.listdir(tmp_path) == ["posterior"]


# ----------------------------------------------------------------------------------- atomicity


def test_all_is_synced_before_it_can_be_seen_and_then_the_parent(saved, monkeypatch):
    events, replace = [], os.replace

    def visibly(*paths):
        replace(*paths)
        events.append("visible")

    monkeypatch.setattr(os, "fsync", lambda number: events.append(os.fstat(number).st_ino))
    monkeypatch.setattr(os, "replace", visibly)
    storage.write(saved, *example(1))
    assert events == [saved.stat().st_ino, "visible", saved.parent.stat().st_ino]


SYSTEM = {
    *("open", "fdopen", "read", "readinto", "write", "flush", "close", "__exit__", "stat", "fstat", "readlink"),
    *("listdir", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir"),
}  # fmt: skip
"""Functions that ask the system for something."""


def test_a_reader_finds_the_old_save_or_the_new_one_whenever_it_is_replaced(saved):
    """The save is replaced at each call that the reader makes to the system."""
    old, new = example(0), example(1)
    found, replaced = [], True
    while replaced:
        replaced, calls, moment = False, 0, len(found) + 1

        def replace(frame, event, called, moment=moment):
            nonlocal replaced, calls
            calls += event == "c_call" and called.__name__ in SYSTEM
            if calls == moment and not replaced:
                replaced = True
                sys.setprofile(None)
                storage.write(saved, *new)

        sys.setprofile(replace)
        try:
            content = storage.read(saved)
        finally:
            sys.setprofile(None)
        assert same(content, old) or same(content, new)
        found.append(same(content, new))
        storage.write(saved, *old)
    assert found[0] and not found[-1]
    assert found == sorted(found, reverse=True)
    assert len(found) > 8


def run_python(source, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(storage.__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("before", ["version 2", "version 1"])
def test_a_writer_killed_at_any_call_leaves_a_whole_save(tmp_path, before):
    """Real SIGKILLs, forked from a process without threads: at each call that the writer makes to the system."""
    result = run_python(
        """
        import os, shutil, signal, sys
        from pathlib import Path
        import numpy as np
        from gpvi.persistence import _version1
        from gpvi.persistence import format as storage

        os.fsync = lambda _: None  # what a killed process wrote outlives it without
        path, version1, system = Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3:])

        def write_old():
            if version1.name:
                path.unlink(missing_ok=True)
                shutil.copytree(version1, path, dirs_exist_ok=True)
            else:
                storage.write(path, {"n": 0}, {"n": np.zeros(100_000, int)})

        def killed_at(moment):
            calls = 0
            def tick(frame, event, called):
                nonlocal calls
                calls += event == "c_call" and called.__name__ in system
                if calls == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
            process = os.fork()
            if process == 0:
                sys.setprofile(tick)
                storage.write(path, {"n": 1}, {"n": np.ones(100_000, int)})
                os._exit(0)
            return os.WIFSIGNALED(os.waitpid(process, 0)[1])

        write_old()
        old, found, moment = storage.read(path), [], 1
        while killed_at(moment):
            left = path if path.exists() else _version1.aside(path)
            document, arrays = storage.read(left)
            found.append(document.get("n") == 1)
            if found[-1]:
                assert (arrays["n"] == 1).all() and arrays["n"].size == 100_000
            else:
                assert document == old[0] and arrays.keys() == old[1].keys()
            if left != path:
                os.rename(left, path)
            storage.sweep(path.parent)
            shutil.rmtree(_version1.aside(path), ignore_errors=True)
            assert os.listdir(path.parent) == [path.name]
            if found[-1]:
                write_old()
            moment += 1
        assert found == sorted(found), "once the new save is visible it stays"
        print(len(found), found[0], storage.read(path)[0]["n"])
        """,
        tmp_path / "posterior",
        VERSION_1 if before == "version 1" else "",
        *SYSTEM,
    )
    assert result.returncode == 0, result.stderr
    kills, first, last = result.stdout.split()
    assert int(kills) > 8
    assert (first, last) == ("False", "1")


# ------------------------------------------------------------------------------------- damage


def entry(dtype: object = "F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def raw(change):
    """A change of the bytes of the file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def arrays(data=b"", **entries):
    """Other arrays under the same metadata, with the right checksum."""

    def change(content):
        metadata = {"__metadata__": split(content)[0]["__metadata__"]}
        return sealed({**metadata, **entries}, data)

    return raw(change)


def metadata(**changes):
    """Other metadata, with the right checksum."""

    def change(content):
        header, data = split(content)
        fields = {**header["__metadata__"], **changes}
        header["__metadata__"] = {k: v for k, v in fields.items() if v is not ...}
        return sealed(header, data)

    return raw(change)


def document(old, new):
    """Another document, with the right checksum."""

    def change(content):
        header, data = split(content)
        text = header["__metadata__"]["document"]
        assert text.count(old) == 1
        header["__metadata__"]["document"] = text.replace(old, new)
        return sealed(header, data)

    return raw(change)


def instead(make):
    def change(path):
        path.unlink()
        make(path)

    return change


EIGHT = b"\0" * 8
DAMAGE = {
    "empty": (raw(lambda c: b""), "ends after 0 bytes"),
    "cut-in-length": (raw(lambda c: c[:5]), "ends after 5 bytes"),
    "cut-in-header": (raw(lambda c: c[:100]), "92 are possible"),
    "cut-in-data": (raw(lambda c: c[:-1]), "claims"),
    "extended": (raw(lambda c: c + b"\0"), "claims"),
    "data-flipped": (raw(lambda c: c[:-1] + bytes([c[-1] ^ 1])), "SHA-256"),
    "document-flipped": (raw(lambda c: c.replace(b"GPVI", b"GPVH")), "SHA-256"),
    "name-flipped": (raw(lambda c: c.replace(b"bias", b"biar")), "SHA-256"),
    "digest-edited": (raw(lambda c: re.sub(b'sha256":"[0-9a-f]', b'sha256":"x', c)), "SHA-256"),
    "foreign-bytes": (raw(lambda c: b"\x89PNG\r\n\x1a\n" + c), "are possible"),
    "foreign-safetensors": (instead(foreign_safetensors), "the format 'gpvi'"),
    "no-metadata": (raw(lambda c: joined({"a": entry()}, EIGHT)), "the format 'gpvi'"),
    "metadata-list": (raw(lambda c: joined({"__metadata__": []})), "the format 'gpvi'"),
    "format": (metadata(format="other"), "the format 'gpvi'"),
    "newer": (metadata(format_version="3", library_version="9.1", new="x"), "Upgrade gpvi"),
    "newer-writer": (metadata(format_version="3", library_version="9.1"), "written by gpvi '9.1'"),
    "version-old": (metadata(format_version="1"), "format_version is '1'"),
    "version-text": (metadata(format_version="two"), "format_version is 'two'"),
    "version-missing": (metadata(format_version=...), "format_version is 'None'"),
    "field-missing": (metadata(library_version=...), "'library_version'"),
    "field-unknown": (metadata(hook="import os"), "'hook'"),
    "field-number": (metadata(library_version=3), "not text"),
    "document-list": (metadata(document="[]"), "not a JSON object"),
    "document-deep": (document("-70.7", "[" * 70 + "]" * 70), "nested too deeply"),
    "document-very-deep": (metadata(document="[" * 10**5), "nested too deeply"),
    "document-deep-objects": (metadata(document='{"a":' * 10**5), "nested too deeply"),
    "document-many": (metadata(document="[" + "[]," * 10**6), "elements, more than 1,000,000"),
    "document-twice": (document('"seed"', '"method"'), "a key occurs twice"),
    "document-nan": (document("-70.7", "NaN"), "NaN is not JSON"),
    "document-infinite": (document("-70.7", "1e999"), "1e999 is too large"),
    "document-digits": (document("-70.7", "1" * 5000), "valid JSON"),
    "document-float": (document('"inf"', '"0x1"'), "'$float'"),
    "document-float-list": (document('"inf"', "[[]]"), "'$float'"),
    "header-length-huge": (raw(lambda c: joined(b"{}", length=2**64 - 1)), "2 are possible"),
    "header-length-over-cap": (
        raw(lambda c: joined(b"{}" + b" " * 2**24)),
        f"claims {2**24 + 2} bytes, but {2**24} are possible",
    ),
    "header-list": (raw(lambda c: joined([])), "not a JSON object"),
    "header-bytes": (raw(lambda c: joined(b"\x80\x04K\x01.")), "valid JSON"),
    "header-deep": (raw(lambda c: joined(b"[" * 10**5)), "nested too deeply"),
    "header-many": (raw(lambda c: joined(b"[" * 10**7)), "elements, more than 1,000,000"),
    "header-name-twice": (raw(lambda c: joined(b'{"a":1,"a":1}')), "a key occurs twice"),
    "entry-number": (arrays(a=3), "'a' is not dtype"),
    "entry-unknown-field": (arrays(EIGHT, a=entry(pad=1)), "'a' is not dtype"),
    "dtype-unknown": (arrays(EIGHT, a=entry("F8_E4M3", (8,))), "dtype 'F8_E4M3'"),
    "dtype-list": (arrays(EIGHT, a=entry(["F32"])), "unknown dtype"),
    "shape-negative": (arrays(EIGHT, a=entry(shape=(-2,))), "impossible shape"),
    "shape-float": (arrays(EIGHT, a=entry(shape=(2.0,))), "impossible shape"),
    "shape-bool": (arrays(EIGHT, a=entry(shape=(True, 2))), "impossible shape"),
    "shape-rank": (arrays(b"\0" * 4, a=entry(shape=(1,) * 65)), "impossible shape"),
    "shape-many": (arrays(EIGHT, a=entry(shape=(2,) * 10**5)), "impossible shape"),
    "shape-digits": (arrays(EIGHT, a=entry(shape=(10**4000,))), "impossible shape"),
    "shape-huge": (arrays(EIGHT, a=entry(shape=(2**40, 2**40))), "more than 2^63 bytes"),
    "shape-wraps-to-8": (
        arrays(EIGHT, a=entry("U8", (2**62, 4)), b=entry()),
        "more than 2^63 bytes of arrays, but the file has 8",
    ),
    "shape-empty-but-huge": (arrays(a=entry(shape=(0, 2**62), offsets=(0, 0))), "too big"),
    "offsets-overlap": (arrays(2 * EIGHT, a=entry(), b=entry()), "where the previous one ends"),
    "offsets-hole": (arrays(2 * EIGHT, a=entry(shape=(4,), offsets=(8, 24))), "where the previous"),
    "offsets-outside": (arrays(EIGHT, a=entry(offsets=(0, 2**40))), "where the previous"),
    "offsets-negative": (arrays(EIGHT, a=entry(offsets=(-8, 0))), "impossible offsets"),
    "offsets-text": (arrays(EIGHT, a=entry(offsets=("0", "8"))), "impossible offsets"),
    "offsets-three": (arrays(EIGHT, a=entry(offsets=(0, 8, 8))), "impossible offsets"),
    "long-names": (arrays(2 * EIGHT, **{"x" * 5000: entry(), "y" * 5000: entry()}), "where the"),
    "bool-bytes": (arrays(b"\x01\x02", a=entry("BOOL", (2,), (0, 2))), "other than 0 and 1"),
    "missing": (Path.unlink, "No such file"),
    "link-to-nothing": (instead(lambda path: path.symlink_to("no")), "No such file"),
    "link-to-itself": (instead(lambda path: path.symlink_to(path)), "symbolic links"),
    "link-to-device": (instead(lambda path: path.symlink_to("/dev/zero")), "not a regular file"),
    "pipe": (instead(os.mkfifo), "not a regular file"),
    "directory": (instead(Path.mkdir), "posterior.json cannot be read: No such file"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_each_kind_of_damage_is_named(saved, damage, message):
    damage(saved)
    words = refusal(saved)
    assert words.startswith(str(saved))
    assert message in words
    assert len(words) < 1000


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_without_permission(saved):
    saved.chmod(0)
    assert "Permission denied" in refusal(saved)


def test_a_failing_disk_is_reported_as_such(saved, monkeypatch):
    class BadSector(io.BufferedReader):
        def __init__(self, number, mode):
            super().__init__(io.FileIO(number, mode))

        def readinto(self, *_):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdopen", BadSector)
    assert "Input/output error" in refusal(saved)


def test_a_pipe_put_there_after_the_first_look_is_refused(saved, monkeypatch):
    other, stat = saved.with_name("other"), os.stat
    storage.write(other, *example())
    saved.unlink()
    os.mkfifo(saved)
    monkeypatch.setattr(os, "stat", lambda p, **o: stat(other if p == saved else p, **o))
    assert "not a regular file" in refusal(saved)


def test_a_file_that_shrinks_while_it_is_read_is_refused(saved, monkeypatch):
    read_header = _safetensors.read_header
    storage.write(saved, {}, {"x": np.zeros(100_000)})  # more than is read ahead

    def then_shrink(file):
        header = read_header(file)
        sizes = iter([os.path.getsize(saved)])
        monkeypatch.setattr(_safetensors, "_size", lambda _: next(sizes))
        os.truncate(saved, os.path.getsize(saved) - 1)
        return header

    monkeypatch.setattr(_safetensors, "read_header", then_shrink)
    assert "it ended while it was read" in refusal(saved)


# --------------------------------------------------------------------------------- allocation

LIES = {
    "header-length": joined(b"{}", length=2**40),
    "header-length-below-cap": joined(b"{}", length=2**24),
    "shape": {"a": entry("F64", (2**37,), (0, 2**40))},
    "shape-against-offsets": {"a": entry("F64", (2**37,), (0, 8))},
    "elements": joined(b"[" + b"[]," * (2**24 // 3 - 1)),
}


def tell(lie, saved):
    """The content of a file with this lie, and otherwise right."""
    if isinstance(lie, bytes):
        return lie
    return sealed({"__metadata__": split(saved.read_bytes())[0]["__metadata__"], **lie}, EIGHT)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_header_that_lies_allocates_no_more_than_itself(saved, lie):
    saved.write_bytes(tell(lie, saved))
    refusal(saved)
    tracemalloc.start()
    try:
        refusal(saved)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**19 + 1.1 * os.path.getsize(saved)


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_hostile_files_stay_within_an_address_space_limit(saved):
    """Native allocations count too: 256 MiB are left, the files claim, or have, a terabyte."""
    paths = []
    for name, lie in LIES.items():
        paths.append(saved.with_name(name))
        paths[-1].write_bytes(tell(lie, saved))
    hollow = saved.with_name("hollow")
    hollow.write_bytes(tell(LIES["shape"], saved)[:-8])
    os.truncate(hollow, os.path.getsize(hollow) + 2**40)
    result = run_python(
        """
        import resource, sys
        from gpvi.errors import StorageError
        from gpvi.persistence import format as storage
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for path in sys.argv[1:]:
            try:
                storage.read(path)
            except StorageError as error:
                print(error)
        """,
        *paths,
        hollow,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(LIES) + 1
    assert "more than the free memory" in lines[-1]


# --------------------------------------------------------------------------------------- fuzz


def fuzz(path, cases, seed, seal):
    """How many mutated saves were refused; any exception but StorageError escapes."""
    mutator, original, expected = Mutator(seed), path.read_bytes(), storage.read(path)
    again = path.with_name("again")
    refused = []
    for _ in range(cases):
        content = mutator.content(original)
        path.unlink()  # to truncate and rewrite a file makes some filesystems sync
        path.write_bytes(resealed(content) if seal else content)
        try:
            result = storage.read(path)
        except StorageError as error:
            refused.append(str(error))
            continue
        if seal:
            storage.write(again, *result)
            assert same(storage.read(again), result)
        else:
            assert same(result, expected)
    assert all(message.startswith(str(path)) for message in refused)
    return len(refused)


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seal", [False, True], ids=["checksum", "resealed"])
def test_fuzzed_files_are_refused_or_read_the_same(saved, cases, seal):
    refused = fuzz(saved, cases, seed=cases, seal=seal)
    assert 0.2 * cases < refused < cases if seal else refused > 0.8 * cases


def test_what_is_no_path_is_refused():
    """In a process of its own, without the checks of types that the tests put before every function."""
    code = """
import gpvi
from gpvi.errors import InputError
from gpvi.persistence import format as storage
uses = (storage.read, storage.check_replaceable, lambda path: storage.write(path, {}, {}), gpvi.load)
for path in (None, 3, b"x", "", []):
    for use in uses:
        try:
            use(path)
        except InputError as error:
            print("is not a path. Pass the path of a file" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 20


@pytest.mark.parametrize("use", [storage.read, lambda path: storage.write(path, {}, {}), gpvi.load])
def test_a_path_with_a_zero_byte_is_refused(use):
    with pytest.raises(StorageError, match=r"'a\\x00b' cannot be a path: it holds a zero byte"):
        use("a\0b")


def test_a_home_that_nobody_has_is_no_crash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match="in the home of a user who does not exist"):
        storage.read("~nobody-at-all/x")
