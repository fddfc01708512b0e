"""Saved posteriors come back bit for bit, or not at all and with a reason."""

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import tracemalloc
from pathlib import Path
from unittest import mock

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpvi.errors import StorageError
from gpvi.persistence import format as storage

DTYPES = [
    np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
        *("uint64", "uint32", "uint16", "uint8", "bool"),
        ml_dtypes.bfloat16,
    )
]
FILES = (storage.MANIFEST, storage.ARRAYS, storage.CHECKSUMS)


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
    directory = tmp_path / "posterior"
    storage.write(directory, *example())
    return directory


def nested(depth):
    return [nested(depth - 1)] if depth else []


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def seal(directory):
    """Make the checksums agree with whatever the files now hold, as an attacker would."""
    arrays = (directory / storage.ARRAYS).read_bytes()
    manifest = (directory / storage.MANIFEST).read_bytes()
    manifest = re.sub(
        rb'"arrays_sha256": "[0-9a-f]{64}"',
        b'"arrays_sha256": "%s"' % sha256(arrays).encode(),
        manifest,
        count=1,
    )
    sums = f"{sha256(manifest)}  {storage.MANIFEST}\n{sha256(arrays)}  {storage.ARRAYS}\n"
    renew(directory, {storage.MANIFEST: manifest, storage.CHECKSUMS: sums.encode()})


def refusal(directory):
    with pytest.raises(StorageError) as caught:
        storage.read(directory)
    return str(caught.value)


# ---------------------------------------------------------------------------------- round trip

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
documents = st.dictionaries(
    unicode_text.filter(lambda key: key != "$float"),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=True, allow_infinity=True)
        | unicode_text,
        lambda children: (
            st.lists(children, max_size=4)
            | st.dictionaries(
                unicode_text.filter(lambda key: key != "$float"), children, max_size=4
            )
        ),
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
        directory = Path(parent, "posterior")
        storage.write(directory, document, arrays)
        assert same(storage.read(directory), (document, arrays))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, size=shape).astype(dtype)
    storage.write(tmp_path / "p", {}, {"x": array})
    back = storage.read(tmp_path / "p")[1]["x"]
    assert back.dtype == dtype and back.shape == shape and back.tobytes() == array.tobytes()
    assert back.flags.writeable


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


def test_document_floats_survive_and_the_file_is_strict_json(tmp_path):
    document = {"values": [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 2**70]}
    storage.write(tmp_path / "p", document, {})
    assert repr(storage.read(tmp_path / "p")[0]) == repr(document)

    def refuse(token):
        raise AssertionError(token)

    text = (tmp_path / "p" / storage.MANIFEST).read_text("utf-8")
    assert json.loads(text, parse_constant=refuse)["document"]["values"][0] == {"$float": "nan"}
    assert len(text.splitlines()) > 10


def test_tuples_come_back_as_lists(tmp_path):
    storage.write(tmp_path / "p", {"widths": (8, 8)}, {})
    assert storage.read(tmp_path / "p")[0] == {"widths": [8, 8]}


def test_the_deepest_document_that_is_written_is_read(tmp_path):
    document = {"a": nested(storage._MAX_NESTING - 2)}
    storage.write(tmp_path / "p", document, {})
    assert storage.read(tmp_path / "p")[0] == document
    with pytest.raises(StorageError, match="nested"):
        storage.write(tmp_path / "p", {"a": [document["a"]]}, {})


def test_files_are_what_other_tools_expect(saved):
    assert sorted(os.listdir(saved)) == sorted(FILES)
    assert {os.stat(saved / name).st_mode for name in FILES} == {
        os.stat(saved / storage.MANIFEST).st_mode
    }
    manifest = json.loads((saved / storage.MANIFEST).read_text())
    assert manifest["format"] == "gpvi-posterior" and manifest["format_version"] == 1
    with safetensors.safe_open(saved / storage.ARRAYS, "np") as file:
        held = file.keys()
        assert same_arrays({name: file.get_tensor(name) for name in held}, example()[1])
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", "--strict", storage.CHECKSUMS], cwd=saved, check=True)


# ------------------------------------------------------------------------------------- writing


