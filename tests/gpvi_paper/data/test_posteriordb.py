"""posteriordb: what was written is read, and faults are named."""

import json
import zipfile

import numpy as np
import pytest

from gpvi.errors import InputError, StorageError
from gpvi_paper.data import posteriordb
from made_data import LINE, write_draws, write_posteriordb
from made_data import LINE_NAME as NAME


@pytest.fixture
def made(tmp_path):
    """A database of one posterior with two chains of reference draws."""
    write_posteriordb(tmp_path)
    return tmp_path


def test_reads_what_is_there(made):
    found = posteriordb.read(made, NAME)
    assert found.data == LINE
    assert found.parameters == ("alpha", "beta", "sigma")
    chains = json.loads(
        zipfile.ZipFile(made / "reference_draws" / "line.json.zip").read("line.json")
    )
    np.testing.assert_array_equal(found.draws[:50, 1], chains[0]["beta"])
    np.testing.assert_array_equal(found.draws[50:, 2], chains[1]["sigma"])


def test_reads_the_layout_of_the_repository(made):
    before = posteriordb.read(made, NAME)
    (made / "data").rename(made / "moved")
    (made / "data").mkdir()
    (made / "moved").rename(made / "data" / "data")
    (made / "reference_posteriors" / "draws").mkdir(parents=True)
    (made / "reference_draws").rename(made / "reference_posteriors" / "draws" / "draws")
    np.testing.assert_array_equal(posteriordb.read(made, NAME).draws, before.draws)


@pytest.mark.parametrize("directory", [None, "nowhere", "."])
def test_a_directory_without_it_is_refused_with_its_source(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"github.com/stan-dev/posteriordb"):
        posteriordb.read(directory, NAME)


@pytest.mark.parametrize("place", ["data/years", "reference_draws/line"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "missing"])
def test_a_damaged_archive_is_refused(made, place, harm):
    path = made / f"{place}.json.zip"
    content = bytearray(path.read_bytes())
    middle = len(path.name) + 40
    content[middle] ^= 0xFF
    harmed = {"cut": bytes(content[:60]), "flipped": bytes(content), "empty": b""}
    path.unlink()
    if harm != "missing":
        path.write_bytes(harmed[harm])
    with pytest.raises(StorageError, match=path.name):
        posteriordb.read(made, NAME)


@pytest.mark.parametrize(
    "chains",
    [
        {},
        [],
        [1],
        [{"alpha": [1.0]}, {"beta": [1.0]}],
        [{"alpha": [1.0], "beta": [1.0, 2.0]}],
        [{"alpha": [float("nan")]}],
        [{"alpha": ["one"]}],
    ],
)
def test_draws_that_are_none_are_refused(made, chains):
    write_draws(made, chains)
    with pytest.raises(StorageError, match=NAME):
        posteriordb.read(made, NAME)


@pytest.mark.parametrize("other", ["../secret", "/etc/passwd", 3, None])
def test_names_do_not_leave_the_directory(made, other):
    entry = {"data_name": other, "reference_posterior_name": "line"}
    (made / "posteriors" / f"{NAME}.json").write_text(json.dumps(entry))
    with pytest.raises(StorageError, match="data_name"):
        posteriordb.read(made, NAME)


def test_not_json(made):
    (made / "posteriors" / f"{NAME}.json").write_text("{")
    with pytest.raises(StorageError, match="is damaged: Expecting property name"):
        posteriordb.read(made, NAME)
