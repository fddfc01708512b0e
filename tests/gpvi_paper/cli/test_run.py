"""`gpvi run` answers in words, in JSON and in exit codes, and resumes."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpvi.cli import load_app
from gpvi.errors import OtherRunError
from gpvi_paper import records
from gpvi_paper.cli import _tables
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.linear import blr
from gpvi_paper.experiments.unfinished import next_place
from made_records import made
from selection import slow


def call(*words):
    return CliRunner().invoke(load_app(), list(map(str, words)))


@pytest.fixture
def quick(monkeypatch):
    """Experiments that answer at once with made-up numbers; gives the list of what was asked of them."""
    asked = []
    for name, experiment in EXPERIMENTS.items():

        def run(label, preset, seeds, progress=True, name=name):
            asked.append((name, label, preset, tuple(seeds)))
            return made(name, label, preset, len(seeds))

        monkeypatch.setattr(experiment, "run", run, raising=False)
    return asked


@pytest.mark.parametrize("experiment", ["posteriordb", "uci", "collapse", "mnist"])
def test_no_number_is_broken_or_lost_at_eighty_columns(quick, tmp_path, monkeypatch, experiment):
    """Numbers of every kind, with two metrics of one label among them (the errors ± se of uci)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(
        type(EXPERIMENTS[experiment]), "reading", lambda self, _: self, raising=False
    )
    label = next(iter(EXPERIMENTS[experiment].recipes("best")))
    slug = records.slug(label)
    words = ("run", experiment, "--method", slug, "--out", tmp_path)
    screen = call(*words).stdout
    assert "…" not in screen
    (record,) = records.find([tmp_path])
    shown = [m.key for m in EXPERIMENTS[experiment].metrics if m.style != "seconds"]
    if len(EXPERIMENTS[experiment].cases) > 6:
        shown = [key for key in shown if key in EXPERIMENTS[experiment].tables[0].metrics]
    numbers = sum(row.rpartition("/")[2] in shown for row in record.rows)
    assert len(re.findall(r"[\d.]+ ± [\d.]+", screen)) == numbers
    assert f"gpvi report {tmp_path}" in screen.replace("\n", "")