both_ways_to_replace = pytest.mark.parametrize("exchange", [True, False], ids=["swap", "rename"])


def use(monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)


@both_ways_to_replace
def test_replaces_an_earlier_save_and_leaves_nothing_behind(saved, monkeypatch, exchange):
    use(monkeypatch, exchange)
    storage.write(saved, *example(1))
    assert same(storage.read(saved), example(1))
    assert os.listdir(saved.parent) == [saved.name]


def test_creates_parents_and_fills_an_empty_directory(tmp_path):
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "a" / "b" / "posterior", tmp_path / "empty"):
        storage.write(directory, *example())
        assert same(storage.read(directory), example())


def test_follows_a_link_to_the_directory_and_keeps_the_link(saved):
    link = saved.parent / "latest"
    link.symlink_to(saved.name)
    storage.write(link, *example(1))
    assert link.is_symlink()
    assert same(storage.read(link), example(1)) and same(storage.read(saved), example(1))


def tree(path):
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("stands_there", "message"),
    [
        ({"thesis.tex": b"years of work"}, "'thesis.tex'"),
        ({**dict.fromkeys(FILES, b"{}"), "notes.txt": b"mine"}, "'notes.txt'"),
        ({storage.MANIFEST: b'{"format": "other"}'}, "'gpvi-posterior'"),
        ({storage.MANIFEST: b"not JSON"}, "valid JSON"),
        ({storage.ARRAYS: b"weights"}, "posterior.json is missing"),
        (b"a file", "is a file"),
    ],
    ids=["stranger", "stranger-beside-ours", "other-format", "no-json", "no-manifest", "file"],
)
def test_never_replaces_what_is_not_ours(tmp_path, stands_there, message):
    target = tmp_path / "p"
    if isinstance(stands_there, bytes):
        target.write_bytes(stands_there)
    else:
        target.mkdir()
        for name, content in stands_there.items():
            (target / name).write_bytes(content)
    before = tree(tmp_path)
    with pytest.raises(StorageError, match=re.escape(message)):
        storage.write(target, *example())
    assert tree(tmp_path) == before and os.listdir(tmp_path) == ["p"]


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
    "large": ({"a": "x" * 2**24}, "Move long lists of numbers into the arrays"),
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
    "names": ({"x" * 2**24: np.zeros(2)}, "Stack arrays of equal shape"),
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


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [("x", [1.0], "not a numpy array"), (3, np.zeros(2), "cannot name an array")],
)
def test_refuses_arrays_and_names_of_other_types(name, array, message):
    with pytest.raises(StorageError, match=message):
        storage._storable(name, array)


def test_a_full_disk_costs_nothing_that_was_there(saved, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left on device.*free space"):
        storage.write(saved, *example(1))
    monkeypatch.undo()
    assert same(storage.read(saved), example())
    assert os.listdir(saved.parent) == [saved.name]


# ----------------------------------------------------------------------------------- atomicity


@pytest.mark.parametrize("earlier", [False, True], ids=["new", "over-an-earlier-save"])
def test_all_is_synced_before_it_can_be_seen_and_then_the_parent(tmp_path, monkeypatch, earlier):
    directory = tmp_path / "posterior"
    if earlier:
        storage.write(directory, *example(1))
    events = []
    rename, exchange = os.rename, storage._exchange

    def seen(function):
        def call(*paths):
            result = function(*paths)
            events.append("visible")
            return result

        return call

    monkeypatch.setattr(os, "fsync", lambda number: events.append(os.fstat(number).st_ino))
    monkeypatch.setattr(os, "rename", seen(rename))
    monkeypatch.setattr(storage, "_exchange", seen(exchange))
    storage.write(directory, *example())
    inodes = {path.stat().st_ino for path in (directory, *(directory / name for name in FILES))}
    assert set(events[:4]) == inodes
    assert events[4:] == ["visible", tmp_path.stat().st_ino]


def test_a_failed_rename_puts_the_old_save_back(saved, monkeypatch):
    use(monkeypatch, exchange=False)
    rename = os.rename

    def fail_where_nothing_stands(source, destination):
        if Path(source).suffix == ".tmp" and not os.path.exists(destination):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_where_nothing_stands)
        with pytest.raises(StorageError, match="Input/output error"):
            storage.write(saved, *example(1))
    assert os.listdir(saved.parent) == [saved.name]
    assert same(storage.read(saved), example())


