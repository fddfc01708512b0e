"""A record comes back as it was written, or not at all and with a reason."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from gpvi.errors import StorageError
from gpvi.persistence.writing import check_writable
from gpvi_paper import records
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.records import Curve, Environment, Record, Summary

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def record():
    return Record(
        experiment="blr",
        preset="smoke",
        method="GPVI (pathwise)",
        specification={"method": {"type": "GPVI", "particles": 100}, "steps": 300},
        seeds=(0, 1, 2),
        command="gpvi run blr",
        started="2021-07-18T12:00:00+00:00",
        seconds=1.5,
        environment=Environment("0.1.0", None, "3.11.2", "0.10.2", "Linux x86_64", 2, "cpu"),
        rows={"error": (0.25, math.nan, 0.75)},
        curves={"elbo": Curve((10, 20), ((1.0, 2.0), (1.5, 2.5), (0.0, math.nan)))},
        arrays={"draws": np.arange(6.0).reshape(3, 2), "half_width": np.array(5.5)},
        notes=("went back once",),
    )


def test_round_trip(record, tmp_path):
    path = records.write(record, tmp_path / "new" / "runs")
    back = records.read(path)
    plain = [
        f.name for f in dataclasses.fields(Record) if f.name not in ("rows", "curves", "arrays")
    ]
    assert {n: getattr(back, n) for n in plain} == {n: getattr(record, n) for n in plain}
    np.testing.assert_equal(back.rows["error"], record.rows["error"])
    assert back.curves["elbo"].steps == (10, 20)
    np.testing.assert_equal(back.curves["elbo"].values, record.curves["elbo"].values)
    for name, array in record.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)


def test_the_file_is_strict_json_without_traces(record, tmp_path):
    path = records.write(record, tmp_path)
    text = path.read_text("utf-8")
    json.loads(text, parse_constant=pytest.fail)
    assert str(tmp_path) not in text
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "a temporary file was left behind"


def test_nothing_is_overwritten(record, tmp_path):
    paths = {records.write(record, tmp_path) for _ in range(4)}
    assert len(paths) == 4
    assert len(records.find([tmp_path])) == 4


def test_a_failed_write_leaves_nothing(record, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        records.write(record, tmp_path)
    assert not list(tmp_path.iterdir())


def test_summary_counts_finite_values_only(record):
    mean, sd, n = record.summary("error")
    assert (mean, n) == (0.5, 2)
    assert sd == pytest.approx(math.sqrt(0.125))
    assert Summary.of([math.nan, math.inf]) is None
    _, sd, n = Summary.of([3.0]) or pytest.fail("one value is enough")
    assert math.isnan(sd)
    assert n == 1
    assert record.summary("absent") is None


def test_only_the_newest_of_a_kind_is_latest(record):
    newer = dataclasses.replace(record, started="2022-01-01T00:00:00+00:00", seconds=2.0)
    other = dataclasses.replace(record, preset="best")
    assert records.latest([newer, record, other]) == [newer, other]


def test_cases_that_were_run_apart_are_joined(record):
    def of(case, started, **changes):
        rows = {f"{case}/error": (0.5, 0.5), f"{case}/seconds": (1.0, 1.0)}
        curves = {f"{case}/loss": records.Curve((1,), ((0.0,), (0.0,)))}
        own = {"rows": rows, "curves": curves, "started": f"{started}-01-01T00:00:00+00:00"}
        seeds = (0, 1)
        return dataclasses.replace(record, **{"seeds": seeds, "arrays": {}, **own, **changes})

    split, clean = of("split", 2021), of("clean", 2022)
    (joined,) = records.latest([clean, split])
    assert set(joined.rows) == set(split.rows) | set(clean.rows)
    assert set(joined.curves) == {"split/loss", "clean/loss"}
    assert joined.started == clean.started
    other = of("split", 2021, specification={"steps": 1})
    assert records.latest([other, clean]) == [clean], "of another recipe"
    assert records.latest([of("split", 2021, seeds=(1, 2)), clean]) == [clean], "of other seeds"
    again = of("split", 2023, rows={"split/error": (0.1, 0.1)})
    assert records.latest([split, again])[0].rows == again.rows, "not mixed within a case"


@pytest.mark.parametrize("steps", [1, 7, 200, 201, 1_000, 12_345])
def test_thinning_keeps_the_mean(steps):
    history = np.random.default_rng(steps).standard_normal((2, steps))
    curve = records.thinned(list(history))
    assert len(curve.steps) == min(steps, 200)
    assert curve.steps[-1] == steps
    widths = np.diff([0, *curve.steps])
    means = (np.array(curve.values) * widths).sum(1) / steps
    np.testing.assert_allclose(means, history.mean(1), atol=1e-5)


def change(name, value):
    def damage(document):
        *folders, last = name.split("/")
        for folder in folders:
            document = document[folder]
        if value is None:
            del document[last]
        else:
            document[last] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("format", "something"), "not a record"),
        (change("format_version", 2), "version 2"),
        (change("rows", None), "rows: Field required"),
        (change("rows/error", [0.1]), "rows.error has 1 values for 3 seeds"),
        (change("rows/error", ["a", 1, 2]), "rows.error.0: Input should be a valid number"),
        (change("rows/error", [True, 1, 2]), "rows.error.0: Input should be a valid number"),
        (change("seeds", []), "seeds is empty"),
        (change("seeds", [0.5, 1, 2]), "seeds.0: Input should be a valid integer"),
        (change("seconds", True), "seconds: Input should be a valid number"),
        (change("started", "yesterday"), "yesterday"),
        (change("environment/cpus", "two"), "environment.cpus: Input should be a valid integer"),
        (
            change("curves/elbo/values", [[1, 2]]),
            "curves.elbo does not have 2 values for each of 3 seeds",
        ),
        (
            change("curves/elbo/steps", [1]),
            "curves.elbo does not have 1 values for each of 3 seeds",
        ),
        (
            change("arrays/draws/shape", [3, 3]),
            "arrays.draws: Value error, 6 values for the shape [3, 3]",
        ),
        (
            change("arrays/draws/shape", [-3, -2]),
            "arrays.draws.shape.0: Input should be greater than",
        ),
        (change("arrays/draws", [1, 2]), "arrays.draws: Input should be a dictionary"),
        (change("notes", [1]), "notes.0: Input should be a valid string"),
    ],
)
def test_damage_is_named(record, tmp_path, damage, reason):
    path = records.write(record, tmp_path)
    document = json.loads(path.read_text("utf-8"))
    damage(document)
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(StorageError, match=re.escape(reason)) as caught:
        records.read(path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"x\.json"):
        records.read(path)


def test_truncation_is_noticed(record, tmp_path):
    path = records.write(record, tmp_path)
    text = path.read_text("utf-8")
    path.write_text(text[: len(text) // 2], "utf-8")
    with pytest.raises(StorageError, match="damaged"):
        records.read(path)


def test_finding_nothing_says_what_to_do(tmp_path):
    with pytest.raises(StorageError, match="gpvi run"):
        records.find([tmp_path])
    with pytest.raises(StorageError, match="does not exist"):
        records.find([tmp_path / "absent"])


def test_the_environment_names_no_machine():
    import platform

    found = records.environment()
    assert platform.node() not in dataclasses.asdict(found).values()
    assert found.cpus >= 1


def test_an_output_is_tried_out_without_a_trace(tmp_path):
    check_writable(tmp_path / "new" / "runs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="--out"):
        check_writable(tmp_path / "file" / "runs")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((1.0, 2.0, 3.0), ("2.0", "1.0", 0)),
        ((0.25,), ("0.250", "", 0)),
        ((1e-7, 3e-7), ("2.0", "1.4", -7)),
        ((1e-9, 2e-2), ("0.010", "0.014", 0)),
        ((-2e6, 1e6), ("−0.5", "2.1", 6)),
        ((0.1, 0.1 + 1e-15, 0.1), ("0.100", "", 0)),
        ((0.0, 0.0), ("0", "", 0)),
    ],
)
def test_numbers_as_they_are_shown(values, shown):
    summary = Summary.of(values)
    assert summary is not None
    assert summary.rounded() == shown


def test_reading_shows_how_far_it_is(record, tmp_path):
    class Seen:
        def __init__(self):
            self.said = []

        def start(self, total, label):
            self.said.append((total, label))

        def update(self, done, message):
            self.said.append((done, message))

        def close(self):
            self.said.append("closed")

    (tmp_path / "other.json").write_text("{}")
    path, seen = records.write(record, tmp_path), Seen()
    assert len(records.search([tmp_path], progress=seen).records) == 1
    first, *between, last = seen.said
    assert first == (2, "records") and last == "closed"
    assert {name for _, name in between} == {"other.json", path.name}


@pytest.mark.skipif(not RESULTS.is_dir(), reason="the published records are not in this copy")
def test_every_published_record_is_read_and_is_the_newest_of_a_row_that_exists():
    published = records.find([RESULTS])
    assert len(records.latest(published)) == len(published) > 0
    for record in published:
        assert record.method in EXPERIMENTS[record.experiment].recipes(record.preset)