def test_run_for_real(tmp_path, monkeypatch):
    monkeypatch.setitem(blr.STEPS, "smoke", 20)
    result = call(
        "run", "blr", "--method", "svgd", "--preset", "smoke", "--seeds", 2, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert "Σ error" in result.stdout
    (record,) = records.find([tmp_path])
    assert (record.method, record.preset, record.seeds) == ("SVGD", "smoke", (0, 1))
    assert record.command == "gpvi run blr --method svgd --preset smoke --seeds 2"


@pytest.mark.parametrize("experiment", ["blr", "energy", "posteriordb", "uci", "mnist"])
@pytest.mark.parametrize("width", [80, 200])
def test_several_rows_end_with_one_table(quick, tmp_path, monkeypatch, experiment, width):
    monkeypatch.setenv("COLUMNS", str(width))
    of = EXPERIMENTS[experiment]
    monkeypatch.setattr(type(of), "reading", lambda self, _: self, raising=False)
    labels = list(of.recipes("best"))[:3]
    words = [word for label in labels for word in ("--method", records.slug(label))]
    screen = call("run", experiment, *words, "--out", tmp_path).stdout
    title, _, last = screen.rpartition(f"{of.title}: {len(labels)} rows")
    assert title, "a table after those of the rows"
    assert all(word in last for label in labels for word in label.split()), "headings may wrap"
    assert "…" not in last
    assert all(len(line) <= width for line in last.splitlines()[:-1])
    metrics = {metric.key: metric for metric in of.metrics}
    shown = [metrics[key] for key in of.headline or of.tables[0].metrics[:1]]
    assert (" *" in last.partition("* best")[0]) == any(metric.better for metric in shown)


def test_the_best_of_a_metric_is_marked():
    def record(label, values):
        rows = {"covariance_error": values}
        return dataclasses.replace(made("blr", "SVGD", "best", 1), method=label, rows=rows)

    compared = [record("a", (0.2,)), record("b", (0.1,)), record("c", (float("nan"),))]
    metric = EXPERIMENTS["blr"].metrics[1]
    assert _tables._marked(["x", "y", "z"], compared, "", metric) == ["x  ", "y *", "z  "]
    higher = metric._replace(better="higher")
    assert _tables._marked(["x", "y", "z"], compared, "", higher) == ["x *", "y  ", "z  "]
    plain = metric._replace(better=None)
    assert _tables._marked(["x", "y", "z"], compared, "", plain) == ["x", "y", "z"]


def test_a_directory_whose_name_is_no_text(quick, tmp_path):
    result = call("run", "blr", "--method", "svgd", "--out", tmp_path / "\udcff")
    assert result.exit_code == 0, result.output
    assert len(records.find([tmp_path / "\udcff"])) == 1
    assert "\\udcff" in result.stdout


def test_run_in_json_prints_nothing_else(quick, tmp_path):
    result = call("run", "blr", "energy", "--method", "gpvi", "--json", "--out", tmp_path)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert len(document) == len(quick) == 5
    assert {(d["experiment"], d["method"]) for d in document} == {(q[0], q[1]) for q in quick}
    assert document[0]["rows"]["covariance_error"] == [0.125, 0.25, 0.375]
    assert all(Path(d["record"]).is_file() for d in document)
    assert {q[2:] for q in quick} == {("best", (0, 1, 2))}


def test_a_record_without_the_case_is_not_taken_for_it(quick, tmp_path, monkeypatch):
    """The made-up records have every case; without one of them the row is run again."""
    words = ("run", "digits", "--method", "svgd", "--out", tmp_path)
    for case in ("split", "clean"):
        assert call(*words, "--case", case).exit_code == 0
    assert len(quick) == 1, "the record has both"
    (path,) = tmp_path.glob("*.json")
    content = json.loads(path.read_text())
    content["rows"] = {k: v for k, v in content["rows"].items() if not k.startswith("clean/")}
    path.write_text(json.dumps(content))
    assert call(*words, "--case", "split").exit_code == 0 and len(quick) == 1
    assert call(*words, "--case", "clean").exit_code == 0 and len(quick) == 2


def test_all_methods_by_default(quick, tmp_path):
    assert call("run", "blr", "--preset", "paper", "--out", tmp_path).exit_code == 0
    assert [q[1] for q in quick] == list(EXPERIMENTS["blr"].recipes("paper"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rum",), "'run'"),
        (("run", "bltr"), "Did you mean 'blr'?"),
        (("run", "blr", "--method", "svdg"), "Did you mean 'svgd'?"),
        (("run", "energy", "--preset", "paper", "--method", "gpvi-defualt"), "for preset 'paper'"),
        (("run", "blr", "--preset", "papr"), "Did you mean 'paper'?"),
        (("run", "blr", "--seeds", "0"), "give 1 to"),
        (("run", "blr", "--case", "split"), "blr runs all of its cases together"),
        (("run", "digits", "--case", "spilt"), "Did you mean 'split'?"),
        (("run", "blr", "--seeds", str(10**20)), "give 1 to 4,294,967,296"),
        (("--show-completion", "nosuchshell"), "it applies to the shell it is called from"),
        (("run", "blr", "--seeds", "three"), "'--seeds'"),
        (("run", "blr", "--sedes", "3"), "--seeds"),
        (("run",), "EXPERIMENT"),
        (("report",), "see gpvi report --help"),
        (("run", "blr", "--preset"), "see gpvi run --help"),
        (("bench", "--seconds", "-1"), "--seconds is -1"),
        (("list", "method"), "Did you mean 'methods'?"),
        (("fit",), "FILE"),
        (("report", "no/such/place"), "gpvi run"),
    ],
)
def test_errors_are_one_line_and_two(words, said):
    result = call(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("gpvi: ")
    assert said in result.stderr


def test_an_output_that_is_a_file_is_refused_before_anything_is_run(quick, tmp_path):
    (tmp_path / "file").touch()
    result = call("run", "energy", "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert not quick


def test_a_bug_is_one_line_and_with_debug_a_trace(monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(EXPERIMENTS["energy"], "run", broken, raising=False)
    result = call("run", "energy", "--out", tmp_path)
    assert result.exit_code == 2
    assert (
        result.stderr
        == "gpvi: unexpected ZeroDivisionError: oh. Run it again with --debug for the traceback.\n"
    )
    result = call("run", "energy", "--debug", "--out", tmp_path)
    assert isinstance(result.exception, ZeroDivisionError)


def test_interrupt_keeps_what_is_finished(quick, monkeypatch, tmp_path):
    first = EXPERIMENTS["blr"].run

    def run(label, *rest):
        if label != "SVGD":
            raise KeyboardInterrupt
        return first(label, *rest)

    monkeypatch.setattr(EXPERIMENTS["blr"], "run", run, raising=False)
    result = call("run", "blr", "--out", tmp_path)
    assert result.exit_code == 130
    rows = len(EXPERIMENTS["blr"].recipes("best"))
    assert f"kept 1 of {rows} records in {tmp_path}" in result.stderr.replace("\n", "")
    assert [r.method for r in records.find([tmp_path])] == ["SVGD"]


class TestResuming:
    """The same command again goes on where it stopped."""

    METHODS = ("--method", "svgd", "--method", "gfsf", "--method", "gfsd")

    def test_after_an_interrupt(self, quick, monkeypatch, tmp_path):
        run = EXPERIMENTS["blr"].run

        def interrupted(label, *rest):
            if label == "GFSD":
                raise KeyboardInterrupt
            return run(label, *rest)

        monkeypatch.setattr(EXPERIMENTS["blr"], "run", interrupted, raising=False)
        first = call("run", "blr", *self.METHODS, "--out", tmp_path)
        assert first.exit_code == 130
        assert "the same command resumes from there" in first.stderr
        monkeypatch.setattr(EXPERIMENTS["blr"], "run", run, raising=False)
        second = call("run", "blr", *self.METHODS, "--out", tmp_path)
        assert second.exit_code == 0
        assert [q[1] for q in quick] == ["SVGD", "GFSF", "GFSD"]
        assert second.stdout.count("kept from 2021-07-18 12:00 UTC") == 2
        assert "--again" in second.stdout
        assert len(records.find([tmp_path])) == 3

    def test_within_a_row(self, quick, monkeypatch, tmp_path):
        """Saves stay until the row is done; those of another version are given up, and that is told."""
        run, places = EXPERIMENTS["blr"].run, []

        def interrupted(label, *rest):
            places.append(next_place())
            if len(places) == 1:
                places[0].mkdir(parents=True)
                raise KeyboardInterrupt
            if places[0].exists():
                raise OtherRunError("program differs")
            return run(label, *rest)

        monkeypatch.setattr(EXPERIMENTS["blr"], "run", interrupted, raising=False)
        first = call("run", "blr", "--method", "svgd", "--out", tmp_path)
        assert first.exit_code == 130
        assert "the unfinished row" in first.stderr
        assert places[0].is_relative_to(tmp_path)
        second = call("run", "blr", "--method", "svgd", "--out", tmp_path)
        assert second.exit_code == 0
        assert "starts over" in second.stderr
        assert places == [places[0]] * 3
        assert [path.suffix for path in tmp_path.iterdir()] == [".json"]

    @pytest.mark.parametrize(
        "changed", [("--seeds", "2"), ("--preset", "paper"), ("--again",), ("--out", "elsewhere")]
    )
    def test_not_where_anything_differs(self, quick, tmp_path, monkeypatch, changed):
        monkeypatch.chdir(tmp_path)
        words = ("run", "blr", "--method", "svgd", "--out", "here")
        call(*words)
        assert call(*words, *changed).exit_code == 0
        assert len(quick) == 2
        call(*words)
        assert len(quick) == 2, "the first record still counts"

    def test_not_under_another_recipe(self, quick, tmp_path, monkeypatch):
        words = ("run", "blr", "--method", "svgd", "--out", tmp_path)
        call(*words)
        monkeypatch.setitem(blr.STEPS, "best", 77)
        call(*words)
        assert len(quick) == 2

    def test_fields_newer_than_a_record_do_not_count(self, quick, tmp_path):
        words = ("run", "blr", "--method", "svgd", "--out", tmp_path)
        call(*words)
        (path,) = tmp_path.glob("*.json")
        document = json.loads(path.read_text("utf-8"))
        del document["specification"]["method"]["annealing"]
        path.write_text(json.dumps(document), "utf-8")
        call(*words)
        assert len(quick) == 1
        document["specification"]["method"]["type"] = "Newer"
        path.write_text(json.dumps(document), "utf-8")
        call(*words)
        assert len(quick) == 2

    def test_in_json_says_which_are_kept(self, quick, tmp_path):
        words = ("run", "blr", "--method", "svgd", "--out", tmp_path, "--json")
        assert [one["kept"] for one in json.loads(call(*words).stdout)] == [False]
        (again,) = json.loads(call(*words).stdout)
        assert again["kept"]
        assert again["rows"]["covariance_error_samples"] == [0.125, 0.25, 0.375]

    def test_a_damaged_record_is_run_again(self, quick, tmp_path):
        words = ("run", "blr", "--method", "svgd", "--out", tmp_path)
        call(*words)
        (path,) = tmp_path.glob("*.json")
        path.write_text("{")
        result = call(*words)
        assert (result.exit_code, len(quick)) == (0, 2)
        assert path.name in result.stderr


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "gpvi", "run", "blrr"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    valid = ", ".join(sorted(EXPERIMENTS))
    assert done.stderr == f"gpvi: unknown experiment 'blrr'. Did you mean 'blr'? Valid: {valid}.\n"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        slow("gpvi ru", "run"),
        slow("gpvi run dens", "density"),
        ("gpvi run uci --method gpvi-f", "gpvi-functional"),
    ],
)
def test_completion(words, wanted):
    done = subprocess.run(
        [sys.executable, "-m", "gpvi"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {
            "_GPVI_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
    )
    assert done.stdout.split() == [wanted]
