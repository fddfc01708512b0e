"""`gpvi list` names methods, experiments and data."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpvi.cli import load_app
from gpvi_paper import records
from gpvi_paper.bench import CASES
from gpvi_paper.experiments import EXPERIMENTS


def call(*words):
    return CliRunner().invoke(load_app(), list(map(str, words)))


@pytest.mark.parametrize("kind", [None, "methods", "experiments", "data", "blr"])
def test_list(kind):
    result = call("list", *([kind] if kind else []))
    assert result.exit_code == 0
    assert ("AmortizedSVGD" in result.stdout) == (kind in (None, "methods"))
    assert ("classification2" in result.stdout) == (kind in (None, "experiments"))
    assert ("gpvi-functional-exact-jacobian" in result.stdout) == (kind == "blr")
    assert ("posteriordb (Magnusson" in result.stdout) == (kind in (None, "data"))
    assert "…" not in result.stdout, "a word was cut off"


@pytest.mark.slow
def test_a_terminal_without_greek(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "gpvi", "list", "solvers"]
    done = subprocess.run(line, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and b"bicgstab" in done.stdout


@pytest.mark.parametrize("name", [None, "methods", "experiments", "data", "blr"])
def test_in_json(name):
    words = ["list", "--json"] if name is None else ["list", name, "--json"]
    result = CliRunner().invoke(load_app(), words)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    if name is None:
        assert set(document) == {"methods", "experiments", "data"}
        assert {"nuts", "gpvi"} <= {each["name"] for each in document["methods"]}
    elif name in EXPERIMENTS:
        rows = document["rows"]["best"]
        assert rows == [records.slug(label) for label in EXPERIMENTS[name].recipes("best")]
    else:
        assert all({"name"} < set(each) for each in document)


def test_rows_of_the_bench_are_listed_without_measuring_anything(monkeypatch):
    def measured(*_, **__):
        raise AssertionError("a list must not measure")

    monkeypatch.setattr("gpvi_paper.bench.timing.in_turns", measured)
    monkeypatch.setattr("gpvi_paper.bench.process.documents", measured)
    result = CliRunner().invoke(load_app(), ["list", "bench", "--json"])
    assert result.exit_code == 0, result.output
    rows = {case["name"]: case["rows"] for case in json.loads(result.stdout)}
    assert set(rows) == set(CASES)
    assert "n-100-d-20-000" in rows["svgd"]
    assert "pathwise" in rows["steps-classes"]
    assert all(rows[name] for name, case in CASES.items() if not case.only)