class Crash(BaseException):
    """The machine stops: from here on nothing more reaches the disk."""


def crash_at(monkeypatch, step):
    calls = 0

    def stopping(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > step:
                raise Crash
            return function(*args, **kwargs)

        return call

    for owner, name in [
        *((os, name) for name in ("mkdir", "rename", "unlink", "rmdir", "fsync")),
        *((Path, name) for name in ("write_bytes", "write_text")),
        (storage, "_exchange"),
        (safetensors.numpy, "save_file"),
    ]:
        monkeypatch.setattr(owner, name, stopping(getattr(owner, name)))


@both_ways_to_replace
def test_a_crash_at_any_step_leaves_the_old_or_the_new(tmp_path, monkeypatch, exchange):
    old, new, newest = example(0), example(1), example(2)
    found = []
    finished, step = False, -1
    while not finished:
        step += 1
        directory = tmp_path / str(step) / "posterior"
        storage.write(directory, *old)
        with monkeypatch.context() as patch:
            use(patch, exchange)
            crash_at(patch, step)
            try:
                storage.write(directory, *new)
                finished = True
            except Crash:
                finished = False
        after = storage.read(directory)
        assert same(after, old) or same(after, new)
        found.append(same(after, new))
        with monkeypatch.context() as patch:
            use(patch, exchange)
            storage.write(directory, *newest)
        assert same(storage.read(directory), newest)
    assert found[0] is False
    assert found[-1] is True
    assert found == sorted(found), "once the new one is visible it stays"
    assert step >= 10


@both_ways_to_replace
def test_a_reader_beside_a_writer_always_finds_a_whole_save(tmp_path, monkeypatch, exchange):
    use(monkeypatch, exchange)
    directory = tmp_path / "posterior"

    def content(n):
        return {"n": n}, {"n": np.full(1000, n)}

    storage.write(directory, *content(0))
    failures = []
    done = threading.Event()
    last = 150

    def write_repeatedly():
        try:
            for n in range(1, last + 1):
                storage.write(directory, *content(n))
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write_repeatedly)
    writer.start()
    seen = []
    try:
        while not done.is_set():
            document, arrays = storage.read(directory)
            assert (arrays["n"] == document["n"]).all()
            seen.append(document["n"])
    finally:
        writer.join()
    assert not failures
    assert seen == sorted(seen) and len(set(seen)) > 3
    assert same(storage.read(directory), content(last))


def run_python(source, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(storage.__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_writers_leave_a_whole_save(tmp_path):
    """Real SIGKILLs at random moments, forked from a process that holds no threads."""
    result = run_python(
        """
        import os, random, signal, sys, time
        import numpy as np
        from gpvi.persistence import format as storage
        os.fsync = lambda _: None  # what a killed process wrote outlives it without
        directory, clock, seen = sys.argv[1], random.Random(0), set()
        exchange = storage._exchange

        def write(n):
            storage.write(directory, {"n": n}, {"n": np.full(100_000, n)})

        write(0)
        started = time.perf_counter()
        write(0)
        duration = time.perf_counter() - started
        for child in range(30):
            storage._exchange = exchange if child % 2 else lambda *_: False
            process = os.fork()
            if process == 0:
                n = 10_000 * child
                while True:
                    n += 1
                    write(n)
            time.sleep(clock.uniform(0.0, 8 * duration))
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            document, arrays = storage.read(directory)
            assert (arrays["n"] == document["n"]).all() and arrays["n"].size == 100_000
            seen.add(document["n"])
        print(len(seen))
        """,
        tmp_path / "posterior",
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 8


# ------------------------------------------------------------------------------------- damage


def edit_manifest(**changes):
    def edit(directory):
        path = directory / storage.MANIFEST
        fields = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in fields.items() if v is not ...}))

    return edit


