"""The UCI sets: what was written is read, and faults are named."""

import numpy as np
import pytest

from gpvi.errors import InputError, StorageError
from gpvi_paper.data import uci
from made_data import FEATURES, ROWS, TESTED, write_uci


@pytest.fixture
def sets(tmp_path):
    write_uci(tmp_path / "yacht")
    return tmp_path


def test_columns_and_rows_are_those_named(tmp_path):
    table = write_uci(tmp_path / "energy" / "data")
    first, second = uci.read(tmp_path, "energy")
    assert first.X.shape == (ROWS - TESTED, FEATURES) and first.X_test.shape[0] == TESTED
    rows = np.loadtxt(tmp_path / "energy" / "data" / "index_test_1.txt").astype(int)
    np.testing.assert_allclose(second.X_test, table[rows][:, [2, 0, 3]])
    np.testing.assert_allclose(second.y_test, table[rows, 1])
    whole = np.sort(np.concatenate([first.y, first.y_test]))
    np.testing.assert_allclose(whole, np.sort(table[:, 1]))
    assert len(uci.read(tmp_path, "energy", 1)) == 1


def test_no_directory_or_a_wrong_one(tmp_path):
    with pytest.raises(InputError, match="--data-dir"):
        uci.find(None)
    with pytest.raises(InputError, match="does not exist"):
        uci.find(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has none of bostonHousing"):
        uci.find(tmp_path)
    (tmp_path / "uci" / "yacht").mkdir(parents=True)
    assert uci.find(tmp_path) == tmp_path / "uci"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index_target", "7", r"index_target.txt does not hold 1 whole number from 0 to 3"),
        ("index_train_0", "0.5", r"index_train_0.txt does not hold whole numbers"),
        ("index_train_0", "1\n1", r"contains a number twice"),
        ("index_test_1", "", r"index_test_1.txt is damaged: .*no data"),
        ("data", "1 2 3 4\n5 nan 7 8", r"holds NaN"),
        ("data", "1 2 3 four", r"data.txt is damaged: could not convert"),
        ("index_features", None, r"neither .*index_features.txt nor"),
    ],
)
def test_faults_are_named(sets, name, content, message):
    path = sets / "yacht" / f"{name}.txt"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(StorageError, match=message):
        uci.read(sets, "yacht")


def test_a_row_in_both_parts(sets):
    train = sets / "yacht" / "index_train_0.txt"
    test = np.loadtxt(sets / "yacht" / "index_test_0.txt")
    np.savetxt(train, np.append(np.loadtxt(train), test[0]))
    with pytest.raises(StorageError, match="split 0 has rows that are in both"):
        uci.read(sets, "yacht")
    with pytest.raises(InputError, match="there are 2"):
        uci.read(sets, "yacht", 3)