def put(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def cut(name, length):
    """Keep the first `length` bytes, or all but the last `-length`."""
    return lambda directory: put(name, (directory / name).read_bytes()[:length])(directory)


def append(name, content):
    def edit(directory):
        with (directory / name).open("ab") as file:
            file.write(content)

    return edit


def sealed(edit):
    def then_seal(directory):
        edit(directory)
        seal(directory)

    return then_seal


def also(*edits):
    return lambda directory: [edit(directory) for edit in edits]


def missing(name):
    return lambda directory: (directory / name).unlink()


def replaced_by(name, make):
    def edit(directory):
        (directory / name).unlink()
        make(directory / name)

    return edit


def outside(path):
    elsewhere = path.parents[1] / f"elsewhere-{path.name}"
    shutil.copy(path.parents[1] / "copy" / path.name, elsewhere)
    path.symlink_to(elsewhere)


def manifest_text(old, new):
    def edit(directory):
        path = directory / storage.MANIFEST
        content = path.read_bytes()
        assert content.count(old) == 1
        path.write_bytes(content.replace(old, new))

    return edit


def framed(entries, payload=b"", length=None):
    """A safetensors file with this header, whose length may be a lie."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def header(entries, payload=b"", length=None):
    return sealed(put(storage.ARRAYS, framed(entries, payload, length)))


def entry(dtype: object = "F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


J, A, S = FILES
RESTORE = "Restore the directory from a copy"
DAMAGE = {
    "json-missing": (missing(J), [J, "is missing", "gpvi saved"]),
    "arrays-missing": (missing(A), [A, "is missing", "copy it as a whole"]),
    "sums-missing": (missing(S), [S, "is missing", "copy it as a whole"]),
    "foreign-format": (also(edit_manifest(format="other"), missing(S)), [J, "'gpvi-posterior'"]),
    "foreign-json": (also(put(J, b"[1, 2]"), missing(S)), [J, "'gpvi-posterior'"]),
    "foreign-bytes": (put(J, b"\x89PNG\r\n\x1a\n"), [J, "valid JSON"]),
    "newer": (also(edit_manifest(format_version=2), missing(S), missing(A)), ["Upgrade gpvi"]),
    "newer-writer": (
        edit_manifest(format_version=7, library_version="9.1", other={}),
        ["version 7", "'9.1'", "up to 1", "Upgrade gpvi"],
    ),
    "version-zero": (edit_manifest(format_version=0), [J, "not a positive integer"]),
    "version-true": (edit_manifest(format_version=True), [J, "not a positive integer"]),
    "version-text": (edit_manifest(format_version="1"), [J, "not a positive integer"]),
    "json-edited": (manifest_text(b"GPVI", b"SVGD"), [J, "SHA-256", "sha256sum posterior.json"]),
    "json-empty": (cut(J, 0), [J, "valid JSON", RESTORE]),
    "json-cut": (cut(J, 200), [J, "valid JSON", RESTORE]),
    "json-large": (append(J, b" " * 2**24), [J, "larger than", RESTORE]),
    "json-encoding": (manifest_text(b"GPVI", b"\xff"), [J, "valid JSON"]),
    "json-deep": (put(J, b"[" * 10**6), [J, "nested too deeply"]),
    "json-deep-objects": (put(J, b'{"a":' * 10**6), [J, "nested too deeply"]),
    "json-deep-value": (
        sealed(manifest_text(b"-70.7", b"[" * 70 + b"]" * 70)),
        [J, "nested too deeply"],
    ),
    "json-deep-version": (
        manifest_text(b'"format_version": 1', b'"format_version": ' + b"[" * 900 + b"]" * 900),
        [J, "nested too deeply"],
    ),
    "json-twice": (sealed(manifest_text(b'"seed"', b'"method"')), [J, "a key occurs twice"]),
    "json-nan": (sealed(manifest_text(b"-70.7", b"NaN")), [J, "NaN is not JSON"]),
    "json-infinite": (sealed(manifest_text(b"-70.7", b"1e999")), [J, "1e999 is too large"]),
    "json-digits": (sealed(manifest_text(b"-70.7", b"1" * 5000)), [J, "valid JSON"]),
    "json-float": (sealed(manifest_text(b'"inf"', b'"0x1"')), [J, "'$float'"]),
    "json-float-list": (sealed(manifest_text(b'"inf"', b"[[]]")), [J, "'$float'"]),
    "field-missing": (sealed(edit_manifest(library_version=...)), [J, "'library_version'"]),
    "field-unknown": (sealed(edit_manifest(hook="import os")), [J, "'hook'"]),
    "document-list": (sealed(edit_manifest(document=[])), [J, "document is of type list"]),
    "digest-number": (sealed(edit_manifest(arrays_sha256=3)), [J, "arrays_sha256 is of type int"]),
    "sums-empty": (cut(S, 0), [S, "one SHA-256 line each"]),
    "sums-third-line": (append(S, b"0" * 64 + b"  passwd\n"), [S, "one SHA-256 line each"]),
    "sums-remark": (append(S, b"# checked\n"), [S, "one SHA-256 line each"]),
    "sums-bytes": (put(S, b"\xff\x00"), [S, "one SHA-256 line each"]),
    "sums-large": (append(S, b"\n" * 5000), [S, "larger than"]),
    "arrays-flipped": (
        lambda d: put(A, (d / A).read_bytes()[:-1] + b"\xff")(d),
        [A, "SHA-256", J, RESTORE],
    ),
    "arrays-of-another-save": (
        lambda d: shutil.copy(d.parent / "other" / A, d / A),
        [A, "SHA-256", J],
    ),
    "arrays-empty": (cut(A, 0), [A, "ends after 0 bytes"]),
    "arrays-cut-in-length": (cut(A, 5), [A, "ends after 5 bytes"]),
    "arrays-cut-in-header": (cut(A, 100), [A, "92 are possible"]),
    "arrays-cut-in-data": (cut(A, -1), [A, "claims"]),
    "arrays-extended": (sealed(append(A, b"\0")), [A, "claims"]),
    "header-length-huge": (header(b"{}", length=2**64 - 1), [A, "2 are possible"]),
    "header-length-over-cap": (
        header(b"{}" + b" " * 2**24),
        [A, f"claims {2**24 + 2} bytes, but {2**24} are possible"],
    ),
    "header-list": (header([]), [A, "not a JSON object"]),
    "header-bytes": (header(b"\x80\x04K\x01."), [A, "valid JSON"]),
    "header-deep": (header(b"[" * 10**6), [A, "nested too deeply"]),
    "header-name-twice": (
        header(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), b"\0" * 8),
        [A, "a key occurs twice"],
    ),
    "header-metadata": (header({"__metadata__": {"a": "b"}}), [A, "'__metadata__'"]),
    "entry-number": (header({"a": 3}), [A, "'a' is not dtype"]),
    "entry-unknown-field": (header({"a": entry(pad=1)}, b"\0" * 8), [A, "'a' is not dtype"]),
    "dtype-unknown": (header({"a": entry("F8_E4M3", (8,))}, b"\0" * 8), ["dtype 'F8_E4M3'"]),
    "dtype-list": (header({"a": entry(["F32"])}, b"\0" * 8), ["unknown dtype"]),
    "shape-negative": (header({"a": entry(shape=(-2,))}, b"\0" * 8), ["impossible shape"]),
    "shape-float": (header({"a": entry(shape=(2.0,))}, b"\0" * 8), ["impossible shape"]),
    "shape-bool": (header({"a": entry(shape=(True, 2))}, b"\0" * 8), ["impossible shape"]),
    "shape-rank": (header({"a": entry(shape=(1,) * 65)}, b"\0" * 4), ["impossible shape"]),
    "shape-many": (header({"a": entry(shape=(2,) * 10**6)}, b"\0" * 8), ["impossible shape"]),
    "shape-digits": (header({"a": entry(shape=(10**4000,))}, b"\0" * 8), ["impossible shape"]),
    "shape-huge": (
        header({"a": entry(shape=(2**40, 2**40))}, b"\0" * 8),
        ["more than 2^63 bytes", "the file holds 8"],
    ),
    "shape-wraps-to-8": (
        header({"a": entry("U8", (2**62, 4)), "b": entry()}, b"\0" * 8),
        ["more than 2^63 bytes", "the file holds 8"],
    ),
    "shape-empty-but-huge": (header({"a": entry(shape=(0, 2**62), offsets=(0, 0))}), ["too big"]),
    "offsets-overlap": (
        header({"a": entry(), "b": entry()}, b"\0" * 16),
        [A, "Error while deserializing"],
    ),
    "offsets-long-names": (
        header({"x" * 5000: entry(), "y" * 5000: entry()}, b"\0" * 16),
        [A, "Error while deserializing"],
    ),
    "offsets-hole": (
        header({"a": entry(shape=(4,), offsets=(8, 24))}, b"\0" * 16),
        [A, "deserializing"],
    ),
    "offsets-outside": (
        header({"a": entry(offsets=(0, 2**40))}, b"\0" * 8),
        [A, "damaged"],
    ),
    "offsets-negative": (header({"a": entry(offsets=(-8, 0))}, b"\0" * 8), [A, "damaged"]),
    "offsets-text": (header({"a": entry(offsets=("0", "8"))}, b"\0" * 8), [A, "damaged"]),
    "bool-bytes": (
        header({"a": entry("BOOL", (2,), (0, 2))}, b"\x01\x02"),
        [A, "'a' is bool but holds bytes other than 0 and 1"],
    ),
    "link-json": (replaced_by(J, outside), [J, "not a regular file", "a copy of the file"]),
    "link-arrays": (replaced_by(A, outside), [A, "not a regular file"]),
    "link-sums": (replaced_by(S, outside), [S, "not a regular file"]),
    "link-to-nothing": (replaced_by(J, lambda p: p.symlink_to("no")), [J, "not a regular file"]),
    "link-to-device": (replaced_by(J, lambda p: p.symlink_to("/dev/zero")), ["not a regular"]),
    "pipe": (replaced_by(J, os.mkfifo), [J, "not a regular file"]),
    "directory": (replaced_by(A, os.mkdir), [A, "not a regular file"]),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_each_kind_of_damage_is_named(saved, damage, said):
    shutil.copytree(saved, saved.parent / "copy")
    storage.write(saved.parent / "other", *example(1))
    damage(saved)
    message = refusal(saved)
    assert message.startswith(str(saved))
    for words in said:
        assert words in message
    assert len(message) < 1000


def test_a_path_that_is_no_directory(tmp_path, saved):
    assert "No such file" in refusal(tmp_path / "nothing")
    assert "Pass the directory" in refusal(saved / storage.MANIFEST)
    (tmp_path / "empty").mkdir()
    assert "posterior.json is missing" in refusal(tmp_path / "empty")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_without_permission(saved):
    (saved / storage.ARRAYS).chmod(0)
    assert "Permission denied" in refusal(saved)


def test_a_failing_disk_is_reported_as_such(saved, monkeypatch):
    class BadSector(io.FileIO):
        def read(self, *_):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdopen", BadSector)
    assert "Input/output error" in refusal(saved)


def test_a_pipe_put_there_after_the_first_look_is_refused(saved, monkeypatch):
    pipe, lstat = saved / storage.MANIFEST, os.lstat
    pipe.unlink()
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "lstat", lambda path: lstat(saved / A if path == pipe else path))
    assert "not a regular file" in refusal(saved)


def test_a_header_that_changes_after_its_check_is_refused(saved, monkeypatch):
    class Changing(io.FileIO):
        def seek(self, *_):
            put(A, (saved / A).read_bytes().replace(b"BF16", b"F8_X"))(saved)
            return super().seek(0)

    monkeypatch.setattr(os, "fdopen", Changing)
    assert "changed while it was read" in refusal(saved)


def test_an_edited_document_is_read_once_the_checksums_are_renewed(saved):
    manifest_text(b"GPVI", b"SVGD")(saved)
    content = {name: sha256((saved / name).read_bytes()) for name in (A, J)}
    (saved / S).write_text("".join(f"{digest} *{name}\n" for name, digest in content.items()))
    assert storage.read(saved)[0]["method"] == "SVGD"


# --------------------------------------------------------------------------------- allocation

LIES = {
    "header-length": framed(b"{}", length=2**40),
    "header-length-below-cap": framed(b"{}", length=2**24),
    "shape": framed({"a": entry("F64", (2**37,), (0, 2**40))}),
    "shape-against-offsets": framed({"a": entry("F64", (2**37,), (0, 8))}, b"\0" * 8),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES.keys())
def test_a_header_that_lies_allocates_nothing(saved, content):
    (saved / storage.ARRAYS).write_bytes(content)
    seal(saved)
    refusal(saved)
    tracemalloc.start()
    try:
        refusal(saved)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**19


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_hostile_files_stay_within_an_address_space_limit(saved):
    """Native allocations count too: 256 MiB are left, the files claim, or hold, a terabyte."""
    places = []
    for name, content in LIES.items():
        place = saved.parent / name
        shutil.copytree(saved, place)
        (place / storage.ARRAYS).write_bytes(content)
        seal(place)
        places.append(place)
    hollow = saved.parent / "hollow"
    shutil.copytree(saved, hollow)
    (hollow / storage.ARRAYS).write_bytes(LIES["shape"])
    os.truncate(hollow / storage.ARRAYS, len(LIES["shape"]) + 2**40)
    result = run_python(
        """
        import resource, sys
        from gpvi.persistence import format as storage
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for place in sys.argv[1:]:
            try:
                storage.read(place)
            except storage.StorageError as error:
                print(error)
        """,
        *places,
        hollow,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(LIES) + 1
    assert "more than the free memory" in lines[-1]


# --------------------------------------------------------------------------------------- fuzz


def mutate(rng, content):
    """Flip, overwrite, cut, extend, insert or remove, at random places."""
    data = bytearray(content)
    match rng.integers(6):
        case 0:
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        case 1:
            for position in rng.integers(len(data), size=rng.integers(1, 9)):
                data[position] = rng.integers(256)
        case 2:
            del data[rng.integers(len(data)) :]
        case 3:
            data += rng.bytes(rng.integers(1, 40))
        case 4:
            position = rng.integers(len(data) + 1)
            data[position:position] = rng.bytes(rng.integers(1, 9))
        case 5:
            position = rng.integers(len(data))
            del data[position : position + rng.integers(1, 9)]
    return bytes(data)


def fuzz(directory, cases, seed, reseal):
    """How many mutated saves were refused; any exception but StorageError escapes."""
    rng = np.random.default_rng(seed)
    original = {name: (directory / name).read_bytes() for name in FILES}
    expected = storage.read(directory)
    again = directory.parent / "again"
    refusals = []
    for _ in range(cases):
        name = FILES[rng.integers(2 if reseal else 3)]
        renew(directory, {name: mutate(rng, original[name])})
        if reseal:
            seal(directory)
        try:
            result = storage.read(directory)
        except StorageError as error:
            refusals.append(str(error))
        else:
            if reseal:
                storage.write(again, *result)
                assert same(storage.read(again), result)
            else:
                assert same(result, expected)
        renew(directory, original)
    assert all(message.startswith(str(directory)) for message in refusals)
    return len(refusals)


def renew(directory, contents):
    """Write new files; to truncate and rewrite the old ones makes some filesystems sync."""
    for name, content in contents.items():
        (directory / name).unlink()
        (directory / name).write_bytes(content)


def test_fuzzed_files_are_refused_or_read_the_same(saved):
    refused = fuzz(saved, cases=600, seed=0, reseal=False)
    assert refused > 500


def test_fuzzed_files_with_matching_checksums_still_raise_only_storage_errors(saved):
    refused = fuzz(saved, cases=600, seed=1, reseal=True)
    assert 200 < refused < 600


@pytest.mark.slow
@pytest.mark.parametrize("reseal", [False, True], ids=["checksums", "resealed"])
def test_fuzz_at_length(saved, reseal):
    assert fuzz(saved, cases=10_000, seed=2, reseal=reseal) > 3_000


def test_the_oracle_of_equality_can_fail():
    document, arrays = example()
    assert same((document, arrays), example())
    assert not same(({**document, "elbo": 0.0}, arrays), ({**document, "elbo": -0.0}, arrays))
    assert not same((document, arrays), (document, {**arrays, "step": np.array([0])}))
    assert not same((document, arrays), (document, {**arrays, "step": np.array(0, np.int32)}))
    assert not same_arrays({"x": np.array(0.0)}, {"x": np.array(-0.0)})
